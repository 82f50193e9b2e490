"""A base model that is one GGUF file: widened once, into a folder in Hugging Face layout in the cache. Loads no weights itself.

How a file is laid out: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from holdfast.base.cache import cache_folder
from holdfast.base.child import trainer_command
from holdfast.base.errors import BLOCKED, Stop
from holdfast.base.file_errors import at_place
from holdfast.base.files import read_json
from holdfast.base.locks import hold
from holdfast.base.safe_open import open_regular
from holdfast.base.versions import install

REFUSED = "refused.json"  # what the child leaves in its folder where it cannot
_SAMPLES, _SAMPLE_BYTES = 64, 1 << 16
_MAGIC, _POINTER = b"GGUF", b"vers"  # how a GGUF file begins, and a pointer of Git LFS
WHOLE_FOLDER = "give the model's folder in Hugging Face layout"
LOAD_AGAIN = "download it again"
_WORDS, _VOCABULARY = b"tokenizer.ggml.", "download it again, or convert it again with the tokenizer that its model was trained with"
_VALUES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "I", 7: "B", 10: "Q", 11: "q", 12: "Q"}  # struct's, as wide as the type
_TEXT, _LIST = 8, 9


class GgufTensor(NamedTuple):
    """A tensor as the head of a GGUF file describes it. kind: the number of its type; at: its first byte behind the head."""

    name: bytes
    kind: int
    shape: tuple[int, ...]
    at: int


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
    _refuse_torn(file)
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
            raise Stop(BLOCKED, f"{file} could not be widened: exit code {ended.returncode}: {last[:300]}", WHOLE_FOLDER)
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
                raise Stop(BLOCKED, f"{file} is no GGUF file: it has {size:,} bytes and begins with {start!r}", LOAD_AGAIN)
            digest = hashlib.sha256(str(size).encode())
            for number in range(_SAMPLES):
                handle.seek(max(0, size - _SAMPLE_BYTES) * number // (_SAMPLES - 1))
                digest.update(handle.read(_SAMPLE_BYTES))
    except OSError as error:
        raise at_place(error, file, "cannot be read", "correct the path") from None
    return digest.hexdigest()[:16]


class _Head:
    """Reads the head of a GGUF file, one thing after the other. Raises what struct raises where the file ends."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data, self.at = data, len(_MAGIC)

    def number(self, kind: str) -> int:
        (found,) = struct.unpack_from(f"<{kind}", self._data, self.at)
        self.at += struct.calcsize(f"<{kind}")
        return int(found)

    def text(self) -> bytes:
        size = self.number("Q")
        self.at += size
        return self._data[self.at - size : self.at]

    def value(self, kind: int) -> int | None:
        """Read a value; return it where it is a number, of a list how many it has, and pass over a text."""
        if kind == _TEXT:
            self.text()
        elif kind != _LIST:
            return self.number(_VALUES[kind])
        else:
            inner, count = self.number("I"), self.number("Q")
            if inner in _VALUES:
                self.at += count * struct.calcsize(f"<{_VALUES[inner]}")
            else:
                for _ in range(count):
                    self.value(inner)
            return count
        return None


def read_tensors(file: Path) -> tuple[list[GgufTensor], int]:
    """Return the tensors of a GGUF file, and where the first byte of their values is. Raises Stop(1) for what cannot be read."""
    return _read_head(file)[1:]


def _read_head(file: Path) -> tuple[dict[bytes, int | None], list[GgufTensor], int]:
    with file.open("rb") as handle, mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            head = _Head(data)
            if (version := head.number("I")) not in (2, 3):
                raise Stop(BLOCKED, f"{file} is a GGUF file of version {version}, and 2 and 3 are read", WHOLE_FOLDER)
            count, values = head.number("Q"), head.number("Q")
            told = {head.text(): head.value(head.number("I")) for _ in range(values)}
            tensors = [_tensor(head) for _ in range(count)]
        except (struct.error, KeyError, OverflowError, RecursionError):
            text = f"{file} is torn: its {len(data):,} bytes end before the list of its tensors does, or the list is damaged"
            raise Stop(BLOCKED, text, LOAD_AGAIN) from None
    if (parts := told.get(b"split.count") or 1) > 1:
        text = f"{file} is one of {parts} parts of a model"
        raise Stop(BLOCKED, text, "join them: llama-gguf-split --merge FIRST-PART OUT.gguf")
    whole = told.get(b"general.alignment") or 32
    return told, tensors, -(-head.at // whole) * whole


def _tensor(head: _Head) -> GgufTensor:
    name, shape = head.text(), tuple(head.number("Q") for _ in range(head.number("I")))
    return GgufTensor(name, head.number("I"), shape, head.number("Q"))


def _refuse_vocabulary(file: Path, told: Mapping[bytes, int | None], tensors: list[GgufTensor]) -> None:
    """Raise Stop(1) where a vocabulary is missing, or is not as long as the embedding and as what is told of its tokens."""
    rows = next((one.shape[-1] for one in tensors if one.shape and one.name == b"token_embd.weight"), None)
    count, scores, types, end = (told.get(_WORDS + name) for name in (b"tokens", b"scores", b"token_type", b"eos_token_id"))
    if rows is None:
        return
    if not count:
        raise Stop(BLOCKED, f"{file} has no vocabulary (tokenizer.ggml.tokens): it holds tensors alone", _VOCABULARY)
    wrong = [f"the embedding has {rows:,} rows"] if count != rows else []
    wrong += [f"{name} has {one:,}" for name, one in (("scores", scores), ("token_type", types)) if one not in (None, count)]
    wrong += [f"eos_token_id is {end:,}"] if end is not None and end >= count else []  # llama.cpp does without the others
    if wrong:
        text = f"{file}: its vocabulary is not its model's, or torn: it has {count:,} tokens, and {'; '.join(wrong)}"
        raise Stop(BLOCKED, text, _VOCABULARY)


def _refuse_torn(file: Path) -> None:
    """Raise Stop(1) where a file is shorter than its tensors: a download that broke off is told at once, and nothing is loaded."""
    try:
        from gguf import GGML_QUANT_SIZES
    except ImportError:
        text = f"{file} is a GGUF file, and the package gguf that reads it is not installed"
        raise Stop(BLOCKED, text, install("ship")) from None
    told, tensors, start = _read_head(file)
    if not sum(math.prod(one.shape) for one in tensors):
        raise Stop(BLOCKED, f"{file} holds no weights", WHOLE_FOLDER)
    needs = start
    for one in tensors:
        block, size = GGML_QUANT_SIZES.get(one.kind, (1, 0))  # of a type that is not known here: nothing
        needs = max(needs, start + one.at + math.prod(one.shape) // block * size)
    if (size := file.stat().st_size) < needs:
        raise Stop(BLOCKED, f"{file} is torn: it has {size:,} bytes, and its {len(tensors):,} tensors need {needs:,}", LOAD_AGAIN)
    _refuse_vocabulary(file, told, tensors)
