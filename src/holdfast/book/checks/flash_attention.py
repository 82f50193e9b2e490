"""The flash-attn package has kernels for the GPU."""

from collections.abc import Iterator

from holdfast.book.kinds.check import Case, Check, info, warn
from holdfast.book.knowledge import capability
from holdfast.run.types import Finding


def look(case: Case) -> Iterator[Finding]:
    installed = case.machine.package("flash-attn")
    triton = case.machine.env.get("FLASH_ATTENTION_TRITON_AMD_ENABLE", "").upper() == "TRUE"
    for gpu in case.one_of_each if installed else ():
        if gpu.vendor == "nvidia" and (0, 0) < capability(gpu.arch) < (8, 0):
            yield warn(
                f"flash-attn {installed} needs Ampere (sm_80) or newer, this is {gpu.words()}",
                "train.attention=sdpa (the default) needs no flash-attn: pip uninstall flash-attn",
            )
        elif gpu.vendor == "nvidia" and capability(gpu.arch) >= (10, 0):
            yield info(
                f"flash-attn {installed} has code for {gpu.words()} only where it was compiled with CUDA 12.8 or newer",
                "on 'no kernel image': FLASH_ATTENTION_FORCE_BUILD=TRUE pip install --no-deps --no-build-isolation --force-reinstall "
                "flash-attn (with nvcc of 12.8 or newer), or pip uninstall flash-attn",
                _BLACKWELL,
            )
        elif gpu.vendor == "amd" and gpu.arch not in ("gfx90a", "gfx942", "gfx950") and not triton:
            message = f"the compiled kernels of flash-attn {installed} are for gfx90a, gfx942 and gfx950, this is {gpu.words()}"
            yield warn(message, "pip uninstall flash-attn, or choose its Triton kernels: export FLASH_ATTENTION_TRITON_AMD_ENABLE=TRUE")


_BLACKWELL = "https://github.com/ostris/ai-toolkit/issues/475"
CARD = Check(
    title="flash-attn has no kernels for the GPU",
    why=(
        "The package is compiled for a few architectures and is used by libraries as soon as it is importable. On "
        "other cards it fails in the first attention layer."
    ),
    source=[
        "https://github.com/Dao-AILab/flash-attention/blob/v2.8.3/setup.py",
        "https://github.com/Dao-AILab/flash-attention/issues/1499",
    ],
    hits=[
        {"gpus": [{"arch": "sm_75"}], "packages": {"flash-attn": "2.8.3"}},
        {"gpus": [{"arch": "gfx1100"}], "packages": {"flash-attn": "2.8.3"}},
        {"gpus": [{"arch": "sm_120"}], "packages": {"flash-attn": "2.8.3"}},
    ],
    misses=[
        {"gpus": [{"arch": "sm_86"}], "packages": {"flash-attn": "2.8.3"}},
        {"gpus": [{"arch": "gfx1100"}], "packages": {"flash-attn": "2.8.3"}, "env": {"FLASH_ATTENTION_TRITON_AMD_ENABLE": "TRUE"}},
        {"gpus": [{"arch": "sm_75"}], "packages": {"flash-attn": None}},
    ],
    look=look,
)
