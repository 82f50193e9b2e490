"""What the installed torch is: from its files, which costs nothing, and from torch in a child with a deadline, whose answer is kept."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib.util
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import orjson

from holdfast.base.cache import cache_folder, read_kept, write_kept
from holdfast.base.child import trainer_command
from holdfast.base.files import Json
from holdfast.base.identity import boot_id

_DEADLINE_S = 120
_NODES = ("nvidia[0-9]*", "nvidiactl", "nvidia-caps/*", "kfd", "dri/renderD*", "dxg")
_CAPABILITIES = Path("/proc/driver/nvidia/capabilities")


def read_torch(ask: bool) -> Json:
    """Return {torch: build or null, torch_error?: why it cannot be imported}. `ask`: import it in a child, if no earlier answer is kept."""
    build = torch_files(_torch_folder())
    if build is None:
        return {"torch": None}
    kept = _kept_answer(str(build["version"]))
    answer = read_kept(kept)
    if answer is None and ask:
        answer = _ask_now()
        if _holds_until_reboot(answer, build):
            write_kept(kept, answer, durable=False)
    answer = answer or {}
    return {**answer, "torch": build | answer.get("torch", {})}


def _holds_until_reboot(answer: Json, build: Json) -> bool:
    """Return whether an answer may be kept: no answer that a container without its card, or a driver not loaded yet, would give as well."""
    return bool(answer.get("torch", {}).get("devices")) or ("torch" in answer and not (build["cuda"] or build["hip"]))


def _torch_folder() -> Path | None:
    try:
        found = importlib.util.find_spec("torch")
    except (ImportError, ValueError):
        return None
    return Path(found.origin).parent if found and found.origin else None


def torch_files(folder: Path | None) -> Json | None:
    """Read version, HIP and CUDA of a torch folder, and for ROCm the architectures its rocBLAS has files for; None when it is none."""
    if folder is None:
        return None
    try:
        tree = ast.parse((folder / "version.py").read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return None
    values: Json = {}
    for node in tree.body:
        target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0] if isinstance(node, ast.Assign) else None
        value = node.value if isinstance(node, (ast.AnnAssign, ast.Assign)) else None
        if isinstance(target, ast.Name) and isinstance(value, ast.Constant):
            values[target.id] = value.value
    if not isinstance(values.get("__version__"), str):
        return None
    build = {"version": values["__version__"], "hip": values.get("hip"), "cuda": values.get("cuda")}
    return build | ({"blas_archs": _blas_archs(folder)} if build["hip"] else {})


def _blas_archs(folder: Path) -> list[str] | None:
    """List the architectures of the wheel's own rocBLAS, or of AMD's ROCm packages beside it; None when neither is there."""
    places = [folder / "lib" / "rocblas" / "library", *folder.parent.glob("_rocm_sdk_*/lib/rocblas/library")]
    names = [file.name for place in places if place.is_dir() for file in place.iterdir()]
    return sorted({match for name in names for match in re.findall(r"gfx[0-9a-f]+", name)}) if names else None


def _kept_answer(version: str) -> Path | None:
    devices = {name: value for name, value in os.environ.items() if name.startswith(("CUDA_", "HIP_", "ROCR_", "HSA_", "GPU_"))}
    key = repr((5, sys.executable, version, boot_id(), sorted(devices.items()), device_nodes(Path("/dev")), mig_slices(), _limits()))
    folder = cache_folder(os.environ)
    return folder / f"torch-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json" if folder else None


def _limits() -> list[tuple[int, int]]:
    """Return the limits of this process under which torch may have no memory to be imported: of addresses, and of data."""
    return [resource.getrlimit(limit) for limit in (resource.RLIMIT_AS, resource.RLIMIT_DATA)]


def device_nodes(folder: Path) -> list[tuple[str, int]]:
    """Name and inode of each node a GPU is reached by: another card, or the same one after its driver was loaded anew, has others."""
    nodes = sorted(node for pattern in _NODES for node in folder.glob(pattern))
    return [(str(node), node.stat().st_ino) for node in nodes if node.exists()]


def mig_slices(folder: Path = _CAPABILITIES) -> list[str]:
    """List the parts that NVIDIA cards are divided into (MIG), which come and go without a reboot and leave the cards' own nodes alone."""
    return sorted(str(part.relative_to(folder)) for part in folder.glob("gpu*/mig/gi*/ci*"))


def _ask_now() -> Json:
    try:
        done = subprocess.run(trainer_command("probe"), capture_output=True, timeout=_DEADLINE_S, check=False)
    except subprocess.TimeoutExpired:
        return {"torch_error": f"importing torch took longer than {_DEADLINE_S} s"}
    if done.returncode == 0:
        with contextlib.suppress(orjson.JSONDecodeError):
            return {"torch": orjson.loads(done.stdout.splitlines()[-1])}
    last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
    return {"torch_error": last[0]}
