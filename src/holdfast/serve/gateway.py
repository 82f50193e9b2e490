"""The endpoint: OpenAI's chat and completions on loopback behind a token, health, metrics, and the page for comparing by eye."""

from __future__ import annotations

import contextlib
import hmac
import re
import select
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import orjson

from holdfast.base.errors import USAGE, Stop, error_message
from holdfast.base.files import Json
from holdfast.data.judge.turns import Message
from holdfast.data.tokens.codec import Codec
from holdfast.serve.engines import MODELS, Engine, Wanted
from holdfast.serve.preferences import CHOICES, Blind
from holdfast.serve.requests import Refused, chat_ids, message_of, until, wanted_of

_LARGEST_BODY = 1 << 22  # bytes
_CONNECTIONS = 64
_SILENT_S = 30  # a client may take between two reads or writes


@dataclass
class State:
    """blind: the comparisons by eye, None without --ab; page: the HTML of it."""

    codec: Codec
    name: str
    context: int
    token: str
    blind: Blind | None = None
    page: str = ""
    engine: Engine = field(init=False)  # once it is loaded, before anything is served
    requests: dict[str, int] = field(default_factory=lambda: dict.fromkeys(MODELS, 0))
    tokens: dict[str, int] = field(default_factory=lambda: dict.fromkeys(MODELS, 0))
    seconds: float = 0.0


def open_gateway(state: State, port: int) -> ThreadingHTTPServer:
    """A server that listens on 127.0.0.1. Raises Stop(2) where the port is taken."""
    handler = type("Bound", (Handler,), {"state": state})
    try:
        server = Server(("127.0.0.1", port), handler)
    except (OSError, OverflowError) as error:
        raise Stop(USAGE, f"port {port} cannot be used: {getattr(error, 'strerror', error)}", "give another --port, or none") from None
    return server


