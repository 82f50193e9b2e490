"""What a client asks for: understood, or refused with the status that says so. Knows no HTTP and no engine at work."""

from __future__ import annotations

import math
from typing import Any

from holdfast.base.files import Json
from holdfast.data.judge.rules import Rules
from holdfast.data.judge.turns import BadRow, Example, Message
from holdfast.data.tokens.chat_template import pieces
from holdfast.data.tokens.codec import Codec, Tokens
from holdfast.serve.engines import MODELS, Wanted

_LONGEST = 512  # tokens of an answer that asks for no number


class Refused(Exception):
    """What a client did wrong, and the status that says so."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def message_of(one: Any) -> Message:
    """A turn of a conversation. Raises Refused."""
    if not isinstance(one, dict) or one.get("role") not in ("system", "developer", "user", "assistant"):
        raise Refused(400, "each message has a role (system, user or assistant) and a content")
    content = one.get("content")
    if isinstance(content, list):
        content = "".join(str(part.get("text", "")) for part in content if isinstance(part, dict) and part.get("type") == "text")
    if not isinstance(content, str):
        raise Refused(400, "the content of a message is a text")
    return Message("system" if one["role"] == "developer" else one["role"], content)


def chat_ids(codec: Codec, turns: list[Message]) -> list[int]:
    """A conversation as training has it, up to where the answer begins."""
    try:
        example = Example(messages=(*turns, Message("assistant", "x")))
        tokens = codec.encode([pieces(example, codec.template)], Rules())[0]
    except BadRow as bad:
        raise Refused(400, bad.detail) from None
    if not isinstance(tokens, Tokens):
        raise Refused(400, tokens.detail)
    last = len(tokens.ids) - next(at for at, learned in enumerate(reversed(tokens.learned)) if not learned)
    return tokens.ids[:last]


def wanted_of(context: int, body: Json, ids: list[int]) -> Wanted:
    """The settings of a request. Raises Refused for one that is not understood."""
    model = body.get("model", "tuned")
    if model not in MODELS:
        raise Refused(404, f"there is no model {model!r}: one of {', '.join(MODELS)}")
    if body.get("n", 1) != 1:
        raise Refused(400, "n: one answer at a time")
    numbers: dict[str, float] = {}
    for name, default, low, high in (("temperature", 0.0, 0.0, 5.0), ("top_p", 1.0, 0.0, 1.0), ("seed", 0, -(2**62), 2**62)):
        value = body.get(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or not low <= value <= high:
            raise Refused(400, f"{name}: a number from {low} to {high}")
        numbers[name] = value
    room = context - len(ids)
    if room < 1:
        raise Refused(400, f"the prompt has {len(ids):,} tokens, the model takes {context:,}")
    longest = body.get("max_completion_tokens") or body.get("max_tokens") or min(_LONGEST, room)
    if not isinstance(longest, int) or longest < 1:
        raise Refused(400, "max_tokens: a whole number from 1")
    seed = int(numbers["seed"]) % 2**31
    return Wanted(model, ids, min(longest, room), float(numbers["temperature"]), float(numbers["top_p"]), seed)
