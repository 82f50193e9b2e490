"""Files at addresses that fsspec knows (s3://, gs://, https:// ...). What its libraries raise, of kinds of their own, becomes OSError."""

from __future__ import annotations

import contextlib
import importlib
import re
from errno import EACCES, EIO
from typing import Any

from holdfast.base.errors import USAGE, Stop, error_message
from holdfast.base.versions import install

_UNKNOWN_USER = ("NoCredentialsError", "PartialCredentialsError", "DefaultCredentialsError", "ClientAuthenticationError")
ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://")


def refuse_unkeepable(address: str, hint: str) -> None:
    """Raise Stop(2) for an address that no later process can use, or that holds a password."""
    if address.startswith("memory://"):
        raise Stop(USAGE, f"{address} is the memory of one process: nothing of it is left when that ends", hint)
    if "@" in address.split("://", 1)[1].split("/")[0]:
        text = "the address holds a user or a password, which would stand in config.yaml"
        raise Stop(USAGE, text, "give credentials through the environment or the service's own configuration file")


def open_place(address: str, hint: str) -> tuple[Any, str]:
    """Return fsspec's file system of an address, and the path in it. Raises Stop(2) where there is none, or its package is missing."""
    try:
        core: Any = importlib.import_module("fsspec.core")
        fs, root = core.url_to_fs(address)
    except ImportError as error:
        text = f"{address} cannot be reached: {error_message(error)}"
        raise Stop(USAGE, text, f"{install('remote')}, and the package of the service (s3fs, gcsfs, adlfs, paramiko)") from None
    except ValueError as error:
        raise Stop(USAGE, f"{address} is no address that fsspec knows: {error}", hint) from None
    return fs, root


@contextlib.contextmanager
def as_os_error(address: str) -> Any:
    try:
        yield
    except OSError:
        raise
    except Exception as error:  # noqa: BLE001  (each service's library has errors of its own)
        kind, number = (PermissionError, EACCES) if type(error).__name__ in _UNKNOWN_USER else (OSError, EIO)
        raise kind(number, error_message(error), address) from None
