"""One Triton is installed, and the one that belongs to this torch."""

from collections.abc import Iterator

from holdfast.base.versions import within
from holdfast.book.kinds.check import Case, Check, warn
from holdfast.run.types import Finding


def look(case: Case) -> Iterator[Finding]:
    torch = case.machine.torch
    installed = list(case.machine.tritons())
    if torch is None or torch.vendor is None or not installed:
        return
    right = _right(torch.version) if torch.vendor == "amd" and "+rocm" in torch.version else "triton"
    if len(installed) > 1:
        wrong = [name for name in installed if name != right] or installed[1:]
        message = (
            f"{' and '.join(installed)} are installed together and overwrite each other's files: torch.compile fails or uses the wrong one"
        )
        yield warn(message, f"pip uninstall {' '.join(wrong)}; then install {right} again from where torch came from, with --no-deps")
    elif installed[0] == "triton" and right != "triton" and within(torch.version, ">=2.0"):
        message = f"torch {torch.version} of pytorch.org uses {right}, but triton (for NVIDIA, or AMD's own) is installed"
        yield warn(
            message,
            f"only if torch.compile fails: replace it by {right} from the index torch came from, with --no-deps",
            standing="reported",
        )


def _right(torch: str) -> str:
    return "triton-rocm" if within(torch, ">=2.10") else "pytorch-triton-rocm"


CARD = Check(
    title="Triton under several names",
    why=(
        "The ROCm build of Triton has been called pytorch-triton-rocm, then triton-rocm, and all of them install "
        "the same folder. The one installed last wins, piece by piece."
    ),
    source=["https://github.com/invoke-ai/InvokeAI/issues/9297", "https://github.com/pytorch/pytorch/blob/v2.9.1/RELEASE.md"],
    hits=[
        {"torch": {"version": "2.9.1+rocm6.4"}, "packages": {"triton": "3.5.1", "pytorch-triton-rocm": "3.5.1"}},
        {"torch": {"version": "2.10.0+rocm7.1"}, "packages": {"triton": "3.6.0"}},
    ],
    misses=[
        {"torch": {"version": "2.10.0+rocm7.1"}, "packages": {"triton-rocm": "3.6.0", "triton": None}},
        {"torch": {"version": "2.10.0+cu128"}, "packages": {"triton": "3.6.0"}},
        {"torch": {"version": "2.13.0+cpu"}, "packages": {"triton": "3.6.0", "triton-rocm": "3.6.0"}},
    ],
    look=look,
)
