"""Fetch files at an address that fsspec knows into holdfast's cache: streamed to disk, once for each version of a file."""

from __future__ import annotations

import hashlib
import os
import posixpath
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.base.cache import cache_folder
from holdfast.base.errors import BLOCKED, USAGE, Stop, error_message
from holdfast.base.files import is_full, sha256
from holdfast.base.units import counted
from holdfast.row_sources.names import ROWS, suffix_of
from holdfast.row_sources.remote_files import ADDRESS, as_os_error, open_place, refuse_unkeepable
from holdfast.row_sources.splits import Use, of_use, without_facts

_HINT = "give a file, or an address such as s3://bucket/rows.jsonl"
_OF_VERSION = (  # what services call what changes with a file's content; with - and _ left out
    *("etag", "contentmd5", "md5hash", "checksum", "generation", "lastmodified", "mtime", "updated"),
    *("digest", "contenthash", "sha", "modified", "modificationtime", "modify", "lastwritetime"),
)
_WEB = ("http://", "https://")


def fetch(address: str, use: Use, tell: Callable[[str], None]) -> list[str]:
    """Fetch the file of an address, or those of a pattern or a folder that are of use.

    Raises Stop where it is no address or is not reached, and where there is no room.
    """
    if not ADDRESS.match(address):
        raise Stop(USAGE, f"{address}: protocols are written in small letters", _HINT)
    refuse_unkeepable(address, _HINT)
    cache = cache_folder(os.environ)
    if cache is None:
        raise Stop(BLOCKED, f"{address} has to be fetched, and there is no folder to keep it in", "set HOLDFAST_CACHE to one")
    try:
        fs, root = open_place(address, _HINT)
        with as_os_error(address):
            place = cache / "rows" / address.partition("://")[0]
            found = [_fetch_file(fs, path, address, place) for path in _paths(fs, root, address, use, tell)]
    except FileNotFoundError:
        raise Stop(
            USAGE, f"{address}: no such file there", "correct the address; `data.files` also takes patterns: s3://bucket/*.jsonl"
        ) from None
    except PermissionError as error:
        text = f"{address} may not be read: {error.strerror or error_message(error)}"
        raise Stop(BLOCKED, text, "give credentials through the environment or the service's own configuration file") from None
    except OSError as error:
        if is_full(error):
            raise Stop(BLOCKED, f"the disk is full while {address} is fetched into {cache}", "HOLDFAST_CACHE names another place") from None
        raise Stop(
            BLOCKED, f"{address} cannot be read: {error.strerror or error_message(error)}", "try again, or give a local copy"
        ) from None
    tell(f"{address}: {counted(len(found), 'file')}, {sum(file.stat().st_size for file in found):,} bytes, in {cache / 'rows'}")
    return [str(file) for file in found]


def _paths(fs: Any, root: str, address: str, use: Use, tell: Callable[[str], None]) -> list[str]:
    """List the matching files by name. Raises FileNotFoundError for none."""
    fs.invalidate_cache()
    if address.startswith(_WEB):
        return [root]
    if any(sign in root for sign in "*?["):
        found = sorted(path for path in fs.glob(root) if not fs.isdir(path))
        folder = posixpath.commonpath([posixpath.dirname(path) for path in found]) if found else ""
    elif fs.isdir(root):
        found = without_facts(sorted(path for path in fs.find(root) if suffix_of(path) in ROWS and not _hidden(path, root)))
        folder = root
    else:
        return [root]
    if not found:
        raise FileNotFoundError(root)
    return of_use(address, found, folder, use, tell)


def _hidden(path: str, root: str) -> bool:
    return any(part.startswith(".") for part in path.removeprefix(root).split("/"))


def _fetch_file(fs: Any, path: str, address: str, place: Path) -> Path:
    """Fetch one file, unless this version of it lies there. Raises OSError; one that is cut short is not kept."""
    about = {str(key).lower().replace("-", "").replace("_", ""): value for key, value in fs.info(path).items()}
    version = [str(about[key]) for key in _OF_VERSION if about.get(key)]
    size = about.get("size")
    name = f"{address.partition('://')[0]}://{path}"
    basename = path.partition("?")[0].rstrip("/").rpartition("/")[2] or "rows"

    def place_of(*version: str) -> Path:
        key = hashlib.sha256("\n".join([name, str(size), *version]).encode()).hexdigest()[:16]
        return place / f"{basename}-{key}" / basename

    file = place_of(*version)
    if file.exists() and version:
        return file
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{basename}.{secrets.token_hex(4)}.tmp")
    try:
        fs.get_file(path, str(temporary))
        got = temporary.stat().st_size
        if isinstance(size, int) and got != size and not about.get("partial"):
            raise OSError(f"{name} ended after {got:,} of {size:,} bytes")
        if not version:  # another content may have the same size
            file = place_of(sha256(temporary))
            file.parent.mkdir(parents=True, exist_ok=True)
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)
    return file
