"""What an error of the file system means, in words: one table for every verb and process."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import Any, TypeVar

from holdfast.base.errors import BLOCKED, USAGE, Stop

_TABLE = {  # errno: (the fact, what to do)
    errno.ENOSPC: ("no room on the disk of {place}", "make room, then repeat the command"),
    errno.EDQUOT: ("the quota on the disk of {place} is used up", "make room or have it raised, then repeat the command"),
    errno.EFBIG: ("{place} may not become as large as it has to be", "raise the limit (ulimit -f unlimited), then repeat the command"),
    errno.EROFS: (
        "the file system of {place} is read-only",
        "dmesg says why, if it was not always; mount it writable, or choose another place",
    ),
    errno.EIO: ("the disk of {place} fails to read or write (input/output error)", "dmesg tells of the disk; then repeat the command"),
    errno.ESTALE: ("{place} is on a network disk that has lost it", "mount it again, then repeat the command"),
    errno.EACCES: ("{place} may not be read or written by this user", "ask its owner, or repeat the command as that user"),
    errno.EPERM: ("{place} may not be changed by this user", "ask its owner, or repeat the command as that user"),
    errno.ENAMETOOLONG: ("the name of {place} is too long for its file system", "choose a shorter one"),
    errno.ELOOP: ("{place} is a link; holdfast writes through none", "remove the link, or name what it leads to"),
    errno.ENOENT: ("{place} is not there", "it was moved or removed; repeat the command where it is now"),
    errno.ENOTDIR: ("a part of {place} is no folder", "remove what stands there, or choose another place"),
    errno.EISDIR: ("{place} is a folder where a file belongs", "move it away, then repeat the command"),
    errno.EEXIST: ("{place} is there already", "move it away, then repeat the command"),
    errno.ENOTEMPTY: ("the folder {place} is not empty", "move it away, then repeat the command"),
    errno.ENXIO: ("{place} is no regular file", "remove what stands there, then repeat the command"),
    errno.ENODEV: ("the device of {place} is gone", "mount it again, then repeat the command"),
    errno.EBUSY: ("{place} is in use by the system", "repeat the command when it is free"),
    errno.EMFILE: ("this process may not open more files", "raise the limit (ulimit -n 4096), then repeat the command"),
    errno.ENFILE: ("the system has no more open files to give", "end what holds them, then repeat the command"),
    errno.ENOLCK: ("the file system of {place} gives no locks", "choose a place on a local disk, or mount it with locks"),
    errno.ETXTBSY: ("{place} is being run as a program", "end that program, then repeat the command"),
}
_NO_SUCH_FILE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EINVAL, errno.ELOOP, errno.EFBIG, errno.ENXIO, errno.ENAMETOOLONG)
# where the place is as good as another: its disk fails or is full, a limit is reached
_NOT_OF_THE_PLACE = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ESTALE, errno.EMFILE, errno.ENFILE, errno.ENODEV)
E = TypeVar("E", bound=Exception)
_PRINTED = re.compile(r"[\w.]*Error: \[Errno (\d+)\] [^:]*(?:: ['\"](.+?)['\"](?: -> .*)?)?$")  # the last line of Python's tracebacks
_OF_TORCH = re.compile(r"unable to (?:open|mmap).*?<(.+?)>.*\((\d+)\)$")
_OF_SAFETENSORS = re.compile(r"FileNotFoundError: No such file or directory: (/.+)$")  # whatever the error of the system was
_LOOP = re.compile(r"Symlink loop from '(.+)'$")  # pathlib's, before Python 3.13
_RUST = re.compile(r"\(os error (\d+)\)")  # how a library in Rust tells of an error of the system


def of_the_file(error: E, place: object = None) -> E:
    """Return an error that says that no file to read has the name, or what is wrong in it. Raises any other: the file may be whole.

    place: what was read, for a library whose errors name no file.
    """
    found: Any = error
    if not isinstance(error, OSError):
        number = _RUST.search(str(error))
        found = OSError(int(number[1]), os.strerror(int(number[1])), str(place)) if number else None
    if found is None or found.errno is None or found.errno in _NO_SUCH_FILE:
        return error
    found.filename = found.filename or (None if place is None else str(place))
    raise found


def at_place(error: OSError, place: object, what: str, hint: str, answer: dict[str, Any] | None = None, code: int = BLOCKED) -> Stop:
    """Return the error of a place that "cannot be read" or written (`what`), with the hint for a place that is none to do that with.

    Where the system fails for any place, and where another file than this or a folder above it is meant, it is told in the words of the
    table.
    """
    if error.filename is None:
        error.filename = str(place)
    named, wanted = (Path(os.fsdecode(one)).absolute() for one in (error.filename2 or error.filename, str(place)))
    own = error.errno == errno.EFBIG and error.strerror != os.strerror(errno.EFBIG)  # a limit of ours
    ours = named in (wanted, *wanted.parents) and (own or error.errno not in _NOT_OF_THE_PLACE)
    if not ours and (told := file_error(error)):
        return Stop(told.code, told.message, told.hint, answer)
    if named not in (wanted, *wanted.parents):  # of something else that was read or written with it, and is no file
        return Stop(code, f"{named} cannot be used: {error.strerror or error}", "remove what stands there, or name another place", answer)
    return Stop(code, f"{f'{place} {what}'.rstrip()}: {error.strerror or error}", hint, answer)


def file_error(error: OSError) -> Stop | None:
    """Return Stop(1) in the words of the table; None for an error that is none of the file system's."""
    place = error.filename2 or error.filename
    if error.errno == errno.EINVAL and place and error.strerror != os.strerror(errno.EINVAL):  # said by us, of a device, pipe or socket
        return Stop(BLOCKED, f"{os.fsdecode(place)} {error.strerror}", _TABLE[errno.ENXIO][1])
    if error.errno not in _TABLE:
        return None
    if error.errno == errno.ENOENT and place is None and current_folder() is None:
        return Stop(BLOCKED, "the current folder was removed", "change to a folder that is there, then repeat the command")
    named = os.fsdecode(place) if isinstance(place, str | bytes) else "a file" if place is None else str(place)
    return Stop(BLOCKED, fact_of(error, named), _TABLE[error.errno][1])


