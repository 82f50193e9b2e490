"""Where a run's state is kept beside its folder: a shared folder, or an address that fsspec knows (s3://, gs://, sftp:// ...).

Both know nothing of runs. What is put under a name is there whole or not at all where the place can do that (a rename, an object store);
elsewhere a reader sees by size and hash. Credentials are the environment's or the library's own files', never part of an address.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from pathlib import Path, PurePosixPath
from typing import Protocol

from holdfast.base.errors import USAGE, Stop
from holdfast.base.files import fsync_folder
from holdfast.base.safe_open import naming, open_regular
from holdfast.row_sources.remote_files import ADDRESS, as_os_error, open_place, refuse_unkeepable

_HINT = "give a folder, or an address such as s3://bucket/runs/mine"


class Target(Protocol):
    """Files by name ("folder/name"). All raise OSError where the place cannot be reached or written."""

    address: str

    def names(self, folder: str) -> list[str]:
        """List the names of files directly under `folder`; none where there is no such folder."""
        ...

    def size(self, name: str) -> int | None:
        """Return the bytes of a file, None where there is none."""
        ...

    def put(self, name: str, source: Path | bytes) -> None:
        """Write a file, in place of one of that name."""
        ...

    def read(self, name: str) -> bytes:
        """Read a small file whole."""
        ...

    def get(self, name: str, path: Path) -> None:
        """Copy a file to a path of this machine."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        ...


def target_of(address: str) -> Target:
    """Return the place that an address names. Raises Stop(2) where it names none, or its package is not installed."""
    if not address.strip():
        raise Stop(USAGE, "the address is empty (a variable that is not set?)", _HINT)
    if not ADDRESS.match(address):
        return SharedFolder(_folder_of(address))
    refuse_unkeepable(address, _HINT)
    return Remote(address)


def _folder_of(address: str) -> Path:
    """Return the folder of an address without a protocol. Raises Stop(2) where it looks like one that has, or is of no user."""
    if ":" in address.split("/")[0]:
        text = f"{address} has a colon before its first slash, and is no address that is known here (protocols are in small letters)"
        raise Stop(USAGE, text, f"{_HINT}; a folder of that name: ./{address}")
    try:
        return Path(address).expanduser().absolute()
    except RuntimeError:
        raise Stop(USAGE, f"{address}: there is no such user on this machine", _HINT) from None


class SharedFolder:
    """A folder that this machine sees, on a disk that another one sees, too."""

    def __init__(self, path: Path) -> None:
        self.path, self.address = path, str(path)

    def names(self, folder: str) -> list[str]:
        try:
            return [entry.name for entry in (self.path / folder).iterdir() if not entry.name.startswith(".")]
        except (FileNotFoundError, NotADirectoryError):
            return []

    def size(self, name: str) -> int | None:
        try:
            return (self.path / name).stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            return None

    def put(self, name: str, source: Path | bytes) -> None:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
        try:
            with naming(path, instead_of=temporary), temporary.open("xb") as out:
                if isinstance(source, bytes):
                    out.write(source)
                else:
                    with open_regular(source) as handle:
                        shutil.copyfileobj(handle, out, 1 << 22)
                out.flush()
                os.fsync(out.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        fsync_folder(path.parent)

    def read(self, name: str) -> bytes:
        with open_regular(self.path / name) as handle:
            return handle.read()

    def get(self, name: str, path: Path) -> None:
        with naming(path), open_regular(self.path / name) as handle, path.open("xb") as out:
            shutil.copyfileobj(handle, out, 1 << 22)

    def remove(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)


class Remote:
    """A place that fsspec reaches. What its libraries raise becomes OSError: they have kinds of their own."""

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/")
        self.fs, self.root = open_place(self.address, _HINT)

    def names(self, folder: str) -> list[str]:
        with as_os_error(self.address):
            self.fs.invalidate_cache()  # another machine may have written meanwhile
            try:
                found = self.fs.ls(f"{self.root}/{folder}", detail=False)
            except FileNotFoundError:
                return []
            return [PurePosixPath(one).name for one in found]

    def size(self, name: str) -> int | None:
        with as_os_error(self.address):
            try:
                size = self.fs.info(f"{self.root}/{name}")["size"]
            except FileNotFoundError:
                return None
            return int(size)

    def put(self, name: str, source: Path | bytes) -> None:
        with as_os_error(self.address):
            place = f"{self.root}/{name}"
            with contextlib.suppress(FileExistsError, NotImplementedError):
                self.fs.makedirs(str(PurePosixPath(place).parent), exist_ok=True)
            if isinstance(source, bytes):
                self.fs.pipe_file(place, source)
            else:
                self.fs.put_file(str(source), place)

    def read(self, name: str) -> bytes:
        with as_os_error(self.address):
            return bytes(self.fs.cat_file(f"{self.root}/{name}"))

    def get(self, name: str, path: Path) -> None:
        with as_os_error(self.address):
            self.fs.get_file(f"{self.root}/{name}", str(path))

    def remove(self, name: str) -> None:
        with as_os_error(self.address), contextlib.suppress(FileNotFoundError):
            self.fs.rm_file(f"{self.root}/{name}")
