"""Write whole or not at all, append whole lines, read past a torn one. Says nothing about what is in the files."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from holdfast.base.errors import DamagedFile, damaged
from holdfast.base.safe_open import LARGEST_JSON, journal_descriptor, naming, open_regular

Json = dict[str, Any]
DamagedLine = Callable[[int, str], Json | None]  # what stands for a damaged line, given its number and what is wrong with it
Parser = Callable[[Path, bytes, str], Json]  # of a line, given the file and the line's name
_MANY_DIGITS = re.compile(rb"\d{19}")
_NO_FILE = (errno.EINVAL, errno.EISDIR, errno.ELOOP, errno.EFBIG, errno.ENXIO)  # what stands there is no file, or none to read
_TAKES_NOTHING = (errno.EROFS, errno.EIO, errno.EFBIG, errno.ESTALE, errno.EACCES)  # not EPERM: another user's file is refused with it
_LINE_BYTES = 1 << 12  # longer than most lines of a journal
_MOST_AT_ONCE = 1 << 20  # bytes that are looked through for a line end at once
_LONGEST_LINE = 1 << 26  # bytes of a journal's line; a row has 16 MiB at most, and as text in JSON up to twice that
_WRITING_S = 0.01  # within which a write that has begun goes on


def is_full(error: BaseException) -> bool:
    """True if an error says that a disk, or the user's share of it, is full."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def takes_nothing(error: BaseException) -> bool:
    """True if an error says that a disk takes nothing now: it is full, read-only, failing, away, or a folder's rights were changed."""
    return is_full(error) or (isinstance(error, OSError) and error.errno in _TAKES_NOTHING)


def may_pass(error: OSError) -> bool:
    """True if the same call may go through a moment later: the disk takes or gives nothing now, or too many files are open."""
    return takes_nothing(error) or error.errno in (errno.EMFILE, errno.ENFILE)


@contextlib.contextmanager
def replacing(path: Path, durable: bool = True) -> Iterator[BinaryIO]:
    """Write a new `path`: temporary name, flush, fsync, rename. A reader sees the old or the new file, never a part.

    Raises OSError where a device, pipe or socket has the name (root would put a file in the place of /dev/null).
    """
    refuse_what_is_no_file(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.{os.getpid()}.tmp")
    try:
        with naming(path, instead_of=temporary):
            with temporary.open("xb") as handle:
                yield handle
                handle.flush()
                if durable:
                    os.fsync(handle.fileno())
            temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):  # a file system that has become read-only
            temporary.unlink(missing_ok=True)
        raise
    if durable:
        fsync_folder(path.parent)


def refuse_what_is_no_file(path: Path) -> None:
    """Raise OSError where a new file must not take the place of what is there: a device, a pipe, a socket."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        kind = stat.S_IFMT(path.lstat().st_mode)
        if kind not in (stat.S_IFREG, stat.S_IFLNK, stat.S_IFDIR):  # a folder is refused by the system
            raise OSError(errno.EINVAL, "is a device, pipe or socket, no file that could be replaced", str(path))


def remove_abandoned(path: Path) -> None:
    """Remove what killed processes of this machine had written of `path`, a file or a folder, under a temporary name with their number."""
    for temporary in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        writer = temporary.name.split(".")[-2]
        try:
            os.kill(int(writer), 0)
        except (ValueError, PermissionError):
            continue
        except ProcessLookupError:
            if temporary.is_dir() and not temporary.is_symlink():
                shutil.rmtree(temporary, ignore_errors=True)
            else:
                temporary.unlink(missing_ok=True)


def write_bytes(path: Path, data: bytes, durable: bool = True) -> None:
    """Replace `path` by `data`, whole or not at all."""
    with replacing(path, durable) as handle:
        handle.write(data)


def write_json(path: Path, value: Any, durable: bool = True) -> None:
    write_bytes(path, orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE), durable)


def read_json(path: Path, load: Callable[[bytes], Any] = orjson.loads) -> Json | None:
    """Read the object in `path`; None when there is no such file or it holds no JSON object. Raises OSError where it may not be read."""
    try:
        with open_regular(path, LARGEST_JSON) as handle:
            value = load(handle.read())
    except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError, UnicodeDecodeError, RecursionError):  # orjson's is json's
        return None
    except OSError as error:
        if error.errno in _NO_FILE:
            return None
        raise
    return value if isinstance(value, dict) else None


def read_python_json(path: Path) -> Json | None:
    """Read JSON as `read_json` does, but as Python's own json writes it, with NaN and Infinity as numbers."""
    return read_json(path, json.loads)


