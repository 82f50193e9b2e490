"""Fit a row that is too long into the limit: cut it, or make several rows of it at its turns, then at its sentences. Reads no file.

A row that is split stays one row of the file. Every token of its answers is learned once; parts of one answer repeat the prompt and
some of what stood before, which is not learned again.
"""

from __future__ import annotations

import bisect
import dataclasses
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from holdfast.base.units import counted
from holdfast.data.judge.rules import NO_LIMIT, Rules
from holdfast.data.judge.turns import BadRow, Example, Message
from holdfast.data.templates.chat_template import write
from holdfast.data.templates.skeleton import Piece
from holdfast.data.tokens.codec import Codec, Fit, Tokens, fit

Changes = tuple[tuple[str, str], ...]  # (reason, detail) each
_SENTENCE_END = re.compile(r"[.!?。！？][\"'”’)\]]*(?=\s|$)|(?<=[。！？])|\n(?=\S)")


class Parts(NamedTuple):
    """What is trained on of one row, and what was done for that."""

    rows: tuple[Tokens, ...]
    changes: Changes = ()
    lost: int = 0  # answers of which nothing is learned
    torn: int = 0  # answers of which the end is not
    whole: int = 0  # tokens before anything was cut or split


class Sizes(NamedTuple):
    """The same in numbers: tokens of each part, and of the whole row."""

    lengths: tuple[int, ...]
    whole: int
    changes: Changes = ()
    lost: int = 0
    torn: int = 0


def fitted(example: Example, found: Tokens | BadRow | Sequence[Tokens | BadRow], codec: Codec, rules: Rules) -> Parts:
    """Return a row's sequences as in `found`, cut, or split where the rules say so. Raises BadRow where nothing of it can be learned."""
    found = [found] if isinstance(found, Tokens | BadRow) else found
    if rules.too_long == "split" and any(isinstance(tokens, BadRow) or tokens.cut for tokens in found):
        return _split(example, codec, rules)[0]
    rows = [tokens for tokens in found if not isinstance(tokens, BadRow)]
    missed = _missed(found, rules)
    cut = sum(tokens.cut for tokens in rows)
    whole = sum(len(tokens.ids) for tokens in rows) + cut
    lost, torn = missed + sum(one.lost for one in rows), sum(one.torn for one in rows)
    return Parts(tuple(rows), _cut(cut, whole, missed), lost, torn, whole)


def fitted_sizes(example: Example, found: Sequence[int | Fit | BadRow], codec: Codec, rules: Rules) -> Sizes:
    """Return the sizes of `fitted`, without the token numbers where they are not needed. Raises BadRow as it does."""
    if rules.too_long == "split" and any(isinstance(size, BadRow) or (isinstance(size, Fit) and size.cut) for size in found):
        parts, whole = _split(example, codec, rules)
        return Sizes(tuple([len(part.ids) for part in parts.rows]), whole, parts.changes, parts.lost, parts.torn)
    missed = _missed(found, rules)
    sizes = [size if isinstance(size, Fit) else Fit(size, 0, size) for size in found if not isinstance(size, BadRow)]
    cut = sum(size.cut for size in sizes)
    whole = sum(size.tokens for size in sizes) + cut
    lost, torn = missed + sum(size.lost for size in sizes), sum(size.torn for size in sizes)
    return Sizes(tuple([size.tokens for size in sizes]), whole, _cut(cut, whole, missed), lost, torn)


def _missed(found: Sequence[object], rules: Rules) -> int:
    """Count the sequences of a row with nothing to learn within the limit. Raises BadRow where all are so, or too long for the rules."""
    bad = [one for one in found if isinstance(one, BadRow)]
    if bad and (len(bad) == len(found) or rules.too_long == "reject"):
        raise bad[0]
    return len(bad)


def _cut(lost: int, whole: int, missed: int = 0) -> Changes:
    if missed:
        return (("answer_cut", f"{missed} of its answers begin after the longest row allowed and are not learned; the row stays whole"),)
    return (("answer_cut", f"{lost:,} of {whole:,} tokens are left out in training; the row stays whole"),) if lost else ()


def _split(example: Example, codec: Codec, rules: Rules) -> tuple[Parts, int]:
    """Split a row into parts; return them and the tokens of the whole row."""
    whole = sum(len(tokens.ids) for _, tokens in _whole(example, codec))
    found: list[Tokens] = []
    lost, refused, missed, skipped = 0, None, 0, 0
    for part in _by_turns(example, codec, rules):
        if part.messages and not any(message.role == "assistant" and message.learn for message in part.messages):
            skipped += 1  # its answers are marked as not to be learned
            continue
        for pieces, tokens in _whole(part, codec):
            try:
                fitting = _by_sentences(tokens, codec, pieces, rules)
            except BadRow as bad:
                refused, lost = bad, lost + len(tokens.ids)
                missed += sum(bool(learned) for _, learned in pieces)
                continue
            found += fitting
            lost += fitting[-1].cut
    if refused and not found:
        raise refused
    changes: list[tuple[str, str]] = []
    if len(found) > 1 or skipped:
        changes.append(("row_split", f"{whole:,} tokens are trained on as {counted(len(found), 'row')}; the row stays whole"))
    torn = sum(tokens.torn for tokens in found)
    return Parts(tuple(found), (*changes, *_cut(lost, whole)), missed + sum(tokens.lost for tokens in found), torn, whole), whole


