"""Torch, when asked, saw the GPUs that are there."""

from collections.abc import Iterator

from holdfast.book.kinds.check import Case, Check, block
from holdfast.run.types import Finding


def look(case: Case) -> Iterator[Finding]:
    torch = case.machine.torch
    if torch is None or torch.vendor is None or torch.devices is None or torch.devices:
        return
    cards = [gpu for gpu in case.visible if not gpu.integrated and (gpu.arch or gpu.vendor == "nvidia")]
    if cards:
        tool = "rocminfo" if torch.vendor == "amd" else "nvidia-smi"
        fix = f"mend the other findings on drivers, device files and packages first; then compare with `{tool}`"
        yield block(f"the machine has {cards[0].words()}, but torch {torch.version} sees no GPU", fix)


CARD = Check(
    title="Torch sees no GPU although one is there",
    why=(
        "The card is on the bus, but the runtime that torch uses cannot open it. Permissions, a driver that does "
        "not fit or a clashing package are behind it."
    ),
    source=["https://github.com/ROCm/legacy-rocm-build/issues/3072"],
    hits=[{"torch": {"version": "2.9.1+rocm6.4", "devices": []}, "gpus": [{"vendor": "amd", "arch": "gfx1100"}]}],
    misses=[
        {"torch": {"version": "2.9.1+rocm6.4", "devices": [{"arch": "gfx1100"}]}, "gpus": [{"vendor": "amd", "arch": "gfx1100"}]},
        {
            "torch": {"version": "2.9.1+rocm6.4", "devices": []},
            "gpus": [{"vendor": "amd", "arch": "gfx1100"}],
            "env": {"HIP_VISIBLE_DEVICES": "-1"},
        },
        {"torch": {"version": "2.9.1+rocm6.4"}, "gpus": [{"vendor": "amd", "arch": "gfx1100"}]},
    ],
    look=look,
)