def append_line(path: Path, value: Json, durable: bool = False) -> int:
    """Append one JSON object as one line in one write, after the last whole line; `durable`: and wait until it is on the disk.

    What follows the last line end (a death in mid-write, a power cut) is cut first; the number of its bytes.
    Raises OSError when the disk takes no more; what was written of the line is cut off again, so the file stays whole.
    """
    line = orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE)
    descriptor = journal_descriptor(path)
    try:
        with naming(path):
            torn = 0 if _ends_whole(descriptor) else _heal(descriptor)
            written = os.write(descriptor, line)
            if written != len(line):
                os.ftruncate(descriptor, os.fstat(descriptor).st_size - written)
                raise OSError(errno.ENOSPC, f"only {written} of {len(line)} bytes could be written", str(path))
            if durable:
                _reach_the_disk(descriptor, line)
                if os.fstat(descriptor).st_size == len(line):  # perhaps made by this: its name is flushed, too
                    fsync_folder(path.parent)
    finally:
        os.close(descriptor)
    return torn


def _reach_the_disk(descriptor: int, line: bytes) -> None:
    """Wait until what was appended is on the disk. Raises OSError where it does not get there: it is cut off, as it may be tried again."""
    try:
        os.fsync(descriptor)
    except OSError:
        with contextlib.suppress(OSError):
            before = os.fstat(descriptor).st_size - len(line)
            if os.pread(descriptor, len(line), before) == line:
                os.ftruncate(descriptor, before)
        raise


def _ends_whole(descriptor: int) -> bool:
    """True if a journal is empty or ends with a line end."""
    size = os.fstat(descriptor).st_size
    return size == 0 or os.pread(descriptor, 1, size - 1) == b"\n"


def _refuse_no_file(path: Path, error: OSError) -> None:
    """Raise DamagedFile where opening a journal failed because no file has its name, or a link, through which none is written."""
    if error.errno not in _NO_FILE:
        return
    if error.errno != errno.ELOOP:
        raise damaged(path, f"it {error.strerror}") from None
    try:
        path.stat()
    except OSError as followed:
        if followed.errno == errno.ELOOP:
            raise damaged(path, "it is a link that leads to itself") from None
    raise damaged(path, "it is a link") from None


def _heal(descriptor: int) -> int:
    """Cut what follows the last line end; the number of bytes cut. A line that another process is writing this moment is left whole."""
    with contextlib.suppress(OSError):  # a file system without locks
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    size = -1
    while size != (size := os.fstat(descriptor).st_size):
        time.sleep(_WRITING_S)
    if _ends_whole(descriptor):
        return 0
    whole = _whole_bytes(descriptor, size)
    os.ftruncate(descriptor, whole)
    return size - whole


def _whole_bytes(descriptor: int, size: int) -> int:
    """Return where the last whole line of the first `size` bytes ends."""
    end, stretch = size, _LINE_BYTES
    while end:
        begin = max(0, end - stretch)
        at = os.pread(descriptor, end - begin, begin).rfind(b"\n")
        if at >= 0:
            return begin + at + 1
        end, stretch = begin, min(stretch * 8, _MOST_AT_ONCE)
    return 0


def read_exact_lines(path: Path) -> Iterator[Json]:
    """Yield as `read_lines` does, with every digit of whole numbers beyond 64 bits, which orjson rounds: for lines that are rows."""
    return read_lines(path, parsed=_parsed_exactly)


def read_lines(path: Path, damaged_line: DamagedLine | None = None, parsed: Parser | None = None) -> Iterator[Json]:
    """Yield each JSON object of a journal; a torn last line is skipped, a damaged line inside raises DamagedFile with its number.

    damaged_line: what stands for such a line instead, or None for nothing, given its number and what is wrong with it (of a journal that
    nothing depends on).
    Raises DamagedFile, too, where no file has the journal's name, and OSError where it may not be read.
    """
    try:
        handle = open_regular(path)
    except FileNotFoundError:
        return
    except OSError as error:
        _refuse_no_file(path, error)
        raise
    with handle:
        for number, line in enumerate(_lines(handle), 1):
            try:
                if line is None:
                    raise damaged(path, f"line {number} has more than {_LONGEST_LINE >> 20} MiB")
                row = (parsed or _parsed)(path, line, f"line {number}")
            except DamagedFile as error:
                if damaged_line is None:
                    raise
                told = damaged_line(number, error.message.partition(" is damaged: ")[2])
                if told is None:
                    continue
                row = told
            yield row


