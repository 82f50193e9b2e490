"""What every page and endpoint of ours has of HTTP: who is answered, how many at once, how long a client may be silent."""

from __future__ import annotations

import contextlib
import gzip
import hmac
import io
import os
import re
import secrets
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson

from holdfast.base.errors import USAGE, Stop, error_message
from holdfast.base.files import Json

LOOPBACK = "127.0.0.1"
_LARGEST_BODY = 1 << 22  # bytes
_CONNECTIONS = 64
_WORTH_PACKING = 1024  # bytes of a body
_SILENT_S = 30.0  # a client may take between two reads or writes
_HEAD_S = 20.0  # and to send the head of a request, from its first byte on
_ASKING_S = 60.0  # and a whole request
_LEAST_TOKEN = 16  # letters
_LEAVING_S = 2.0  # who is told that there is no room may take to hear it


class RequestRefused(Exception):
    """What a client did wrong, and the status that says so."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class AskedTooSlowly(Exception):
    """A request that does not come. begun: whether there was any of it."""

    def __init__(self, begun: bool) -> None:
        self.begun = begun


def token_of(file: Path | None) -> str:
    """Read the token of the file, or write a new one, for its owner's eyes, where there is no file; a new one without. Raises Stop(2)."""
    if file is None:
        return secrets.token_urlsafe(24)
    try:
        if not file.exists():
            with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
                out.write(secrets.token_urlsafe(24) + "\n")
        token = file.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        raise Stop(USAGE, f"--token-file {file}: {getattr(error, 'strerror', None) or 'no ASCII'}", "give another file") from None
    if len(token) < _LEAST_TOKEN:
        raise Stop(USAGE, f"--token-file {file}: {len(token)} letters are too few", f"{_LEAST_TOKEN} or more; remove it, and one is made")
    return token


def refuse_port(port: int) -> None:
    """Raise Stop(2) for what is no port."""
    if not 0 <= port < 65536:
        raise Stop(USAGE, f"--port {port}: a number below 65536", "leave it out for one that is free")


def open_server(address: str, port: int, handler: type[BaseHTTPRequestHandler]) -> ThreadingHTTPServer:
    """Open a server that listens. Raises Stop(2) where the port is taken."""
    try:
        return Server((address, port), handler)
    except (OSError, OverflowError) as error:
        raise Stop(USAGE, f"port {port} cannot be used: {getattr(error, 'strerror', error)}", "give another --port, or none") from None


