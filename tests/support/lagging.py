"""A folder through a mount that delays, as a slow shared disk does: python lagging.py FOLDER MOUNT SECONDS [NAME=VALUE of mount ...].

Needs fusepy and the right to mount. What changes a folder or reaches its disk waits SECONDS, at times ten times as long; what only looks
waits a tenth. With `entry_timeout`, `negative_timeout` and `attr_timeout` the mount also goes on showing what it saw, as NFS does.
"""

from __future__ import annotations

import errno
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

from fuse import FUSE, FuseOSError, Operations

CHANGES = {"create", "rename", "fsync", "unlink", "mkdir", "rmdir", "link", "truncate", "flush"}
LOOKS = {"getattr", "readdir", "open", "release"}


class Lagging(Operations):  # type: ignore[misc]
    """Each operation is that of the folder, later."""

    def __init__(self, folder: str, seconds: float) -> None:
        self.folder, self.seconds = folder, seconds

    def __call__(self, name: str, path: str, *more: Any) -> Any:
        wait = self.seconds * (1 if name in CHANGES else 0.1 if name in LOOKS else 0)
        time.sleep(wait * (10 if random.random() < 0.01 else 1))
        try:
            return getattr(self, name)(self.folder + path, *more)
        except OSError as error:
            raise FuseOSError(error.errno or errno.EIO) from None

    def access(self, path: str, mode: int) -> None:
        if not os.access(path, mode):
            raise FuseOSError(errno.EACCES)

    def getattr(self, path: str, handle: int | None = None) -> dict[str, Any]:
        seen = os.lstat(path)
        names = ("st_atime", "st_ctime", "st_gid", "st_mode", "st_mtime", "st_nlink", "st_size", "st_uid")
        return {name: getattr(seen, name) for name in names}

    def statfs(self, path: str) -> dict[str, int]:
        seen = os.statvfs(path)
        return {name: getattr(seen, name) for name in ("f_bavail", "f_bfree", "f_blocks", "f_bsize", "f_files", "f_ffree", "f_frsize")}

    def readdir(self, path: str, handle: int) -> list[str]:
        return [".", "..", *(entry.name for entry in Path(path).iterdir())]

    def rename(self, path: str, to: str) -> None:
        Path(path).rename(self.folder + to)

    def link(self, path: str, source: str) -> None:
        os.link(self.folder + source, path)

    def symlink(self, path: str, source: str) -> None:
        Path(path).symlink_to(source)

    def utimens(self, path: str, times: Any = None) -> None:
        os.utime(path, times)

    def create(self, path: str, mode: int, _info: Any = None) -> int:
        return os.open(path, os.O_RDWR | os.O_CREAT, mode)

    def read(self, path: str, size: int, offset: int, handle: int) -> bytes:
        return os.pread(handle, size, offset)

    def write(self, path: str, data: bytes, offset: int, handle: int) -> int:
        return os.pwrite(handle, data, offset)

    def truncate(self, path: str, length: int, handle: int | None = None) -> None:
        os.truncate(path, length)

    def flush(self, path: str, handle: int) -> None:
        return None

    def fsync(self, path: str, only_data: int, handle: int) -> None:
        os.fsync(handle)

    def release(self, path: str, handle: int) -> None:
        os.close(handle)

    open, mkdir, rmdir, unlink = (staticmethod(one) for one in (os.open, os.mkdir, os.rmdir, os.unlink))
    chmod, chown, readlink = (staticmethod(one) for one in (os.chmod, os.chown, os.readlink))


if __name__ == "__main__":
    options = {name: float(value) for name, _, value in (word.partition("=") for word in sys.argv[4:])}
    FUSE(Lagging(os.path.realpath(sys.argv[1]), float(sys.argv[3])), sys.argv[2], foreground=True, **options)
