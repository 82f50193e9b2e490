"""The endpoint: OpenAI's chat and completions on loopback behind a token, health, metrics, and the page for comparing by eye."""

from __future__ import annotations

import contextlib
import functools
import select
import socket
import time
import uuid
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from http.server import ThreadingHTTPServer

import orjson

from holdfast.base.files import Json
from holdfast.data.judge.turns import Message
from holdfast.serve.endpoint import LOOPBACK, GuardedHandler, RequestRefused, open_server
from holdfast.serve.engines import AnswerRequest, Engine
from holdfast.serve.preferences import CHOICES, Blind
from holdfast.serve.requests import chat_ids, message_of, text_ids, trimmed, until, wanted_of
from holdfast.serve.served import GatewayState, ServedModel

_LOOK_S = 0.1  # how often one that waits looks whether its client is still there


def open_gateway(state: GatewayState, port: int) -> ThreadingHTTPServer:
    """Open a server that listens on 127.0.0.1. Raises Stop(2) where the port is taken."""
    return open_server(LOOPBACK, port, type("Bound", (GatewayHandler,), {"state": state}))


class GatewayHandler(GuardedHandler):
    """One request for base or tuned model."""

    state: GatewayState

    def secret(self) -> str:
        return self.state.token

    def is_open(self, path: str) -> bool:
        return path in ("/health", "/")

    def do_GET(self) -> None:
        self.answer({"/health": self._health, "/metrics": self._metrics, "/v1/models": self._models, "/": self._page})

    def do_POST(self) -> None:
        posts = {"/v1/chat/completions": self._chat, "/v1/completions": self._text}
        self.answer(posts | ({"/ab/ask": self._ask, "/ab/vote": self._vote} if self.state.blind else {}))

    def _health(self) -> None:
        served = self.state.served
        trouble = getattr(served.engine, "trouble", "")
        facts: Json = {"status": "down" if trouble else "ok", "engine": served.engine.name, "serves": served.name}
        facts["context"] = served.context
        self.send_json(facts | ({"reason": trouble} if trouble else {}), 503 if trouble else 200)

    def _metrics(self) -> None:
        lines = []
        for name, counts in (("requests", self.state.requests), ("tokens", self.state.tokens)):
            lines.append(f"# TYPE holdfast_{name}_total counter")
            lines += [f"holdfast_{name}_total{{model={orjson.dumps(model).decode()}}} {count}" for model, count in counts.items()]
        lines += ["# TYPE holdfast_seconds_total counter", f"holdfast_seconds_total {self.state.seconds:.3f}"]
        self.send_body(("\n".join(lines) + "\n").encode(), "text/plain; version=0.0.4")

    def _models(self) -> None:
        served = self.state.served
        facts: Json = {"object": "model", "created": 0, "owned_by": f"holdfast:{served.name}", "max_model_len": served.context}
        self.send_json({"object": "list", "data": [{"id": name} | facts for name in served.models]})

    def _chat(self) -> None:
        body = self.read_body()
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            raise RequestRefused(400, "messages: a list of {role, content}")
        turns = [message_of(one) for one in messages]
        with self.state.held() as served:
            self._complete(served, body, chat_ids(served.codec, turns), chat=True)

    def _text(self) -> None:
        body = self.read_body()
        if not isinstance(body.get("prompt"), str):
            raise RequestRefused(400, "prompt: a text")
        with self.state.held() as served:
            self._complete(served, body, text_ids(served.codec, body["prompt"]), chat=False)

    def _complete(self, served: ServedModel, body: Json, ids: list[int], chat: bool) -> None:
        read = {"messages"} if chat else {"prompt"}
        asked = replace(wanted_of(served.context, body, ids, read, served.models, served.longer), goes_on=not chat)
        self.state.refuse(asked.model)
        wanted, told = served.routed(asked)
        name, made = ("chat.completion", "chatcmpl-") if chat else ("text_completion", "cmpl-")
        head: Json = {"id": made + uuid.uuid4().hex, "created": int(time.time()), "model": asked.model, "system_fingerprint": served.name}
        head |= told
        if body.get("stream"):
            self._stream(served, wanted, head | {"object": f"{name}.chunk" if chat else name}, chat)
            return
        text, count, reason = collect(self.state, served, wanted, self._gone)
        choice: Json = {"index": 0, "finish_reason": reason, "logprobs": None}
        choice |= {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        usage = {"prompt_tokens": len(ids), "completion_tokens": count, "total_tokens": len(ids) + count}
        self.send_json(head | {"object": name, "choices": [choice], "usage": usage})

    def _stream(self, served: ServedModel, wanted: AnswerRequest, head: Json, chat: bool) -> None:
        self.begin_stream()

        def say(piece: str, reason: str | None, first: bool = False) -> None:
            delta: Json = ({"role": "assistant"} if first else {}) | ({"content": piece} if piece or not reason else {})
            choice = {"index": 0, "finish_reason": reason} | ({"delta": delta} if chat else {"text": piece})
            self.send_event(head | {"choices": [choice]})

        first, count = True, 0
        with contextlib.closing(counted(self.state, served, wanted, self._gone)) as parts:
            for piece, tokens, reason in parts:
                count += tokens
                if piece or reason:
                    say(piece, reason, first)
                    first = False
        if wanted.tell_usage:
            usage = {"prompt_tokens": len(wanted.ids), "completion_tokens": count, "total_tokens": len(wanted.ids) + count}
            self.send_event(head | {"choices": [], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")

    def _page(self) -> None:
        if self.state.blind is None:
            raise RequestRefused(404, "start it with --ab for the page that compares")
        self.send_body(self.state.page.encode(), "text/html; charset=utf-8")

    def _ask(self) -> None:
        """Answer with both models of the pair, left first: as one JSON object, or with `stream` in parts as they come."""
        body, blind = self.read_body(), self._blind
        prompt = body.get("prompt")
        if not isinstance(prompt, str) or not prompt.strip():
            raise RequestRefused(400, "prompt: a text")
        order, answers, streamed = blind.draw(), dict[str, str](), bool(body.get("stream"))
        for model in blind.models:
            self.state.refuse(model)
        with self.state.held() as served:
            ids = chat_ids(served.codec, [Message("user", prompt)])
            settings = {"max_tokens": body.get("max_tokens")}
            asked = [settings | {"model": model} for model in order]
            wishes = [wanted_of(served.context, one, ids, (), served.models, served.longer) for one in asked]
            if streamed:
                self.begin_stream()
            for side, wanted in zip(("left", "right"), wishes, strict=True):
                say = functools.partial(self._send_part, side) if streamed else None
                answers[wanted.model] = collect(self.state, served, served.routed(wanted)[0], self._gone, say)[0]
        send = self.send_event if streamed else self.send_json
        send(blind.show(prompt, answers, order, served.name))

    def _send_part(self, side: str, text: str) -> None:
        self.send_event({"side": side, "text": text})

    def _vote(self) -> None:
        body = self.read_body()
        if body.get("choice") not in CHOICES:
            raise RequestRefused(400, f"choice: one of {', '.join(CHOICES)}")
        kept = self._blind.vote(str(body.get("id")), body["choice"])
        if kept is None:
            raise RequestRefused(404, "there is no such pair, or it was judged already")
        self.send_json(kept)

    def _gone(self) -> bool:
        """True if the client has closed its connection."""
        if not select.select([self.connection], [], [], 0)[0]:
            return False
        return not self.connection.recv(1, socket.MSG_PEEK)

    @property
    def _blind(self) -> Blind:
        assert self.state.blind is not None  # its addresses are known with --ab alone
        return self.state.blind


@contextlib.contextmanager
def _turn(served: ServedModel, gone: Callable[[], bool]) -> Iterator[None]:
    """Wait until the engine is free, so that who has gone meanwhile keeps no place. Raises ConnectionError for those."""
    while not served.turns.acquire(timeout=_LOOK_S):
        if gone():
            raise ConnectionResetError("the client has gone")
    try:
        if gone():
            raise ConnectionResetError("the client has gone")
        yield
    finally:
        served.turns.release()


def _asked(engine: Engine, wanted: AnswerRequest) -> Generator[tuple[str, int, str | None], None, None]:
    """Yield what the engine gives. Raises RuntimeError where it cannot be reached: no error of the client's, who is to be told."""
    try:
        yield from engine.stream(wanted)
    except OSError as error:
        raise RuntimeError(f"the model's process does not answer: {error}") from error


def counted(
    state: GatewayState, served: ServedModel, wanted: AnswerRequest, gone: Callable[[], bool]
) -> Generator[tuple[str, int, str | None], None, None]:
    """Yield what the engine gives up to a stop text, counted for the metrics; an answer without white space around it.

    Raises ConnectionError once the client has gone.
    """
    began = time.monotonic()
    state.requests[wanted.model] += 1
    try:
        with _turn(served, gone), contextlib.closing(_asked(served.engine, wanted)) as parts:
            ended = until(parts, wanted.stop)
            for part in ended if wanted.goes_on else trimmed(ended):
                state.tokens[wanted.model] += part[1]
                if gone():
                    raise ConnectionResetError("the client has gone")
                yield part
    finally:
        state.seconds += time.monotonic() - began


def collect(
    state: GatewayState, served: ServedModel, wanted: AnswerRequest, gone: Callable[[], bool], say: Callable[[str], None] | None = None
) -> tuple[str, int, str]:
    """Return a whole answer, its tokens, and why it ended. say: is given each part of it as it comes."""
    texts, count, reason = [], 0, "length"
    with contextlib.closing(counted(state, served, wanted, gone)) as parts:
        for piece, tokens, why in parts:
            if say and piece:
                say(piece)
            texts.append(piece)
            count, reason = count + tokens, why or reason
    return "".join(texts), count, reason
