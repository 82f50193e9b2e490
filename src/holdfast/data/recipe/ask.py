"""Ask a language model behind an OpenAI-compatible endpoint, again where that can help. Knows nothing of rows; keeps nothing.

The wire: POST URL/chat/completions, https://platform.openai.com/docs/api-reference/chat; llama.cpp, vLLM, Ollama and others serve the same.
"""

from __future__ import annotations

import ipaddress
import random
import threading
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import orjson

from holdfast.base.errors import GAVE_UP, USAGE, Stop
from holdfast.base.files import Json
from holdfast.data.recipe.wire import Reply, RequestFailed, Wire, shown

_AGAIN = {408, 409, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529}
_LONGEST_PAUSE_S = 30.0
_MOST_TOKENS = 1 << 40  # that an answer may claim to have taken


class Answer(NamedTuple):
    """What the model wrote; tokens are None where the endpoint does not count them. `cut`: it ran into its limit."""

    text: str
    tokens_in: int | None
    tokens_out: int | None
    cut: bool


@dataclass(frozen=True)
class Endpoint:
    """Where to ask, and how patiently. `key` is sent as a bearer token and shown nowhere."""

    url: str
    model: str
    key: str | None = field(default=None, repr=False)
    timeout_s: float = 120.0
    retries: int = 6
    first_pause_s: float = 0.5

    @property
    def address(self) -> str:
        base = self.url.rstrip("/")
        if base.endswith("/chat/completions"):
            return base
        return f"{base}{'' if urlsplit(base).path else '/v1'}/chat/completions"

    @property
    def in_the_clear(self) -> bool:
        """Whether the key would cross a network unencrypted."""
        host = urlsplit(self.url).hostname or ""
        return bool(self.key) and self.url.startswith("http://") and not _loopback(host)

    def check(self) -> None:
        """Raise Stop(2) where the address cannot be asked, or says who asks in two ways."""
        try:
            parts = urlsplit(self.url)
            known, _ = bool(parts.hostname), parts.port
        except ValueError:
            known = False
        if not known:
            raise Stop(USAGE, f"--endpoint {shown(self.url)}: no address of a server", "for example: http://127.0.0.1:8080/v1")
        if self.key and parts.username is not None:
            text = f"--endpoint {shown(self.url)} has a name and password in it, and there is a key: only one of them can be sent"
            raise Stop(USAGE, text, "take them out of the address, or unset the variable of --key-env")


class _Again(Exception):
    """A failure that may pass; `pause_s`: what the endpoint asks to wait."""

    def __init__(self, why: str, pause_s: float = 0.0) -> None:
        super().__init__(why)
        self.pause_s = pause_s


class Asker:
    """Asks from several threads at once. Use it in a with statement; leaving it ends what is under way."""

    def __init__(self, endpoint: Endpoint) -> None:
        endpoint.check()
        self._endpoint = endpoint
        self._wire = Wire(endpoint.key, endpoint.timeout_s)
        self._over = threading.Event()
        self._takes_schema = True
        self.retries = 0

    def __enter__(self) -> Asker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._over.set()
        self._wire.close()

    def ask(self, messages: list[Json], schema: Json, max_tokens: int) -> Answer:
        """Return the model's answer, which should follow the JSON schema. Raises Stop(2) for a refusal, Stop(3) when it fails too often."""
        pause_s = self._endpoint.first_pause_s
        for attempt in range(self._endpoint.retries + 1):
            try:
                return self._ask_once(messages, schema, max_tokens)
            except _Again as failure:
                why = failure
            if attempt == self._endpoint.retries:
                break
            self.retries += 1
            self._over.wait(min(max(pause_s * random.uniform(0.8, 1.2), why.pause_s), _LONGEST_PAUSE_S))
            if self._over.is_set():
                break
            pause_s *= 2
        raise Stop(
            GAVE_UP,
            f"{shown(self._endpoint.address)} failed {self._endpoint.retries + 1} times in a row: {why}",
            "what was written is kept; rerun the same command to resume",
        )

    def _ask_once(self, messages: list[Json], schema: Json, max_tokens: int) -> Answer:
        body: Json = {"model": self._endpoint.model, "messages": messages, "max_tokens": max_tokens, "temperature": 1.0}
        with_schema = self._takes_schema
        if with_schema:
            body["response_format"] = {"type": "json_schema", "json_schema": {"name": "rows", "schema": schema, "strict": True}}
        try:
            reply = self._wire.post(self._endpoint.address, body)
        except RequestFailed as error:
            raise _Again(str(error)) from error
        if reply.status in _AGAIN:
            raise _Again(f"status {reply.status}: {_short(reply.body)}", _seconds(reply.retry_after))
        if reply.status in (400, 422) and with_schema:  # many servers know no schemas
            self._takes_schema = False
            raise _Again(f"status {reply.status}: {_short(reply.body)}")
        if reply.status != 200:
            hint = "--key-env names the variable that holds the key" if reply.status in (401, 403) else "look at --endpoint and --model"
            raise Stop(USAGE, f"{shown(self._endpoint.address)} answers with status {reply.status}: {_short(reply.body)}", hint)
        return _answer(reply)


def _answer(reply: Reply) -> Answer:
    try:
        value: Any = orjson.loads(reply.body)
        choice = value["choices"][0]
        text = choice["message"]["content"]
        usage = value.get("usage") or {}
        counts = [usage.get(name) for name in ("prompt_tokens", "completion_tokens")]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise _Again(f"the answer is no chat completion ({type(error).__name__}): {_short(reply.body)}") from error
    if not isinstance(text, str):
        raise _Again(f"the answer has no text: {_short(reply.body)}")
    tokens = [count if type(count) is int and 0 <= count < _MOST_TOKENS else None for count in counts]
    return Answer(text, tokens[0], tokens[1], choice.get("finish_reason") == "length")


def _short(body: bytes) -> str:
    return " ".join(body[:2000].decode(errors="replace").split())[:200] or "(nothing)"


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _seconds(header: str | None) -> float:
    try:
        return max(0.0, float(header or 0))
    except ValueError:  # a date
        return 0.0
