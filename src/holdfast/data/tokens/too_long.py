"""Fit a row that is too long into the limit: cut it, or make several rows of it at its turns, then at its sentences. Reads no file.

A row that is split stays one row of the file. Every token of its answers is learned once; parts of one answer repeat the prompt and
some of what stood before, which is not learned again.
"""

from __future__ import annotations

import bisect
import dataclasses
import re
from collections.abc import Iterator
from typing import NamedTuple

from holdfast.data.judge.rules import NO_LIMIT, Rules
from holdfast.data.judge.turns import BadRow, Example, Message
from holdfast.data.tokens.chat_template import pieces
from holdfast.data.tokens.codec import Codec, Fit, Tokens

Changes = tuple[tuple[str, str], ...]  # (reason, detail) each
_SENTENCE_END = re.compile(r"[.!?。！？][\"'”’)\]]*(?=\s|$)|(?<=[。！？])|\n(?=\S)")


class Parts(NamedTuple):
    """What is trained on of one row, and what was done for that."""

    rows: tuple[Tokens, ...]
    changes: Changes = ()


class Sizes(NamedTuple):
    """The same in numbers: tokens of each part, and of the whole row."""

    lengths: tuple[int, ...]
    whole: int
    changes: Changes = ()


def fitted(example: Example, tokens: Tokens | BadRow, codec: Codec, rules: Rules) -> Parts:
    """A row as `tokens` has it, cut, or split where the rules say so. Raises BadRow where nothing of it can be learned."""
    if rules.too_long == "split" and (isinstance(tokens, BadRow) or tokens.cut):
        return _split(example, codec, rules)[0]
    if isinstance(tokens, BadRow):
        raise tokens
    return Parts((tokens,), _cut(tokens.cut, len(tokens.ids) + tokens.cut) if tokens.cut else ())


def fitted_sizes(example: Example, size: Fit | BadRow, codec: Codec, rules: Rules) -> Sizes:
    """What `fitted` would give, without the token numbers where they are not needed. Raises BadRow as it does."""
    if rules.too_long == "split" and (isinstance(size, BadRow) or size.cut):
        parts, whole = _split(example, codec, rules)
        return Sizes(tuple([len(part.ids) for part in parts.rows]), whole, parts.changes)
    if isinstance(size, BadRow):
        raise size
    whole = size.tokens + size.cut
    return Sizes((size.tokens,), whole, _cut(size.cut, whole) if size.cut else ())


def _cut(lost: int, whole: int) -> Changes:
    return (("answer_cut", f"{lost:,} of {whole:,} tokens are left out in training; the row stays whole"),)


def _split(example: Example, codec: Codec, rules: Rules) -> tuple[Parts, int]:
    """The parts of a row, and the tokens of the whole one."""
    whole = _whole(example, codec)
    found: list[Tokens] = []
    lost, refused = 0, None
    for part in _by_turns(example, codec, rules):
        tokens = _whole(part, codec)
        try:
            fit = _by_sentences(tokens, codec, part, rules)
        except BadRow as bad:
            refused, lost = bad, lost + len(tokens.ids)
            continue
        found += fit
        lost += fit[-1].cut
    if refused and not found:
        raise refused
    changes: list[tuple[str, str]] = []
    if len(found) > 1:
        changes.append(("row_split", f"{len(whole.ids):,} tokens are trained on as {len(found)} rows; the row stays whole"))
    return Parts(tuple(found), (*changes, *(_cut(lost, len(whole.ids)) if lost else ()))), len(whole.ids)


def _whole(example: Example, codec: Codec) -> Tokens:
    (tokens,) = codec.encode([pieces(example, codec.template)], Rules(max_tokens=NO_LIMIT))
    if isinstance(tokens, BadRow):
        raise tokens
    return tokens


def _by_turns(example: Example, codec: Codec, rules: Rules) -> Iterator[Example]:
    """The conversation in stretches of exchanges that fit, each with the system's turn; an exchange too long alone is one stretch."""
    messages = example.messages
    head = messages[:1] if messages and messages[0].role == "system" else ()
    stretch: tuple[Message, ...] = ()
    for exchange in _exchanges(messages[len(head) :]):
        longer = dataclasses.replace(example, messages=(*head, *stretch, *exchange))
        if stretch and len(_whole(longer, codec).ids) > rules.max_tokens:
            yield dataclasses.replace(example, messages=(*head, *stretch))
            stretch = ()
        stretch += exchange
    yield dataclasses.replace(example, messages=(*head, *stretch)) if messages else example


def _exchanges(messages: tuple[Message, ...]) -> Iterator[tuple[Message, ...]]:
    """Each from the user's first word up to the last answer to it; a question at the end that nobody answers is left out."""
    first = 0
    for at in range(1, len(messages)):
        if messages[at].role == "user" and messages[at - 1].role != "user":
            yield messages[first:at]
            first = at
    if any(message.role == "assistant" for message in messages[first:]):
        yield messages[first:]


def _by_sentences(whole: Tokens, codec: Codec, example: Example, rules: Rules) -> list[Tokens]:
    """The row itself where it fits; else its one answer in parts that end with a sentence; else its beginning. Raises BadRow."""
    limit, size = rules.max_tokens, len(whole.ids)
    if size <= limit:
        return [whole]
    parts = pieces(example, codec.template)
    answer = codec.tokenizer.encode(parts[-1][0], add_special_tokens=False)
    given = size - len(answer.ids)
    if [learned for _, learned in parts].count(True) != 1 or not parts[-1][1] or given > limit // 2:
        learned = sum(whole.learned[1:limit])
        if not learned:
            raise BadRow("all_labels_masked", f"the answer begins after max_tokens = {limit}; the row has {size} tokens")
        return [Tokens(whole.ids[:limit], whole.learned[:limit], size - limit)]
    ends = _sentence_ends(parts[-1][0], [start for start, _ in answer.offsets])
    found = []
    begin, again = given, 0
    while begin < size:
        room = limit - given - again
        end = size if size - begin <= room else _last(ends, begin - given, begin - given + room) + given
        ids = whole.ids[:given] + whole.ids[begin - again : end]
        flags = [False] * (given + again) + whole.learned[begin:end]
        found.append(Tokens(ids, flags, 0))
        again = end - given - _first(ends, end - given - max(1, room // 4), end - given)
        begin = end
    return found


def _sentence_ends(text: str, starts: list[int]) -> list[int]:
    """The tokens that sentences end before, by where each token begins in the text."""
    return sorted({bisect.bisect_left(starts, match.end()) for match in _SENTENCE_END.finditer(text)})


def _last(ends: list[int], after: int, up_to: int) -> int:
    """The last sentence end in (after, up_to], else up_to itself."""
    at = bisect.bisect_right(ends, up_to) - 1
    return ends[at] if at >= 0 and ends[at] > after else up_to


def _first(ends: list[int], from_: int, before: int) -> int:
    """The first sentence end in [from_, before), else `before` less one token."""
    at = bisect.bisect_left(ends, from_)
    return ends[at] if at < len(ends) and ends[at] < before else before - 1