class Server(ThreadingHTTPServer):
    """So many connections at once as a person and their programs need.

    One beyond takes the place of the one that has been asking for longest; where all have asked, it is told 503.
    """

    daemon_threads = True
    request_queue_size = 2 * _CONNECTIONS  # that wait to be accepted while an engine keeps the process busy; the library takes 5

    def __init__(self, *arguments: Any) -> None:
        self._room = threading.BoundedSemaphore(_CONNECTIONS)
        self._leaving = threading.BoundedSemaphore(_CONNECTIONS)
        self._lock = threading.Lock()
        self._asking: dict[socket.socket, tuple[str, float]] = {}  # the client's address, and since when
        self._displaced: set[socket.socket] = set()  # another one has their place
        super().__init__(*arguments)

    @contextlib.contextmanager
    def asking(self, connection: socket.socket, address: str, since: float) -> Iterator[None]:
        """Note that a client is waited for. Raises AskedTooSlowly where another one has taken its place meanwhile."""
        with self._lock:
            self._asking[connection] = address, since
        try:
            yield
        finally:
            with self._lock:
                displaced = self._asking.pop(connection, None) is None
        if displaced:
            raise AskedTooSlowly(True)

    def _displace(self) -> bool:
        """End the connection that has been asking for longest, of the address with most of them; False where all have asked."""
        with self._lock:
            many = Counter(address for address, _ in self._asking.values())
            if not many:
                return False
            slow = min(self._asking, key=lambda one: (-many[self._asking[one][0]], self._asking[one][1]))
            del self._asking[slow]
            self._displaced.add(slow)
        with contextlib.suppress(OSError):
            slow.shutdown(socket.SHUT_RD)
        return True

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._room.acquire(blocking=False) or self._displace():
            super().process_request(request, client_address)
        elif self._leaving.acquire(blocking=False):
            threading.Thread(target=self._turn_away, args=(request,), daemon=True).start()
        else:
            self.shutdown_request(request)

    def _turn_away(self, request: socket.socket) -> None:
        """Say 503 and read what was asked, for at most _LEAVING_S.

        A connection that is closed with bytes unread is reset, and its client would never see the answer.
        """
        try:
            with contextlib.suppress(OSError):
                request.settimeout(_LEAVING_S)
                request.sendall(b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
                request.shutdown(socket.SHUT_WR)
                until = time.monotonic() + _LEAVING_S
                while time.monotonic() < until and request.recv(1 << 16):
                    pass
        finally:
            self.shutdown_request(request)
            self._leaving.release()

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                displaced = request in self._displaced
                self._displaced.discard(request)
            if not displaced:
                self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that went away, which is no error of the server's."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class RequestStream(io.RawIOBase):
    """What a client sends. Raises AskedTooSlowly where it is silent for _SILENT_S, takes longer than _HEAD_S for a request's head or
    _ASKING_S for all of it, or where its place went to another one."""

    def __init__(self, connection: socket.socket, server: Server, address: str) -> None:
        self._connection, self._server, self._address = connection, server, address
        self.begin()

    def begin(self) -> None:
        """Start the wait for another request."""
        self._since, self._begun, self._heads = time.monotonic(), False, True

    def begin_body(self) -> None:
        """Start the wait for a request's body, whose head has come."""
        self._heads = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self._since + min(_ASKING_S, _HEAD_S if self._begun and self._heads else _ASKING_S) - time.monotonic()
        if left <= 0:
            raise AskedTooSlowly(self._begun)
        self._connection.settimeout(min(left, _SILENT_S))
        try:
            with self._server.asking(self._connection, self._address, self._since):
                count = self._connection.recv_into(buffer)
        except TimeoutError:
            raise AskedTooSlowly(self._begun) from None
        finally:
            self._connection.settimeout(_SILENT_S)
        if not self._begun:
            self._since, self._begun = time.monotonic(), True
        return count


class GuardedHandler(BaseHTTPRequestHandler):
    """One request. Only who has the token is answered, and only by a name that another's page cannot take."""

    protocol_version = "HTTP/1.1"
    entrance = "Authorization: Bearer TOKEN"  # how a token is given, in words
    streaming = False  # whether the status of a stream has been sent
    server: Server
    requestline, request_version, command = "", protocol_version, ""  # before a request has come

    def setup(self) -> None:
        super().setup()
        self._asked = RequestStream(self.connection, self.server, self.client_address[0])
        self.rfile = io.BufferedReader(self._asked)

    def handle_one_request(self) -> None:
        self._asked.begin()
        try:
            super().handle_one_request()
        except AskedTooSlowly as slow:
            self.close_connection = True
            if slow.begun:
                self.send_json(
                    {"error": {"message": "the request took too long to come", "type": "invalid_request_error", "code": None}}, 408
                )

    def secret(self) -> str:
        """Return the token."""
        raise NotImplementedError

    def is_ours(self, host: str) -> bool:
        """True if a request's Host, without its port, names this server."""
        return host in (LOOPBACK, "localhost")

    def is_open(self, path: str) -> bool:
        """True if a path is answered without a token."""
        return False

    def given_token(self) -> str:
        return (self.headers.get("Authorization") or "").removeprefix("Bearer ").strip()

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing: requests are counted instead."""

    def answer(self, routes: Mapping[str, Callable[[], None]]) -> None:
        """Answer by what stands under the request's path, or with the reason why not."""
        path = urlsplit(self.path).path
        known = routes.get(path) or routes.get(f"/v1{path}")
        try:
            self._refuse_strangers(path)
            if known is None:
                raise RequestRefused(404, f"there is no {path} here")
            known()
        except RequestRefused as refused:
            self.send_json({"error": {"message": str(refused), "type": "invalid_request_error", "code": None}}, refused.status)
        except (ConnectionError, TimeoutError):
            self.close_connection = True
        except (RuntimeError, OSError, Stop) as error:
            if self.streaming:
                self.send_event({"error": {"message": error_message(error), "type": "server_error"}})
            else:
                self.send_json({"error": {"message": error_message(error), "type": "server_error", "code": None}}, 500)

    def _refuse_strangers(self, path: str) -> None:
        """Refuse strangers: a page of somebody else's in a browser has no token, and cannot take our name."""
        host = re.sub(":[0-9]*$", "", self.headers.get("Host") or "")  # that of port 80 stands without it
        if not self.is_ours(host):
            raise RequestRefused(403, "this endpoint is for this machine alone")
        if not self.is_open(path) and not hmac.compare_digest(self.given_token().encode(), self.secret().encode()):
            raise RequestRefused(401, f"the token is missing or wrong: {self.entrance}")
        if self.command != "GET" and not self._is_from_our_page():
            raise RequestRefused(403, "a page of another site may ask for nothing here")

    def _is_from_our_page(self) -> bool:
        """True if a request that changes something comes from our own page, or from no page at all."""
        origin, site = self.headers.get("Origin"), self.headers.get("Sec-Fetch-Site")
        return (origin is None or urlsplit(origin).netloc == self.headers.get("Host")) and site in (None, "same-origin", "none")

    def send_json(self, value: Json, status: int = 200) -> None:
        self.send_body(orjson.dumps(value), "application/json", status)

    def send_body(self, body: bytes, kind: str, status: int = 200) -> None:
        packed = len(body) > _WORTH_PACKING and "gzip" in (self.headers.get("Accept-Encoding") or "")
        body = gzip.compress(body, 5) if packed else body
        self.send_response(status)
        if packed:
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("X-Frame-Options", "DENY")
        self.send_header("Cache-Control", "no-store")
        if status >= 400:
            self.send_header("Connection", "close")
            self.close_connection = True  # a body that was not read would be taken for the next request
        self.end_headers()
        self.wfile.write(body)

    def begin_stream(self) -> None:
        """Send the head of a stream of server-sent events."""
        self.streaming = True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Cache-Control", "no-store")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True

    def send_event(self, value: Json) -> None:
        """Send one event of a stream."""
        self.wfile.write(b"data: " + orjson.dumps(value) + b"\n\n")
        self.wfile.flush()

    def read_body(self) -> Json:
        """Read the JSON object that was sent. Raises RequestRefused."""
        length = self.headers.get("Content-Length") or ""
        if not re.fullmatch("[0-9]{1,9}", length) or int(length) > _LARGEST_BODY:
            raise RequestRefused(413, f"a body of at most {_LARGEST_BODY:,} bytes, with its length, is needed")
        self._asked.begin_body()
        try:
            value = orjson.loads(self.rfile.read(int(length)))
        except orjson.JSONDecodeError as error:
            raise RequestRefused(400, f"the body is not JSON: {error}") from None
        if not isinstance(value, dict):
            raise RequestRefused(400, "the body is not a JSON object")
        return value