def _lines(handle: BinaryIO) -> Iterator[bytes | None]:
    """Yield the whole lines of a journal; None for one that is too long to be kept, whose bytes are looked through."""
    while line := handle.readline(_LONGEST_LINE):
        if line.endswith(b"\n"):
            yield line
            continue
        while line and not line.endswith(b"\n"):
            line = handle.readline(_MOST_AT_ONCE)
        if not line:
            return  # torn
        yield None


def read_sound_lines(path: Path) -> Iterator[Json]:
    """Yield the lines of a journal that can be read, for one that nothing depends on. Raises as `read_lines` does of the file."""
    return read_lines(path, lambda number, why: None)


class Tail:
    """A journal that is read again and again: each time its new whole lines alone, all of them again after it was replaced.

    from_end: what stands there already is passed over. key: so is a line without this one; a damaged line, which raises DamagedFile, is
    passed over with it.
    """

    def __init__(self, path: Path, from_end: bool = False, key: str | None = None) -> None:
        self.path, self._key = path, key
        facts = path.stat() if from_end and path.exists() else None
        self._at, self._file = (facts.st_size, facts.st_ino) if facts else (0, 0)

    def new(self) -> tuple[list[Json], bool]:
        """Return (the lines since the last time, whether the file is another one, so that they are all there are)."""
        try:
            with open_regular(self.path) as handle:
                facts = os.fstat(handle.fileno())
                replaced = facts.st_ino != self._file or facts.st_size < self._at
                handle.seek(0 if replaced else self._at)
                whole = _whole_lines(handle)
        except FileNotFoundError:
            replaced, self._at, self._file = self._at > 0, 0, 0
            return [], replaced
        self._at, self._file = (0 if replaced else self._at) + len(whole), facts.st_ino
        if self._key is None:
            return [_parsed(self.path, line, "a line") for line in whole.splitlines()], replaced
        rows = (_parsed_or_none(self.path, line) for line in whole.splitlines())
        return [row for row in rows if row is not None and self._key in row], replaced


def _whole_lines(handle: BinaryIO) -> bytes:
    """Read on to the last line end; nothing is read where the next line has none yet, within the most bytes that a line may have."""
    here = handle.tell()
    end = _whole_bytes(handle.fileno(), os.fstat(handle.fileno()).st_size)
    return handle.read(end - here) if end > here else b""


def cut_torn_line(path: Path) -> int:
    """Cut what follows the last line end of a journal; return the number of bytes removed.

    Raises DamagedFile as `read_lines` does.
    """
    try:
        descriptor = journal_descriptor(path, os.O_RDWR)
    except FileNotFoundError:
        return 0
    except OSError as error:
        _refuse_no_file(path, error)
        raise
    try:
        with naming(path):
            return 0 if _ends_whole(descriptor) else _heal(descriptor)
    finally:
        os.close(descriptor)


def last_line(path: Path) -> Json | None:
    """Read the newest whole line of a journal, from its end; None when there is none.

    Bytes behind it, however many, are looked through and not kept. Raises DamagedFile where it is no JSON object, or too long for one.
    """
    try:
        handle = open_regular(path)
    except FileNotFoundError:
        return None
    with handle:
        end = _whole_bytes(handle.fileno(), os.fstat(handle.fileno()).st_size)
        while end:
            begin = _whole_bytes(handle.fileno(), end - 1)
            if end - begin > _LONGEST_LINE:
                raise damaged(path, f"its last line has {end - begin:,} bytes")
            if end - begin > 1:
                handle.seek(begin)
                return _parsed(path, handle.read(end - begin - 1), "its last line")
            end = begin
    return None


def newest_lines(path: Path, window: int) -> list[Json]:
    """Read the whole lines in the last `window` bytes of a journal."""
    try:
        with open_regular(path) as handle:
            size = handle.seek(0, os.SEEK_END)
            handle.seek(max(0, size - window))
            lines = handle.read().split(b"\n")
    except FileNotFoundError:
        return []
    return [_parsed(path, line, "a line") for line in lines[1 if size > window else 0 : -1] if line]


def _parsed(path: Path, line: bytes, name: str) -> Json:
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise damaged(path, f"{name} is not JSON ({error})") from None
    if not isinstance(value, dict):
        raise damaged(path, f"{name} is not a JSON object")
    return value


def _parsed_exactly(path: Path, line: bytes, name: str) -> Json:
    value = _parsed(path, line, name)
    return json.loads(line) if _MANY_DIGITS.search(line) else value


def _parsed_or_none(path: Path, line: bytes) -> Json | None:
    try:
        return _parsed(path, line, "")
    except DamagedFile:
        return None


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open_regular(path) as handle:
        while block := handle.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def fsync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with naming(folder):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
