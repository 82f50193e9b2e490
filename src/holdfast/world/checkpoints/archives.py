"""Whether what torch.save wrote is whole, and what its pickle would call: the zip's checksums and a reader that executes nothing."""

from __future__ import annotations

import pickletools
import zipfile
from pathlib import Path

from holdfast.world.checkpoints.tensors import NotWhole

_MOST_PICKLE = 1 << 28
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
    """Raises NotWhole where a file of torch.save's is torn, or its pickle names what no checkpoint needs."""
    try:
        if file.stat().st_size == 0:
            raise NotWhole(f"{file.name} is empty")
        with file.open("rb") as handle:
            begins = handle.read(2)
        if begins == b"PK":
            _prove_zip(file)
        elif begins[:1] == b"\x80":  # torch before 1.6
            prove_pickle(file.name, file.read_bytes()[:_MOST_PICKLE])
        else:
            raise NotWhole(f"{file.name} is damaged: it is neither an archive nor a pickle")
    except OSError as error:
        raise NotWhole(f"{file.name} cannot be read: {error.strerror}") from None


def _prove_zip(file: Path) -> None:
    try:
        with zipfile.ZipFile(file) as archive:
            if bad := archive.testzip():
                raise NotWhole(f"{file.name} is damaged: the checksum of {bad} does not match")
            for name in archive.namelist():
                if name.endswith(".pkl") and archive.getinfo(name).file_size <= _MOST_PICKLE:
                    prove_pickle(file.name, archive.read(name))
    except (zipfile.BadZipFile, EOFError, NotImplementedError, ValueError) as error:
        raise NotWhole(f"{file.name} is torn: {error}") from None


def prove_pickle(name: str, data: bytes) -> None:
    """Raises NotWhole for a pickle that is cut off, or that would import what no checkpoint needs."""
    for called in pickled_names(name, data):
        module, _, function = called.partition(" ")
        if module.partition(".")[0] in _MODULES or (module in ("builtins", "__builtin__") and function in _BUILTINS):
            raise NotWhole(f"{name} would call {module}.{function} when it is loaded, which no checkpoint needs: look where it is from")


def pickled_names(name: str, data: bytes) -> list[str]:
    """What a pickle would import, as "module name". Nothing is executed. Raises NotWhole where it is cut off."""
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
