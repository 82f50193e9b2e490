"""What the probes calculated is right, and fast enough to be what it says."""

from collections.abc import Iterator

from holdfast.book.kinds.check import Case, Check, block, info, warn
from holdfast.run.types import Finding

_SLOW_BYTES_PER_SECOND = 20 << 20
_HOW = {"wrong": "gives wrong numbers", "crashed": "crashes", "hung": "hangs", "error": "raises an error"}
_TRY = {
    "matmul": (
        "on AMD try in a shell: export ROCBLAS_USE_HIPBLASLT=0 TORCH_BLAS_PREFER_HIPBLASLT=0, then holdfast "
        "doctor again; else another torch wheel"
    ),
    "attention": "train.attention=eager, or another torch wheel",
    "writing": "choose another place with --run DIR",
    "memory": "close what else uses the card; on an APU raise the limit of shared memory; then holdfast doctor again",
    "collective": "export NCCL_P2P_DISABLE=1, or iommu=pt on the kernel command line; then holdfast doctor again",
    "fused": "holdfast does not use it; elsewhere leave fused optimizers out",
    "compiled": "leave torch.compile out; it needs a Triton made for this torch, a C compiler and the headers of Python",
    "quantised": "pip install --no-deps -U bitsandbytes, or no 4-bit and 8-bit weights on this machine",
    "speed": "holdfast doctor again; where it stays, another torch wheel",
}
_NOT_NEEDED = ("memory", "collective", "compiled", "fused", "quantised", "speed")  # by a run of ours on one device


def look(case: Case) -> Iterator[Finding]:
    for name, probe in case.machine.probes.items():
        if probe.outcome in _HOW:
            fix = _TRY.get(name, "python -m holdfast.trainer probes . 60 shows the whole error")
            asked = name == "quantised" and case.config is not None and bool(case.config.train.wants_bitsandbytes)
            tell = warn if name in _NOT_NEEDED and not asked else block
            yield tell(f"the probe {name} {_HOW[probe.outcome]} on this machine: {probe.detail or 'no detail'}", fix)
    wanted = case.config is not None and case.config.train.precision == "bf16"
    speed = case.machine.probes["matmul"].bf16_speed if "matmul" in case.machine.probes else None
    if speed is not None and speed < 1:
        tell = warn if wanted else info
        yield tell(
            f"a bf16 matrix product runs at {speed:.2f} times the speed of fp32 here: it saves memory, not time",
            "train.precision=fp32 where memory allows",
        )
    rates = case.machine.probes["writing"].rates if "writing" in case.machine.probes else {}
    for place, rate in rates.items():
        if rate < _SLOW_BYTES_PER_SECOND:
            yield warn(f"{place} takes {rate / 2**20:.1f} MiB a second: checkpoints will take long", "choose another place with --run DIR")


CARD = Check(
    title="A probe failed",
    why=(
        "The doctor multiplies matrices and computes attention on the device, forward and backward, and compares with fp64. A machine that "
        "gets this wrong, crashes or hangs will do so in training."
    ),
    source=["https://pytorch.org/docs/stable/notes/numerical_accuracy.html", "https://github.com/ROCm/rocm-libraries/issues/5706"],
    hits=[
        {"probes": {"matmul": {"outcome": "wrong", "detail": "float32 8x412x896: relative error 0.7"}}},
        {"probes": {"attention": {"outcome": "crashed", "detail": "killed by SIGSEGV"}}},
        {"probes": {"matmul": {"outcome": "ok", "bf16_speed": 0.4}}},
        {"probes": {"collective": {"outcome": "wrong", "detail": "copies between GPUs change what they copy: 0 to 1"}}},
        {"probes": {"quantised": {"outcome": "error", "detail": "RuntimeError: Configured ROCm binary not found"}}},
        {"probes": {"writing": {"outcome": "ok", "bytes_per_second": {"/data": 1000000}}}},
    ],
    misses=[
        {"probes": {"matmul": {"outcome": "ok", "bf16_speed": 1.9}, "writing": {"outcome": "ok", "bytes_per_second": {"/data": 1 << 30}}}},
        {"probes": {"collective": {"outcome": "absent", "detail": "fewer than two GPUs"}}},
        {"probes": {}},
        {"probes": {"matmul": {"outcome": 7}}},
    ],
    look=look,
)
