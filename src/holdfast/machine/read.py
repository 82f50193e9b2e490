"""Read the facts of this machine, or of a recorded one, in the form of a machine file. Judges none of them; book/checks/ does."""

from __future__ import annotations

import importlib.metadata
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from holdfast.base.files import Json
from holdfast.base.versions import __version__
from holdfast.machine.gpus import read_drivers, read_gpus
from holdfast.machine.place import Place
from holdfast.machine.system import read_system
from holdfast.machine.torch_build import read_torch
from holdfast.machine.vendor_tools import DEADLINE_S, ask_libraries, ask_tools

_PACKAGES = (
    *("torch", "transformers", "peft", "accelerate", "safetensors", "tokenizers", "numpy", "bitsandbytes", "flash-attn", "xformers"),
    *(
        "torchao",
        "torchtune",
        "amdsmi",
        "triton",
        "triton-rocm",
        "pytorch-triton-rocm",
        "rocm-sdk-core",
        "rocm-sdk-libraries",
        "deepspeed",
        "liger-kernel",
        "trl",
        "torch-c-dlpack-ext",
    ),
)
_FOR_ONE_GPU = ("rocm-sdk-device-", "amd-torch-device-")


def read_machine(run: Path | None = None, ask_torch: bool = True, place: Place | None = None, tool_deadline_s: float = DEADLINE_S) -> Json:
    """Read the facts in the form of a machine file. A fact that cannot be read is null.

    `run`: the folder whose disk counts; `ask_torch`: import torch in a child, where no earlier answer is kept; `place`: a recorded tree.
    """
    place = place or Place()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(read_torch, ask_torch) if place.real else None
        states, told = ask_tools(place, tool_deadline_s)
        states |= ask_libraries(tool_deadline_s) if place.real else {}
        facts = read_system(place, run) | read_drivers(place, told)
        torch = asked.result() if asked else {}
    own = {"packages": read_packages(), "holdfast": __version__} if place.real else {"packages": {}}
    return {**facts, "gpus": read_gpus(place, told), **own, "tools": states, **torch}


def read_packages() -> dict[str, str | None]:
    """Read the versions of packages that training meets, None where one is not installed; packages of one GPU's kernels where they are."""
    named: dict[str, str | None] = {name: _version(name) for name in _PACKAGES}
    if named["rocm-sdk-core"] is None:
        return named
    return named | {name: version for name, version in installed().items() if name.startswith(_FOR_ONE_GPU)}


def installed() -> dict[str, str]:
    """Return version by name, in small letters, of every package this Python would import. What has no name is left out."""
    described = (found.metadata for found in importlib.metadata.distributions())  # parsed at each `.name` and `.version`: asked for once
    return {about["Name"].lower(): about["Version"] for about in described if about["Name"]}


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
