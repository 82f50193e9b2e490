"""What a model is asked with: a conversation as training has it, up to where the answer begins."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import takewhile

from holdfast.data.judge.rules import NO_LIMIT, Rules
from holdfast.data.judge.turns import BadRow, Example, Message
from holdfast.data.templates.chat_template import learned_by, write
from holdfast.data.tokens.codec import Codec, Tokens


def prompt_ids(codec: Codec, turns: tuple[Message, ...], most_tokens: int) -> list[int]:
    """Return the tokens before the answer to these turns.

    Raises BadRow where the template refuses them, or writes nothing of a system message, or for more than `most_tokens`.
    """
    found = _answered(codec, turns)
    if len(found.ids) > most_tokens:
        raise BadRow("too_long", f"the conversation is longer than {most_tokens:,} tokens")
    ids = _before_answer(found)
    if len(turns) > 1 and turns[0].role == "system" and turns[0].content.strip() and _is_dropped(codec, turns, ids):
        raise BadRow("system_turn_dropped", "the chat template writes nothing of a system message: put it into the first question")
    return ids


def question_in(codec: Codec, ids: list[int]) -> str:
    """Return the text of a prompt without what the template writes around a single question; whole where it is of other turns."""
    try:
        one, other = (prompt_ids(codec, (Message("user", text),), NO_LIMIT) for text in "ab")
    except BadRow:
        one, other = [], []
    both = zip(one, other, strict=False), zip(one[::-1], other[::-1], strict=False)
    before, behind = (len([*takewhile(lambda pair: pair[0] == pair[1], pairs)]) for pairs in both)
    alone = len(ids) > before + behind and ids[:before] == one[:before] and ids[len(ids) - behind :] == one[len(one) - behind :]
    asked = ids[before : len(ids) - behind] if alone else ids
    return str(codec.tokenizer.decode(asked, skip_special_tokens=True)).strip()


def asked_and_answered(ids: list[int], learned: list[int], codec: Codec | None, ends: Sequence[int] = ()) -> tuple[list[int], list[int]]:
    """Return the tokens up to a row's first answer, and that answer; plain text is prompted with its first token.

    Where all is learned, a conversation's first answer stands between what the template writes before one and behind it; ends: tokens that
    end it, too.
    """
    opening, closing = _around_answer(codec) if codec and ids and learned[0] else ("", "")
    text = _text(codec, ids) if codec and opening else ""
    at = text.find(opening) if text else -1
    if codec and at >= 0 and (place := at + len(opening)) < len(text):
        begin = bisect_left(range(len(ids)), place, key=lambda count: len(_text(codec, ids[:count])))
        behind = text.find(closing, place) if closing else -1
        last = bisect_left(range(len(ids)), behind, key=lambda count: len(_text(codec, ids[:count]))) if behind >= 0 else len(ids)
        return ids[:begin], ids[begin : next((at + 1 for at in range(begin, min(last + 1, len(ids))) if ids[at] in ends), last)]
    first = max(1, learned.index(1) if 1 in learned else len(ids))
    end = next((place for place in range(first, len(ids)) if not learned[place]), len(ids))
    return ids[:first], ids[first:end]


def _text(codec: Codec, ids: list[int]) -> str:
    return str(codec.tokenizer.decode(ids, skip_special_tokens=False))


def _around_answer(codec: Codec) -> tuple[str, str]:
    """Return what the template writes between a question and its answer, and between that and the next question; "" where it is not told.

    What is nothing but space tells no place in a row.
    """
    before = (Message("user", "a"), Message("assistant", "x"))
    try:
        asked, other = (_text(codec, prompt_ids(codec, (Message("user", word),), NO_LIMIT)) for word in "ab")
        again = [_text(codec, prompt_ids(codec, (*before, Message("user", word)), NO_LIMIT)) for word in "ab"]
    except BadRow:
        return "", ""
    opening = _alike(asked[::-1], other[::-1])[::-1]
    closing = _alike(*(text.partition(f"{opening}x")[2] for text in again))
    return (opening, closing if closing.strip() else "") if opening.strip() else ("", "")


def _alike(one: str, other: str) -> str:
    """Return what both texts begin with."""
    return one[: len([*takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))])]


def _is_dropped(codec: Codec, turns: tuple[Message, ...], ids: list[int]) -> bool:
    """Return whether the turns are written alike without the first of them."""
    try:
        return _before_answer(_answered(codec, turns[1:])) == ids
    except BadRow:
        return False


def _answered(codec: Codec, turns: tuple[Message, ...]) -> Tokens:
    """Return the tokens of the turns with an answer of one letter. Raises BadRow."""
    written = learned_by(write(Example(messages=(*turns, Message("assistant", "x"))), codec.template), "last")
    found = codec.encode([written.sequences[-1]], Rules())[0]
    if not isinstance(found, Tokens):
        raise found
    return found


def _before_answer(found: Tokens) -> list[int]:
    return found.ids[: found.learned.index(True)]
