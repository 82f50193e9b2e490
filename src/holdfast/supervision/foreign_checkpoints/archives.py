"""Whether what torch.save wrote is whole, and what its pickle would call: the zip's checksums and a reader that executes nothing."""

from __future__ import annotations

import lzma
import os
import pickletools
import zipfile
import zlib
from pathlib import Path
from typing import BinaryIO

from holdfast.base.safe_open import open_regular
from holdfast.supervision.foreign_checkpoints.tensors import NotWhole

_MOST_PICKLE = 1 << 28
_MOST_TIMES = 20  # as many bytes as the file has may be in it
# what zipfile raises; RuntimeError where a part is encrypted
_NO_ZIP = (zipfile.BadZipFile, EOFError, NotImplementedError, ValueError, RuntimeError, zlib.error, lzma.LZMAError)
# what no checkpoint needs and a trap does
_MODULES = {
    "os",
    "posix",
    "nt",
    "subprocess",
    "sys",
    "shutil",
    "socket",
    "runpy",
    "importlib",
    "pty",
    "ctypes",
    "webbrowser",
    "code",
    "pdb",
}
_BUILTINS = {"eval", "exec", "compile", "open", "__import__", "input", "breakpoint"}
_STRINGS = ("SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "UNICODE", "STRING", "BINSTRING", "SHORT_BINSTRING")


def prove_archive(file: Path) -> None:
    """Raise NotWhole where a file of torch.save is torn, or its pickle names what no checkpoint needs."""
    try:
        with open_regular(file) as handle:
            begins = handle.read(2)
            handle.seek(0)
            if not begins:
                raise NotWhole(f"{file.name} is empty")
            if begins == b"PK":
                _prove_zip(file.name, handle)
            elif begins[:1] == b"\x80":  # torch before 1.6
                prove_pickle(file.name, handle.read(_MOST_PICKLE))
            else:
                raise NotWhole(f"{file.name} is damaged: it is neither an archive nor a pickle")
    except OSError as error:
        raise NotWhole(f"{file.name} cannot be read: {error.strerror or error}") from None


def _prove_zip(file: str, handle: BinaryIO) -> None:
    try:
        with zipfile.ZipFile(handle) as archive:
            unpacked, size = sum(one.file_size for one in archive.infolist()), handle.seek(0, os.SEEK_END)
            if unpacked > _MOST_TIMES * size:
                raise NotWhole(f"{file} would unpack to {unpacked:,} bytes and has {size:,}: torch.save packs nothing")
            if bad := archive.testzip():
                raise NotWhole(f"{file} is damaged: the checksum of {bad} does not match")
            for name in archive.namelist():
                if name.endswith(".pkl") and archive.getinfo(name).file_size <= _MOST_PICKLE:
                    prove_pickle(file, archive.read(name))
    except _NO_ZIP as error:
        raise NotWhole(f"{file} is torn: {error}") from None


def prove_pickle(name: str, data: bytes) -> None:
    """Raise NotWhole for a pickle that is cut off, or that would import what no checkpoint needs."""
    for called in pickled_names(name, data):
        module, _, function = called.partition(" ")
        if module.partition(".")[0] in _MODULES or (module in ("builtins", "__builtin__") and function in _BUILTINS):
            raise NotWhole(f"{name} would call {module}.{function} when it is loaded, which no checkpoint needs: look where it is from")


def pickled_names(name: str, data: bytes) -> list[str]:
    """Return what a pickle would import, as "module name", executing nothing. Raises NotWhole where it is cut off."""
    found: list[str] = []
    strings: list[str] = []
    memo: dict[int, str] = {}
    try:
        for operation, argument, _ in pickletools.genops(data):
            if operation.name in ("GLOBAL", "INST"):
                found.append(str(argument))
            elif operation.name == "STACK_GLOBAL":
                found.append(" ".join(strings[-2:]))
            elif operation.name in _STRINGS:
                strings.append(str(argument))
            elif operation.name in ("MEMOIZE", "BINPUT", "LONG_BINPUT", "PUT") and strings:
                memo[len(memo) if argument is None else int(argument)] = strings[-1]
            elif operation.name in ("BINGET", "LONG_BINGET", "GET") and int(argument or 0) in memo:
                strings.append(memo[int(argument or 0)])
    except Exception as error:  # noqa: BLE001  (pickletools raises what its readers raise)
        raise NotWhole(f"{name} is torn: its pickle cannot be read ({error})") from None
    return found
