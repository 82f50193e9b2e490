"""What an error of the file system means, in words: one table for every verb and process."""

from __future__ import annotations

import errno
import os

from holdfast.base.errors import BLOCKED, Stop

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


_NO_SUCH_FILE = (
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EINVAL,
    errno.ELOOP,
    errno.EFBIG,
    errno.ENXIO,
    errno.ENAMETOOLONG,
)


def of_the_file(error: OSError) -> OSError:
    """Return an error that says that no file to read has the name. Raises any other: behind it the file may be whole."""
    if error.errno in _NO_SUCH_FILE:
        return error
    raise error


def file_error(error: OSError) -> Stop | None:
    """Return Stop(1) in the words of the table; None for an error that is none of the file system's."""
    if error.errno not in _TABLE:
        return None
    place = error.filename2 or error.filename
    named = os.fsdecode(place) if isinstance(place, str | bytes) else "a file" if place is None else str(place)
    return Stop(BLOCKED, fact_of(error, named), _TABLE[error.errno][1])


def fact_of(error: OSError, place: object) -> str:
    """Return the table's message for an error, about a place."""
    return _TABLE[error.errno or 0][0].format(place=place)


def remedy_of(error: OSError) -> str:
    """Return the table's remedy for an error: what to do before the command is repeated."""
    return _TABLE[error.errno or 0][1].removesuffix(", then repeat the command").removesuffix("; then repeat the command")