def _whole(example: Example, codec: Codec) -> list[tuple[list[Piece], Tokens]]:
    """Return the sequences of an example, whole. Raises BadRow where one has nothing to learn."""
    sequences = write(example, codec.template).sequences
    found = []
    for pieces, tokens in zip(sequences, codec.encode(sequences, Rules(max_tokens=NO_LIMIT)), strict=True):
        if isinstance(tokens, BadRow):
            raise tokens
        found.append((pieces, tokens))
    return found


def _by_turns(example: Example, codec: Codec, rules: Rules) -> Iterator[Example]:
    """Yield the conversation in stretches of exchanges that fit, each with the system's turn; an exchange too long alone is one stretch."""
    messages = example.messages
    head = messages[:1] if messages and messages[0].role == "system" else ()
    stretch: tuple[Message, ...] = ()
    for exchange in _exchanges(messages[len(head) :]):
        longer = dataclasses.replace(example, messages=tuple(map(_taught, (*head, *stretch, *exchange))))
        if stretch and any(len(tokens.ids) > rules.max_tokens for _, tokens in _whole(longer, codec)):
            yield dataclasses.replace(example, messages=(*head, *stretch))
            stretch = ()
        stretch += exchange
    yield dataclasses.replace(example, messages=(*head, *stretch)) if messages else example


def _taught(message: Message) -> Message:
    """Return the turn as if it were learned: as long, whatever its row says of it."""
    return message._replace(learn=True)


def _exchanges(messages: tuple[Message, ...]) -> Iterator[tuple[Message, ...]]:
    """Yield each exchange, from the user's first word up to the last answer to it; an unanswered question at the end is left out."""
    first = 0
    for at in range(1, len(messages)):
        if messages[at].role == "user" and messages[at - 1].role != "user":
            yield messages[first:at]
            first = at
    if any(message.role == "assistant" for message in messages[first:]):
        yield messages[first:]


def _by_sentences(whole: Tokens, codec: Codec, parts: list[Piece], rules: Rules) -> list[Tokens]:
    """Return the row itself where it fits; else its one answer in parts that end with a sentence; else its beginning. Raises BadRow."""
    limit, size = rules.max_tokens, len(whole.ids)
    if size <= limit:
        return [whole]
    placed = codec.placed(parts)
    starts = [token.begin for token in placed if token.piece == len(parts) - 1]
    given = size - len(starts)
    if sum(bool(learned) for _, learned in parts) != 1 or not parts[-1][1] or given > limit // 2:
        if not any(whole.learned[1:limit]):
            raise BadRow("all_labels_masked", f"the answer begins after max_tokens = {limit}; the row has {size} tokens")
        count = Counter(token.piece for token in placed)
        cut = fit(codec.lead(parts), [(count[at], flag) for at, (_, flag) in enumerate(parts)], Rules(max_tokens=limit))
        return [Tokens(whole.ids[:limit], whole.learned[:limit], size - limit, cut.lost, cut.torn)]
    before = sum(len(text) for text, _ in parts[:-1])
    ends = _sentence_ends(parts[-1][0], [max(0, start - before) for start in starts])
    found = []
    begin, again = given, 0
    while begin < size:
        room = limit - given - again
        end = size if size - begin <= room else _last(ends, begin - given, begin - given + room) + given
        ids = whole.ids[:given] + whole.ids[begin - again : end]
        flags = [*[False] * (given + again), *whole.learned[begin:end]]
        found.append(Tokens(ids, flags, 0))
        again = end - given - _first(ends, end - given - max(1, room // 4), end - given)
        begin = end
    return found


def _sentence_ends(text: str, starts: list[int]) -> list[int]:
    """Return the tokens that sentences end before, by where each token begins in the text."""
    return sorted({bisect.bisect_left(starts, match.end()) for match in _SENTENCE_END.finditer(text)})


def _last(ends: list[int], after: int, up_to: int) -> int:
    """Return the last sentence end in (after, up_to], else up_to itself."""
    at = bisect.bisect_right(ends, up_to) - 1
    return ends[at] if at >= 0 and ends[at] > after else up_to


def _first(ends: list[int], from_: int, before: int) -> int:
    """Return the first sentence end in [from_, before), else `before` less one token."""
    at = bisect.bisect_left(ends, from_)
    return ends[at] if at < len(ends) and ends[at] < before else before - 1
