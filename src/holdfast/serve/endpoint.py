"""What every page and endpoint of ours has of HTTP: who is answered, how many at once, how long a client may be silent."""

from __future__ import annotations

import contextlib
import gzip
import hmac
import io
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
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
_ASKING_S = 60.0  # and to send a whole request
_LEAVING_S = 2.0  # who is told that there is no room may take to hear it


class RequestRefused(Exception):
    """What a client did wrong, and the status that says so."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


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
    """So many connections at once as a person and their programs need; those beyond are told 503."""

    daemon_threads = True
    request_queue_size = 2 * _CONNECTIONS  # that wait to be accepted while an engine keeps the process busy; the library takes 5

    def __init__(self, *arguments: Any) -> None:
        self._room = threading.BoundedSemaphore(_CONNECTIONS)
        self._leaving = threading.BoundedSemaphore(_CONNECTIONS)
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._room.acquire(blocking=False):
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
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that went away, which is no error of the server's."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class RequestStream(io.RawIOBase):
    """What a client sends. Raises TimeoutError where it is silent for _SILENT_S, or takes longer than _ASKING_S for one request."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.begin()

    def begin(self) -> None:
        """Start the wait for another request."""
        self._until = time.monotonic() + _ASKING_S

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError("a request took too long to come")
        self._connection.settimeout(min(left, _SILENT_S))
        try:
            return self._connection.recv_into(buffer)
        finally:
            self._connection.settimeout(_SILENT_S)


class GuardedHandler(BaseHTTPRequestHandler):
    """One request. Only who has the token is answered, and only by a name that another's page cannot take."""

    protocol_version = "HTTP/1.1"
    entrance = "Authorization: Bearer TOKEN"  # how a token is given, in words
    streaming = False  # whether the status of a stream has been sent

    def setup(self) -> None:
        super().setup()
        self._asked = RequestStream(self.connection)
        self.rfile = io.BufferedReader(self._asked)

    def handle_one_request(self) -> None:
        self._asked.begin()
        super().handle_one_request()

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
        except (RuntimeError, OSError) as error:
            if self.streaming:
                self.wfile.write(b"data: " + orjson.dumps({"error": {"message": error_message(error), "type": "server_error"}}) + b"\n\n")
            else:
                self.send_json({"error": {"message": error_message(error), "type": "server_error", "code": None}}, 500)

    def _refuse_strangers(self, path: str) -> None:
        """Refuse strangers: a page of somebody else's in a browser has no token, and cannot take our name."""
        host = (self.headers.get("Host") or "").rpartition(":")[0]
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

    def read_body(self) -> Json:
        """Read the JSON object that was sent. Raises RequestRefused."""
        length = self.headers.get("Content-Length") or ""
        if not re.fullmatch("[0-9]{1,9}", length) or int(length) > _LARGEST_BODY:
            raise RequestRefused(413, f"a body of at most {_LARGEST_BODY:,} bytes, with its length, is needed")
        try:
            value = orjson.loads(self.rfile.read(int(length)))
        except orjson.JSONDecodeError as error:
            raise RequestRefused(400, f"the body is not JSON: {error}") from None
        if not isinstance(value, dict):
            raise RequestRefused(400, "the body is not a JSON object")
        return value
