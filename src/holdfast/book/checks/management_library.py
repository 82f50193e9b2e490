"""A vendor's management library that hangs or crashes in being imported."""

from collections.abc import Iterator

from holdfast.book.kinds.check import Case, Check, warn
from holdfast.run.types import Finding

_PACKAGES = {"amdsmi": "amdsmi", "pynvml": "nvidia-ml-py"}


def look(case: Case) -> Iterator[Finding]:
    for name, state in case.machine.tools.items():
        library = name.removeprefix("import ")
        if library == name or state == "ok":
            continue
        what = "hangs" if state == "hanging" else f"ends Python ({state.removeprefix('failed: ')})"
        text = f"importing {library} {what}; torch does that wherever it is installed. holdfast's trainer keeps it out"
        yield warn(text, f"pip uninstall {_PACKAGES.get(library, library)}, or a version that fits the driver")


CARD = Check(
    title="A management library cannot be imported",
    why=(
        "torch.cuda imports amdsmi (ROCm) or pynvml (CUDA) where it finds them, before anything is trained. "
        "Their native code opens the driver; where the two do not fit, the import waits for ever or kills the process."
    ),
    source=["https://github.com/ROCm/amdsmi/issues/72", "https://github.com/pytorch/pytorch/blob/v2.13.0/torch/cuda/__init__.py"],
    hits=[{"tools": {"import amdsmi": "hanging"}}, {"tools": {"import pynvml": "failed: killed by SIGSEGV"}}],
    misses=[{"tools": {"import pynvml": "ok"}}, {"tools": {"rocminfo": "hanging"}}],
    look=look,
)