def current_folder() -> Path | None:
    """Return the current folder; None where it was removed."""
    try:
        return Path.cwd()
    except OSError:
        return None


def loop_of_links(error: Exception) -> Stop | None:
    """Return Stop(2) for a path that cannot be resolved because a link in it leads to itself; None for another error."""
    found = _LOOP.match(str(error)) if isinstance(error, RuntimeError) else None
    return Stop(USAGE, f"{found[1]} is a link that leads to itself", "remove it, or name what it was to lead to") if found else None


def file_error_in(printed: str) -> Stop | None:
    """Return what `file_error` says of the error of the file system that a process printed last, None where its last line is none."""
    last = (printed.strip().splitlines() or [""])[-1]
    if found := _PRINTED.match(last):
        return file_error(OSError(int(found[1]), os.strerror(int(found[1])), found[2]))
    if (found := _OF_SAFETENSORS.search(last)) and Path(found[1]).is_file():
        return _unopened(found[1])
    found = _OF_TORCH.search(last)
    return file_error(OSError(int(found[2]), os.strerror(int(found[2])), found[1])) if found else None


def _unopened(place: str) -> Stop:
    """Return why a file that is there could not be opened by a library that does not tell; what may be where it can be opened now."""
    try:
        Path(place).open("rb").close()
    except OSError as error:
        if told := file_error(error):
            return told
    hint = "dmesg tells of the disk, and `ulimit -n` how many files may be open; then repeat the command"
    return Stop(BLOCKED, f"{place} is there, and could not be opened: its disk failed, or too many files were open", hint)


def fact_of(error: OSError, place: object) -> str:
    """Return the table's message for an error, about a place."""
    return _TABLE[error.errno or 0][0].format(place=place)


def remedy_of(error: OSError) -> str:
    """Return the table's remedy for an error: what to do before the command is repeated."""
    return _TABLE[error.errno or 0][1].removesuffix(", then repeat the command").removesuffix("; then repeat the command")
