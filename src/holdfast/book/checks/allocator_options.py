"""The allocator's options stand under a name that this torch reads, and it can do what they ask."""

import difflib
from collections.abc import Iterator

from holdfast.base.versions import within
from holdfast.book.kinds.check import Case, Check, info, warn
from holdfast.run.types import Finding

_NAMES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


def look(case: Case) -> Iterator[Finding]:
    torch, env = case.machine.torch, case.machine.env
    given = {name: env[name] for name in _NAMES if env.get(name)}
    if torch is None or torch.backend is None or not given:
        return
    if torch.backend == "cpu":
        yield info(f"{' and '.join(given)}: a torch for the CPU reads none of them", f"unset {' '.join(given)}", _READER, "refuted")
        return
    read = names_read(torch.version, torch.backend == "rocm")
    used = next((name for name in read if name in given), None)
    for name, value in given.items():
        if name not in read:
            yield warn(
                f"{name} is not read by torch {torch.version}: {value!r} has no effect",
                f"export {read[0]}='{value}'; unset {name}",
                _READER,
            )
        elif name != used:
            yield warn(f"{used} wins over {name} in torch {torch.version}: {value!r} has no effect", f"unset {name}", _READER)
    if used:
        chosen = options(given[used])
        yield from _refused(used, chosen)
        yield from _expandable(case, used, chosen)


def names_read(torch: str, rocm: bool) -> tuple[str, ...]:
    """Return the names the GPU memory allocator looks at, the one that wins first."""
    if rocm and within(torch, "<2.8"):
        return ("PYTORCH_HIP_ALLOC_CONF",)
    names = ("PYTORCH_CUDA_ALLOC_CONF", *(("PYTORCH_HIP_ALLOC_CONF",) if rocm else ()))
    return names if within(torch, "<2.10") else (*names, "PYTORCH_ALLOC_CONF")


def options(text: str) -> dict[str, str]:
    return {name.strip(): value.strip() for name, _, value in (part.partition(":") for part in text.split(",")) if name.strip()}


def _refused(name: str, chosen: dict[str, str]) -> Iterator[Finding]:
    """Yield what torch stops at when it first allocates: a small split size, and options that are nearly one of its own."""
    split = chosen.get("max_split_size_mb", "")
    if split.isdigit() and int(split) <= _SMALLEST_SPLIT:
        message = f"{name}: max_split_size_mb:{split} is refused by torch: it must be more than {_SMALLEST_SPLIT}"
        yield warn(message, f"raise it in {name}, or leave it out", _READER)
    for option in chosen:
        meant = difflib.get_close_matches(option.partition("=")[0], _OPTIONS, 1, 0.85)
        if meant and option not in _OPTIONS:
            yield warn(f"{name}: torch knows no option {option!r} and stops at it", f"did you mean {meant[0]}:VALUE in {name}?", _READER)


def _expandable(case: Case, name: str, chosen: dict[str, str]) -> Iterator[Finding]:
    torch = case.machine.torch
    if torch is None or chosen.get("expandable_segments", "").lower() != "true":
        return
    active = torch.backend == "cuda" or (within(torch.version, ">=2.12") and within(torch.rocm, ">=7.0"))
    rest = ",".join(f"{key}:{value}" for key, value in chosen.items() if key != "expandable_segments")
    without = f"export {name}='{rest}'" if rest else f"unset {name}"
    if torch.backend == "rocm" and not active:
        message = (
            f"expandable_segments:True is compiled out of torch {torch.version} for ROCm: a warning and no effect, "
            "although the out-of-memory text advises it"
        )
        yield warn(message, without, _OUT, "refuted")
    elif torch.backend == "rocm":
        message = (
            "expandable_segments:True on ROCm is active here, and NaN in bf16 (gfx1201), a hang and zeroed memory are on record with it"
        )
        yield warn(message, f"{without}; use it only where memory is lost to fragmentation", _NAN, "reported")
    elif case.machine.wsl:
        yield warn("expandable_segments:True under WSL: the first allocation was seen to fail in the driver", without, _WSL, "reported")
    if active and "max_split_size_mb" in chosen:
        message = "max_split_size_mb beside expandable_segments keeps large free blocks unused: reserved memory was seen to fill the card"
        yield warn(message, "leave max_split_size_mb out", _SPLIT, "reported")


_SMALLEST_SPLIT = 20  # mebibytes
_OPTIONS = ("max_split_size_mb", "garbage_collection_threshold", "expandable_segments", "roundup_power2_divisions", "backend")
_READER = "https://github.com/pytorch/pytorch/blob/v2.13.0/c10/cuda/CUDAAllocatorConfig.h"
_OUT = "https://github.com/pytorch/pytorch/blob/v2.11.0/c10/cuda/CUDAAllocatorConfig.h"
_NAN = "https://github.com/pytorch/pytorch/issues/195202"
_WSL = "https://github.com/pytorch/pytorch/issues/192330"
_SPLIT = "https://github.com/pytorch/pytorch/issues/123548"
_CONF = "expandable_segments:True,max_split_size_mb:256"
CARD = Check(
    title="Options of torch's allocator",
    why=(
        "Which variable is read changed three times, and expandable_segments is compiled out of ROCm builds "
        "before torch 2.12. Options under an unread name do nothing, silently."
    ),
    source=[_READER, _OUT],
    hits=[
        {"torch": {"version": "2.9.1+cu128"}, "env": {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:20"}},
        {"torch": {"version": "2.9.1+cu128"}, "env": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segment:True"}},
        {"torch": {"version": "2.9.1+cu128"}, "env": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments=True"}},
        {"torch": {"version": "2.5.1+rocm6.2"}, "env": {"PYTORCH_HIP_ALLOC_CONF": _CONF}},
        {"torch": {"version": "2.7.1+rocm6.3"}, "env": {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:512"}},
        {"torch": {"version": "2.9.1+rocm6.4"}, "env": {"PYTORCH_ALLOC_CONF": "max_split_size_mb:512"}},
        {"torch": {"version": "2.13.0+rocm7.2"}, "env": {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}},
        {"torch": {"version": "2.9.1+cu128"}, "env": {"PYTORCH_CUDA_ALLOC_CONF": _CONF}},
    ],
    misses=[
        {
            "torch": {"version": "2.9.1+cu128"},
            "env": {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:21,roundup_power2_divisions:[256:1,512:2]"},
        },
        {"torch": {"version": "2.9.1+cu128"}, "env": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}},
        {"torch": {"version": "2.7.1+rocm6.3"}, "env": {"PYTORCH_HIP_ALLOC_CONF": "max_split_size_mb:512"}},
        {"torch": {"version": "2.13.0+rocm7.2"}, "env": {"PYTORCH_ALLOC_CONF": "max_split_size_mb:512"}},
    ],
    look=look,
)
