"""What a client asks for: understood, or refused with the status that says so. Knows no HTTP and no engine at work."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from holdfast.base.files import Json
from holdfast.data.judge.rules import NO_LIMIT
from holdfast.data.judge.turns import BadRow, Message
from holdfast.data.tokens.codec import Codec
from holdfast.data.tokens.prompt import prompt_ids
from holdfast.serve.endpoint import RequestRefused
from holdfast.serve.engines import MODELS, AnswerRequest

_LONGEST = 512  # tokens of an answer that asks for no number
_MOST_STOPS = 16
_UNDERSTOOD = {"model", "n", "temperature", "top_p", "seed", "max_tokens", "max_completion_tokens", "stream", "stream_options", "stop"}
_WITHOUT_EFFECT = {"user", "metadata", "store", "service_tier", "parallel_tool_calls", "safety_identifier", "prompt_cache_key"}
_NEUTRAL: dict[str, tuple[Any, ...]] = {  # values that ask for what is done anyway
    "logprobs": (False,),
    "response_format": ({"type": "text"},),
    "tools": ([],),
    "functions": ([],),
    "tool_choice": ("none", "auto"),
    "presence_penalty": (0, 0.0),
    "frequency_penalty": (0, 0.0),
    "logit_bias": ({},),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "modalities": (["text"],),
}


def message_of(one: Any) -> Message:
    """Parse a turn of a conversation. Raises RequestRefused."""
    if not isinstance(one, dict) or one.get("role") not in ("system", "developer", "user", "assistant"):
        raise RequestRefused(400, "each message has a role (system, user or assistant) and a content")
    if one.get("tool_calls") or one.get("function_call"):
        raise RequestRefused(400, "calls of tools in a message: not supported here, and nothing is left out in silence; leave them out")
    content = one.get("content")
    if isinstance(content, list):
        for part in content:
            if not (isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)):
                kind = part.get("type") if isinstance(part, dict) else type(part).__name__
                raise RequestRefused(
                    400, f"a part of a message's content is a text; {kind!r} is not supported here, and not left out in silence"
                )
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str):
        raise RequestRefused(400, "the content of a message is a text")
    return Message("system" if one["role"] == "developer" else one["role"], content)


def chat_ids(codec: Codec, turns: list[Message]) -> list[int]:
    """Encode a conversation as training has it, up to where the answer begins."""
    try:
        return prompt_ids(codec, (*turns,), NO_LIMIT)
    except BadRow as bad:
        raise RequestRefused(400, bad.detail) from None


def text_ids(codec: Codec, text: str) -> list[int]:
    """Encode a text as training has one that passes through no template: behind what the tokenizer itself begins with."""
    lead, own = codec.template.lead, codec.tokenizer.encode(text, add_special_tokens=False).ids
    begun = text.startswith(tuple(filter(None, (lead, codec.template.bos))))
    return own if begun or not lead else [*codec.tokenizer.encode(lead, add_special_tokens=False).ids, *own]


def wanted_of(
    context: int, body: Json, ids: list[int], read: Iterable[str] = (), models: Sequence[str] = MODELS, longer: str = ""
) -> AnswerRequest:
    """Return the settings of a request to one of `models`. read: its keys that were dealt with; longer: how to have a longer context.

    Without a seed each answer is another draw. Raises RequestRefused for a key that is not understood, or a model that is not known.
    """
    body = {name: value for name, value in body.items() if value is not None}
    for name in body.keys() - _UNDERSTOOD - _WITHOUT_EFFECT - set(read):
        if not any(type(value) is type(body[name]) and value == body[name] for value in _NEUTRAL.get(name, ())):
            raise RequestRefused(400, f"{name}: not supported here, and nothing is left out in silence; leave it out")
    model = body.get("model", "tuned")
    if model not in models:
        raise RequestRefused(404, f"there is no model {model!r}: one of {', '.join(models)}")
    if type(body.get("n", 1)) is not int or body.get("n", 1) != 1:
        raise RequestRefused(400, "n: one answer at a time")
    numbers: dict[str, float] = {}
    for name, default, low, high in (
        ("temperature", 0.0, 0.0, 5.0),
        ("top_p", 1.0, 0.0, 1.0),
        ("seed", secrets.randbits(31), -(2**62), 2**62),
    ):
        value = body.get(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or not low <= value <= high:
            raise RequestRefused(400, f"{name}: a number from {low} to {high}")
        numbers[name] = value
    room = context - len(ids)
    if room < 1:
        who = "this endpoint" if longer else "the model"
        raise RequestRefused(400, f"the prompt has {len(ids):,} tokens, {who} takes {context:,}" + f"; {longer}" * bool(longer))
    longest = body.get("max_completion_tokens", body.get("max_tokens", min(_LONGEST, room)))
    if type(longest) is not int or longest < 1:
        raise RequestRefused(400, "max_tokens: a whole number from 1")
    if type(body.get("stream", False)) is not bool:
        raise RequestRefused(400, "stream: true or false")
    seed = int(numbers["seed"]) % 2**31
    return AnswerRequest(
        model, ids, min(longest, room), float(numbers["temperature"]), float(numbers["top_p"]), seed, _stops(body), _tell_usage(body)
    )


def _stops(body: Json) -> tuple[str, ...]:
    given = body.get("stop", [])
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or len(texts) > _MOST_STOPS or not all(isinstance(text, str) and text for text in texts):
        raise RequestRefused(400, f"stop: a text, or a list of at most {_MOST_STOPS}")
    return tuple(texts)


def _tell_usage(body: Json) -> bool:
    options = body.get("stream_options", {})
    if not isinstance(options, dict) or options.keys() - {"include_usage"} or type(options.get("include_usage", False)) is not bool:
        raise RequestRefused(400, "stream_options: {include_usage: true or false}")
    return bool(options.get("include_usage"))


def trimmed(parts: Iterable[tuple[str, int, str | None]]) -> Iterator[tuple[str, int, str | None]]:
    """Yield the parts of an answer without the white space it begins and ends with, as `str.strip` leaves it; what may be its end waits."""
    held, begun = "", False
    for piece, tokens, reason in parts:
        text = held + piece if begun else piece.lstrip()
        ready = text.rstrip()
        held, begun = text[len(ready) :], begun or bool(ready)
        yield ready, tokens, reason


def until(parts: Iterable[tuple[str, int, str | None]], stops: tuple[str, ...]) -> Iterator[tuple[str, int, str | None]]:
    """Yield the parts of an answer up to the first of `stops`, which is left out; what may be the beginning of one waits."""
    held = ""
    for piece, tokens, reason in parts:
        held += piece
        at = min((held.find(stop) for stop in stops if stop in held), default=-1)
        if at >= 0:
            yield held[:at], tokens, "stop"
            return
        begun = (length for stop in stops for length in range(len(stop) - 1, 0, -1) if held.endswith(stop[:length]))
        ready = len(held) if reason else len(held) - max(begun, default=0)
        yield held[:ready], tokens, reason
        held = held[ready:]
