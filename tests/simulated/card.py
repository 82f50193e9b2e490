"""Build the simulated card and give it to processes: `holdfast("train", config, env=card.environment(limit=...))`. Tests nothing."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from support import forked

_HERE = Path(__file__).parent
_SOURCE = _HERE / "card.cpp"
_COMPILER = shutil.which("g++") or shutil.which("c++")


def _why_not() -> str:
    if sys.platform != "linux":
        return "the simulated card needs Linux"
    if "cuda" in version("torch") or "+cu" in version("torch") or "+rocm" in version("torch"):
        return "this torch has CUDA kernels of its own: the simulated card needs the CPU build"
    return "" if _COMPILER else "no C++ compiler (g++) to build the simulated card with"


needed = pytest.mark.skipif(bool(_why_not()), reason=_why_not() or "there is one")


def library() -> Path:
    """The compiled card, built once per torch version and source; some 20 s of CPU the first time."""
    found = find_spec("torch")
    assert found is not None and found.origin is not None
    torch = Path(found.origin).parent
    key = hashlib.sha256(_SOURCE.read_bytes() + str(torch).encode()).hexdigest()[:12]
    folder = _HERE / "build"
    built = folder / f"card-{version('torch')}-{key}.so"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built.exists():
            _compile(torch, built)
    return built


def _compile(torch: Path, built: Path) -> None:
    assert _COMPILER is not None
    include = torch / "include"
    places = [f"-I{include}", f"-I{include / 'torch/csrc/api/include'}", f"-L{torch / 'lib'}", f"-Wl,-rpath,{torch / 'lib'}"]
    part = built.with_suffix(".part")
    command = [_COMPILER, "-O0", "-std=c++20", "-shared", "-fPIC", str(_SOURCE), "-o", str(part), *places, "-lc10", "-ltorch_cpu"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    part.rename(built)


def environment(total: int = 8 << 30, devices: int = 1, arch: tuple[int, int] = (9, 0), **options: Any) -> dict[str, str]:
    """What to add to a command's environment so that its trainers see a card.

    total: bytes it says it has; limit: bytes it really gives; bytes_per_s: of copies to the host beside the step; gone_after, back_from:
    attempts after which there is no card, and from which there is one again; hip: a Radeon of that architecture; integrated; late: faults
    that raise are errors of the device, heard of when the host next waits for it; ledger: a file in which the memory of all processes is
    counted, that of a dead one for release_s more; everywhere: every Python process sees it; bitsandbytes: it can quantise there.
    """
    chosen = {"library": str(library()), "total": total, "devices": devices, "arch": arch}
    options = {name: str(value) if isinstance(value, Path) else value for name, value in options.items()}
    paths = [str(_HERE / "site"), *filter(None, [os.environ.get("PYTHONPATH")])]
    told = json.dumps(chosen | options)
    seen = (
        {"HOLDFAST_CACHE": str(Path(cache, hashlib.sha256(told.encode()).hexdigest()[:12]))}
        if (cache := os.environ.get("HOLDFAST_CACHE"))
        else {}
    )
    return {"SIMULATED_CARD": told, "PYTHONPATH": os.pathsep.join(paths)} | seen  # what a probe saw here is kept from other tests


def run(file: Path | str, *arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a Python file that sees the card from its first line; tests' modules can be imported in it."""
    given = environment(everywhere=True, **options)
    given["PYTHONPATH"] = os.pathsep.join([given["PYTHONPATH"], str(_HERE.parent), str(_HERE)])
    command = [sys.executable, str(file), *map(str, arguments)]
    env = os.environ | given | {forked.FORK: ""}
    return subprocess.run(command, capture_output=True, text=True, env=env, stdin=subprocess.DEVNULL, check=False)