class Server(ThreadingHTTPServer):
    """So many connections at once as a person and their programs need; those beyond are closed at once."""

    daemon_threads = True

    def __init__(self, *arguments: Any) -> None:
        self._room = threading.BoundedSemaphore(_CONNECTIONS)
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
            return
        with contextlib.suppress(OSError):
            request.settimeout(0)
            request.sendall(b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
        self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no error of the server's."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """One request. Only who has the token is answered, and only by the name of this machine's loopback."""

    state: State
    protocol_version = "HTTP/1.1"
    timeout = _SILENT_S  # of the socket, in seconds

    _streaming = False

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are counted, not printed."""

    def do_GET(self) -> None:
        self._answer({"/health": self._health, "/metrics": self._metrics, "/v1/models": self._models, "/": self._page})

    def do_POST(self) -> None:
        posts = {"/v1/chat/completions": self._chat, "/v1/completions": self._text}
        self._answer(posts | ({"/ab/ask": self._ask, "/ab/vote": self._vote} if self.state.blind else {}))

    def _answer(self, routes: Any) -> None:
        path = urlsplit(self.path).path
        known = routes.get(path) or routes.get(f"/v1{path}")
        try:
            self._refuse_strangers(path)
            if known is None:
                raise Refused(404, f"there is no {path} here")
            known()
        except Refused as refused:
            self._json({"error": {"message": str(refused), "type": "invalid_request_error", "code": None}}, refused.status)
        except (ConnectionError, TimeoutError):
            self.close_connection = True
        except (RuntimeError, OSError) as error:
            if self._streaming:  # its status is sent
                self.wfile.write(b"data: " + orjson.dumps({"error": {"message": error_message(error), "type": "server_error"}}) + b"\n\n")
            else:
                self._json({"error": {"message": error_message(error), "type": "server_error", "code": None}}, 500)

    def _refuse_strangers(self, path: str) -> None:
        """A page of somebody else's in a browser has no token, and cannot take our name."""
        host = (self.headers.get("Host") or "").rpartition(":")[0]
        if host not in ("127.0.0.1", "localhost"):
            raise Refused(403, "this endpoint is for this machine alone")
        given = (self.headers.get("Authorization") or "").removeprefix("Bearer ").strip()
        if path not in ("/health", "/") and not hmac.compare_digest(given.encode(), self.state.token.encode()):
            raise Refused(401, "the token is missing or wrong: Authorization: Bearer TOKEN")

    def _json(self, value: Json, status: int = 200) -> None:
        self._send(orjson.dumps(value), "application/json", status)

    def _send(self, body: bytes, kind: str, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        if status >= 400:
            self.send_header("Connection", "close")
            self.close_connection = True  # a body that was not read would be taken for the next request
        self.end_headers()
        self.wfile.write(body)

    def _body(self) -> Json:
        length = self.headers.get("Content-Length") or ""
        if not re.fullmatch("[0-9]{1,9}", length) or int(length) > _LARGEST_BODY:
            raise Refused(413, f"a body of at most {_LARGEST_BODY:,} bytes, with its length, is needed")
        try:
            value = orjson.loads(self.rfile.read(int(length)))
        except orjson.JSONDecodeError as error:
            raise Refused(400, f"the body is not JSON: {error}") from None
        if not isinstance(value, dict):
            raise Refused(400, "the body is not a JSON object")
        return value

    def _health(self) -> None:
        self._json({"status": "ok", "engine": self.state.engine.name})

    def _metrics(self) -> None:
        lines = []
        for name, counts in (("requests", self.state.requests), ("tokens", self.state.tokens)):
            lines.append(f"# TYPE holdfast_{name}_total counter")
            lines += [f'holdfast_{name}_total{{model="{model}"}} {count}' for model, count in counts.items()]
        lines += ["# TYPE holdfast_seconds_total counter", f"holdfast_seconds_total {self.state.seconds:.3f}"]
        self._send(("\n".join(lines) + "\n").encode(), "text/plain; version=0.0.4")

    def _models(self) -> None:
        models = [{"id": name, "object": "model", "created": 0, "owned_by": f"holdfast:{self.state.name}"} for name in MODELS]
        self._json({"object": "list", "data": models})

    def _chat(self) -> None:
        body = self._body()
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            raise Refused(400, "messages: a list of {role, content}")
        self._complete(body, chat_ids(self.state.codec, [message_of(one) for one in messages]), chat=True)

    def _text(self) -> None:
        body = self._body()
        if not isinstance(body.get("prompt"), str):
            raise Refused(400, "prompt: a text")
        encoded = self.state.codec.tokenizer.encode(body["prompt"], add_special_tokens=False).ids
        self._complete(body, [*self.state.codec.bos, *encoded], chat=False)

    def _complete(self, body: Json, ids: list[int], chat: bool) -> None:
        wanted = wanted_of(self.state.context, body, ids, {"messages"} if chat else {"prompt"})
        name, made = ("chat.completion", "chatcmpl-") if chat else ("text_completion", "cmpl-")
        head: Json = {"id": made + uuid.uuid4().hex, "created": int(time.time()), "model": wanted.model}
        if body.get("stream"):
            self._streaming = True
            self._stream(wanted, head | {"object": f"{name}.chunk" if chat else name}, chat)
            return
        text, count, reason = collect(self.state, wanted, self._gone)
        choice: Json = {"index": 0, "finish_reason": reason, "logprobs": None}
        choice |= {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        usage = {"prompt_tokens": len(ids), "completion_tokens": count, "total_tokens": len(ids) + count}
        self._json(head | {"object": name, "choices": [choice], "usage": usage})

    def _stream(self, wanted: Wanted, head: Json, chat: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Cache-Control", "no-store")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True

        def say(piece: str, reason: str | None, first: bool = False) -> None:
            delta: Json = ({"role": "assistant"} if first else {}) | ({"content": piece} if piece or not reason else {})
            choice = {"index": 0, "finish_reason": reason} | ({"delta": delta} if chat else {"text": piece})
            self.wfile.write(b"data: " + orjson.dumps(head | {"choices": [choice]}) + b"\n\n")
            self.wfile.flush()

        first, count = True, 0
        with contextlib.closing(counted(self.state, wanted, self._gone)) as parts:
            for piece, tokens, reason in parts:
                count += tokens
                if piece or reason:
                    say(piece, reason, first)
                    first = False
        if wanted.tell_usage:
            usage = {"prompt_tokens": len(wanted.ids), "completion_tokens": count, "total_tokens": len(wanted.ids) + count}
            self.wfile.write(b"data: " + orjson.dumps(head | {"choices": [], "usage": usage}) + b"\n\n")
        self.wfile.write(b"data: [DONE]\n\n")

    def _page(self) -> None:
        if self.state.blind is None:
            raise Refused(404, "start it with --ab for the page that compares")
        self._send(self.state.page.encode(), "text/html; charset=utf-8")

    def _ask(self) -> None:
        body = self._body()
        prompt = body.get("prompt")
        if not isinstance(prompt, str) or not prompt.strip():
            raise Refused(400, "prompt: a text")
        ids = chat_ids(self.state.codec, [Message("user", prompt)])
        answers = {
            model: collect(
                self.state, wanted_of(self.state.context, {"model": model, "max_tokens": body.get("max_tokens")}, ids), self._gone
            )[0]
            for model in MODELS
        }
        self._json(self._blind.show(prompt, answers))

    def _vote(self) -> None:
        body = self._body()
        if body.get("choice") not in CHOICES:
            raise Refused(400, f"choice: one of {', '.join(CHOICES)}")
        counts = self._blind.vote(str(body.get("id")), body["choice"])
        if counts is None:
            raise Refused(404, "there is no such pair, or it was judged already")
        self._json(counts)

    def _gone(self) -> bool:
        """Whether the client has closed its connection."""
        if not select.select([self.connection], [], [], 0)[0]:
            return False
        return not self.connection.recv(1, socket.MSG_PEEK)

    @property
    def _blind(self) -> Blind:
        assert self.state.blind is not None  # its addresses are known with --ab alone
        return self.state.blind


def counted(state: State, wanted: Wanted, gone: Callable[[], bool]) -> Generator[tuple[str, int, str | None], None, None]:
    """What the engine gives up to a stop text, counted for the metrics. Raises ConnectionError once who asked has gone."""
    began = time.monotonic()
    state.requests[wanted.model] += 1
    try:
        with contextlib.closing(state.engine.stream(wanted)) as parts:
            for part in until(parts, wanted.stop):
                state.tokens[wanted.model] += part[1]
                if gone():
                    raise ConnectionResetError("the client has gone")
                yield part
    finally:
        state.seconds += time.monotonic() - began


def collect(state: State, wanted: Wanted, gone: Callable[[], bool]) -> tuple[str, int, str]:
    """A whole answer, its tokens, and why it ended."""
    texts, count, reason = [], 0, "length"
    with contextlib.closing(counted(state, wanted, gone)) as parts:
        for piece, tokens, why in parts:
            texts.append(piece)
            count, reason = count + tokens, why or reason
    return "".join(texts).strip(), count, reason
