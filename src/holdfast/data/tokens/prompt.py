"""What a model is asked with: a conversation as training has it, up to where the answer begins."""

from __future__ import annotations

from holdfast.data.judge.rules import Rules
from holdfast.data.judge.turns import BadRow, Example, Message
from holdfast.data.templates.chat_template import learned_by, write
from holdfast.data.tokens.codec import Codec, Tokens


def prompt_ids(codec: Codec, turns: tuple[Message, ...], most_tokens: int) -> list[int]:
    """Return the tokens before the answer to these turns. Raises BadRow where the template refuses them, or for more than `most_tokens`."""
    written = learned_by(write(Example(messages=(*turns, Message("assistant", "x"))), codec.template), "last")
    found = codec.encode([written.sequences[-1]], Rules())[0]
    if not isinstance(found, Tokens):
        raise found
    if len(found.ids) > most_tokens:
        raise BadRow("too_long", f"the conversation is longer than {most_tokens:,} tokens")
    return found.ids[: found.learned.index(True)]
