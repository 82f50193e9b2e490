"""One HTTP request and its answer, bounded: in bytes, also once unpacked, and by one deadline for the whole. Knows no model."""

from __future__ import annotations

import contextlib
import importlib
import socket
import threading
import time
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import urlsplit, urlunsplit

from holdfast.base.errors import USAGE, Stop
from holdfast.base.files import Json
from holdfast.base.versions import install

LARGEST = 1 << 24  # bytes of an answer, as of a row
_UNPACKS = {"gzip", "x-gzip", "deflate"}


class RequestFailed(Exception):
    """No answer came, or none that can be read; asking again may help."""


class Reply(NamedTuple):
    """`retry_after`: the header, as it stands."""

    status: int
    body: bytes
    retry_after: str | None


class Wire:
    """Posts JSON from several threads at once."""

    def __init__(self, key: str | None, timeout_s: float) -> None:
        """Open a client. Raises Stop(2) where httpx is not installed."""
        try:
            self._httpx: Any = importlib.import_module("httpx")
        except ImportError:
            raise Stop(USAGE, "--endpoint needs the package httpx", install("endpoint")) from None
        self._timeout_s = timeout_s
        self._sockets: set[socket.socket] = set()
        headers = {"Accept-Encoding": "gzip, deflate"} | ({"Authorization": f"Bearer {key}"} if key else {})
        limits = self._httpx.Limits(max_connections=None, max_keepalive_connections=0)  # a deadline ends one request's connection
        self._client = self._httpx.Client(timeout=timeout_s, headers=headers, limits=limits)

    def close(self) -> None:
        """End what is under way."""
        _cut(self._sockets)
        self._client.close()

    def post(self, address: str, body: Json) -> Reply:
        """Send `body` to the address. Raises RequestFailed, and Stop(2) for an invalid address."""
        began = time.monotonic()
        late = f"no whole answer within {self._timeout_s:g} s"
        try:
            with self._deadline() as trace, self._client.stream("POST", address, json=body, extensions={"trace": trace}) as response:
                data = b"".join(_unpacked(response.iter_raw(), response.headers.get("content-encoding", "")))
                return Reply(response.status_code, data, response.headers.get("retry-after"))
        except (self._httpx.InvalidURL, self._httpx.UnsupportedProtocol, UnicodeError) as error:
            raise Stop(USAGE, f"--endpoint {shown(address)}: {error}", "for example: http://127.0.0.1:8080/v1") from None
        except (self._httpx.HTTPError, RuntimeError, OSError) as error:  # RuntimeError: another thread has closed the client
            why = late if time.monotonic() - began >= self._timeout_s else f"{type(error).__name__}: {error}"
            raise RequestFailed(why) from error

    @contextlib.contextmanager
    def _deadline(self) -> Iterator[Any]:
        """Cut the connection of one request when its time is up, whatever it waits for: a timeout of httpx is one of each read."""
        sockets: set[socket.socket] = set()

        def trace(event: str, facts: Json) -> None:
            made = facts.get("return_value") if event.endswith(("connect_tcp.complete", "start_tls.complete")) else None
            if made is not None:
                sockets.add(made.get_extra_info("socket"))
                self._sockets.update(sockets)

        timer = threading.Timer(self._timeout_s, _cut, [sockets])
        timer.daemon = True
        timer.start()
        try:
            yield trace
        finally:
            timer.cancel()
            self._sockets -= sockets


def _cut(sockets: set[socket.socket]) -> None:
    """Shut the sockets: whoever reads from them reads their end."""
    for one in tuple(sockets):
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)


def _unpacked(parts: Iterator[bytes], encoding: str) -> Iterator[bytes]:
    """Decode the answer's bytes. Raises RequestFailed where they are too many, or compressed in a way that was not asked for."""
    kind, left = encoding.strip().lower(), LARGEST
    if kind not in {"", "identity", *_UNPACKS}:
        raise RequestFailed(f"the answer is packed with {kind[:40]!r}, which was not asked for")
    unpack = zlib.decompressobj(zlib.MAX_WBITS | 32) if kind in _UNPACKS else None
    for part in parts:
        try:
            data = unpack.decompress(part, left + 1) if unpack else part
        except zlib.error as error:
            raise RequestFailed(f"the answer cannot be unpacked: {error}") from None
        left -= len(data)
        if left < 0:
            raise RequestFailed(f"the answer has more than {LARGEST >> 20} MiB")
        yield data


def shown(address: str) -> str:
    """Return an address without the name and password in it."""
    try:
        parts = urlsplit(address)
        return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    except ValueError:
        return "(an address that is none)"
