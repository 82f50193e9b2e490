"""A base model that is one GGUF file: widened once, into a folder in Hugging Face layout in the cache. Loads no weights itself."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from holdfast.base.cache import cache_folder
from holdfast.base.child import trainer_command
from holdfast.base.errors import BLOCKED, Stop
from holdfast.base.file_errors import at_place
from holdfast.base.files import read_json
from holdfast.base.locks import hold
from holdfast.base.safe_open import open_regular

REFUSED = "refused.json"  # what the child leaves in its folder where it cannot
_SAMPLES, _SAMPLE_BYTES = 64, 1 << 16
_MAGIC, _POINTER = b"GGUF", b"vers"  # how a GGUF file begins, and a pointer of Git LFS
_SIXTEEN = "give the model's folder in Hugging Face layout"


def is_gguf(model: str) -> bool:
    """True if a model's name is that of a GGUF file."""
    return model.lower().endswith(".gguf")


def widened_folder(file: Path) -> Path:
    """Return the folder with the model of a GGUF file in 16 or 32 bits, made if it is not there. Raises Stop(1) where it cannot be made.

    It goes by what the file holds, not by where it lies: the same file in another place is not widened again.
    """
    key = _content(file)
    cache = cache_folder(os.environ)
    if cache is None:
        raise Stop(BLOCKED, f"{file} has to be widened, and there is no folder to keep that in", "set HOLDFAST_CACHE to one")
    folder = cache / "widened" / f"{file.stem}-{key}"
    if (folder / "config.json").exists():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with hold(folder.with_name(f"{folder.name}.lock"), wait=True):
            if not (folder / "config.json").exists():
                _widen(file, folder)
    except OSError as error:
        raise at_place(error, folder, f"cannot take {file}, widened", "HOLDFAST_CACHE names another place") from None
    return folder


def _widen(file: Path, folder: Path) -> None:
    print(f"{file.name} is widened, once, into {folder}", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix=".widening-", dir=folder.parent, ignore_cleanup_errors=True) as place:
        made = Path(place) / "model"
        made.mkdir()
        ended = subprocess.run(trainer_command("widen", file, made), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        refused = read_json(made / REFUSED)
        if refused:
            raise Stop(BLOCKED, str(refused["message"]), str(refused["hint"]))
        if ended.returncode:
            last = (ended.stderr.strip().splitlines() or ["it printed nothing"])[-1]
            raise Stop(BLOCKED, f"{file} could not be widened: exit code {ended.returncode}: {last[:300]}", _SIXTEEN)
        shutil.rmtree(folder, ignore_errors=True)
        made.rename(folder)


def _content(file: Path) -> str:
    """Hash the file's size and samples spread over it (4 MiB in all), to tell it from others. Raises Stop(1) for no GGUF file."""
    try:
        with open_regular(file, most_bytes=1 << 62) as handle:
            size = os.fstat(handle.fileno()).st_size
            start = handle.read(len(_MAGIC))
            if start == _POINTER:
                raise Stop(BLOCKED, f"{file} is a pointer of Git LFS and not the weights", "fetch them with git lfs pull")
            if start != _MAGIC:
                raise Stop(BLOCKED, f"{file} is no GGUF file: it has {size:,} bytes and begins with {start!r}", "download it again")
            digest = hashlib.sha256(str(size).encode())
            for number in range(_SAMPLES):
                handle.seek(max(0, size - _SAMPLE_BYTES) * number // (_SAMPLES - 1))
                digest.update(handle.read(_SAMPLE_BYTES))
    except OSError as error:
        raise at_place(error, file, "cannot be read", "correct the path") from None
    return digest.hexdigest()[:16]
