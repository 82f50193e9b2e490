"""Bitsandbytes has a library for torch's ROCm or CUDA, and code for the GPU in it."""

from collections.abc import Iterator

from holdfast.base.versions import within
from holdfast.book.kinds.check import Case, Check, block, warn
from holdfast.book.knowledge import WHEELS, bitsandbytes_library, bitsandbytes_serving, has_code, lacks_code, running_as, toolkit
from holdfast.machine.facts import Gpu
from holdfast.run.types import Finding


def look(case: Case) -> Iterator[Finding]:
    torch, installed = case.machine.torch, case.machine.package("bitsandbytes")
    found = bitsandbytes_library(torch, installed) if torch and installed else None
    if not torch or not installed or found is None:
        return
    probe = case.machine.probes.get("quantised")
    tried = probe is not None and probe.outcome == "ok"  # built from source, it has what no wheel has
    tell = block if case.config and case.config.train.wants_bitsandbytes and not tried else warn
    for gpu in case.one_of_each:
        arch, named = running_as(gpu, case.machine.env), f"bitsandbytes {installed}"
        if lacks_code(torch, arch):
            continue  # another torch is needed first: gpu-arch
        kind = f"{'ROCm' if torch.vendor == 'amd' else 'CUDA'} {toolkit(torch)}"
        if not found["made"]:
            yield tell(f"{named} has no library for {kind.split()[0]} at all: 4-bit and 8-bit fail", _fix(case, gpu), found["source"])
        elif found["library"] is None:
            made = ", ".join(found["made"])
            message = f"{named} has libraries for {kind.split()[0]} {made} and none for the {kind} of torch: 4-bit and 8-bit fail"
            yield tell(message, _fix(case, gpu), found["source"])
        elif not has_code(arch, found["archs"]):
            message = (
                f"what {named} loads under {kind} (its library for {found['library']}) has no code for {gpu.words()}: 4-bit and 8-bit fail"
            )
            yield tell(message, _fix(case, gpu), found["source"])
        elif arch in _WIDE and within(installed, "<0.49.2"):
            message = f"{named} cannot read 4-bit weights of block size 64 on {gpu.words()}, whose wavefronts are 64 wide"
            yield tell(message, "pip install --no-deps -U 'bitsandbytes>=0.49.2'", _BLOCKS)
        elif arch == "gfx1100" and found["library"] == "6.4" and within(installed, ">=0.50"):
            message = (
                f"the library for ROCm 6.4 in {named} gave wrong 4-bit products of up to 8 rows on gfx1100 (generation, not training), "
                "without an error; built from source it was right"
            )
            fix = f"holdfast doctor tries it on the machine itself; where it says wrong: torch 2.11 or newer of {WHEELS}/rocm7.2"
            yield warn(message, fix, _WRONG, "reported")


def _fix(case: Case, gpu: Gpu) -> str:
    torch = case.machine.torch
    arch = running_as(gpu, case.machine.env)
    served = bitsandbytes_serving(torch, arch) if torch else None
    build = f"build it from source for {arch}; 16-bit LoRA needs none of it"
    return f"pip install --no-deps 'bitsandbytes{served}', or {build}" if served else build


_WIDE = ("gfx908", "gfx90a", "gfx942", "gfx950")
_BLOCKS = "https://github.com/unslothai/unsloth/issues/4161"
_WRONG = "https://github.com/bitsandbytes-foundation/bitsandbytes/issues/2087"
CARD = Check(
    title="bitsandbytes has no kernels for this GPU",
    why=(
        "Its wheels hold one library for each of some ROCm and CUDA versions, with code for a list of architectures each. The package "
        "imports without them and fails when a 4-bit layer runs."
    ),
    source=["https://github.com/bitsandbytes-foundation/bitsandbytes/pull/2046", "https://pypi.org/project/bitsandbytes/"],
    hits=[
        {"torch": {"version": "2.9.1+rocm6.3"}, "gpus": [{"arch": "gfx906"}], "packages": {"bitsandbytes": "0.50.2"}},
        {"torch": {"version": "2.9.1+rocm6.4"}, "gpus": [{"arch": "gfx1100"}], "packages": {"bitsandbytes": "0.47.0"}},
        {"torch": {"version": "2.9.1+rocm6.4"}, "gpus": [{"arch": "gfx90a"}], "packages": {"bitsandbytes": "0.49.0"}},
        {"torch": {"version": "2.14.0+rocm7.14"}, "gpus": [{"arch": "gfx1201"}], "packages": {"bitsandbytes": "0.49.2"}},
        {"torch": {"version": "2.9.1+rocm6.4"}, "gpus": [{"arch": "gfx1030"}], "packages": {"bitsandbytes": "0.50.1"}},
        {"torch": {"version": "2.9.1+rocm6.4"}, "gpus": [{"arch": "gfx1100"}], "packages": {"bitsandbytes": "0.50.2"}},
        {"torch": {"version": "2.11.0+cu130"}, "gpus": [{"arch": "sm_89"}], "packages": {"bitsandbytes": "0.47.0"}},
        {"torch": {"version": "2.13.0+cu132"}, "gpus": [{"arch": "sm_120"}], "packages": {"bitsandbytes": "0.49.2"}},
        {"torch": {"version": "2.9.1+cu126"}, "gpus": [{"arch": "sm_52"}], "packages": {"bitsandbytes": "0.49.2"}},
    ],
    misses=[
        {"torch": {"version": "2.9.1+rocm6.4"}, "gpus": [{"arch": "gfx1100"}], "packages": {"bitsandbytes": "0.49.2"}},
        {"torch": {"version": "2.9.1+cu128"}, "gpus": [{"arch": "sm_90"}], "packages": {"bitsandbytes": "0.47.0"}},
        {"torch": {"version": "2.9.1+rocm6.3"}, "gpus": [{"arch": "gfx1101"}], "packages": {"bitsandbytes": "0.50.2"}},
        {"torch": {"version": "2.14.1+cu134"}, "gpus": [{"arch": "sm_89"}], "packages": {"bitsandbytes": "0.50.2"}},
        {"torch": {"version": "2.14.1+cu134"}, "gpus": [{"arch": "sm_89"}], "packages": {"bitsandbytes": "0.46.0"}},
        {"torch": {"version": "2.13.0+cu130"}, "gpus": [{"arch": "sm_61"}], "packages": {"bitsandbytes": "0.50.2"}},
        {
            "torch": {"version": "2.9.1+rocm6.4"},
            "gpus": [{"arch": "gfx1031"}],
            "packages": {"bitsandbytes": "0.50.2"},
            "env": {"HSA_OVERRIDE_GFX_VERSION": "10.3.0"},
        },
    ],
    look=look,
)
