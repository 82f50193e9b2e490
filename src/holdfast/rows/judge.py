"""Judge the rows of a block: which can be read, what has to be mended, which are rejected and why. Knows no token numbers; keeps nothing.

`train` and `data check` both come through here, so what one rejects the other does, too.
"""

from __future__ import annotations

import contextlib
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from holdfast.core.datacheck import DataCheck, RowView, Turn
from holdfast.rows.formats import BadRow, Example, parse_example
from holdfast.rows.rawrow import RawRow, Reject, Source, Unparsed
from holdfast.rows.read import exact_value, parse
from holdfast.rows.rules import Rules, checks

_DEEPEST = 100


@dataclass(slots=True)
class Judged:
    """A row that can be trained on, if its tokens fit; `at`: its place in the block.

    `mended`: (reason, detail) of each change that `value` and `example` show.
    """

    at: int
    source: Source
    raw: bytes
    value: Any
    example: Example
    view: RowView
    mended: list[tuple[str, str]] = field(default_factory=list)


def judge(rows: Iterable[Unparsed], first_line: int, rules: Rules, specials: tuple[str, ...]) -> tuple[list[Judged], list[Reject]]:
    """The good rows in order, and the rejects; lines are counted from `first_line`."""
    rejects: list[Reject] = []
    good: list[Judged] = []
    fields = dict(rules.fields)
    for at, unparsed in enumerate(rows):
        row = parse("", unparsed, first_line)
        if isinstance(row, Reject):
            rejects.append(row)
            continue
        try:
            example = parse_example(row.value, rules.layout, fields)
            if unparsed.json is None:
                _refuse_double_keys(row, example.layout)
        except BadRow as bad:
            rejects.append(Reject(row.source, bad.reason, bad.detail, row.raw))
        else:
            good.append(Judged(at, row.source, row.raw, row.value, example, view_of(example), [row.mended] if row.mended else []))
    return _checked(good, rejects, rules, specials), rejects


def _checked(rows: list[Judged], rejects: list[Reject], rules: Rules, specials: tuple[str, ...]) -> list[Judged]:
    """The rows that are left. Mends come first and are looked at by all later checks: one may bring to light what another is for."""
    cards = deque(sorted(filter(rules.changes, checks()), key=lambda card: card.mend is None))
    asked = _asked(cards, rows, specials)
    while cards:
        card = cards.popleft()
        found = {row.at: detail for row, detail in found_in(card, rows)} if card in asked else {}
        if not found:
            continue
        left = []
        for row in rows:
            detail = found.get(row.at, "")
            if not detail:
                left.append(row)
            elif card.mend is None:
                rejects.append(Reject(row.source, card.reason, detail, row.raw))
            else:
                try:
                    left.append(_mended(row, card.mend, card.reason, detail, rules))
                except BadRow as bad:
                    rejects.append(Reject(row.source, bad.reason, bad.detail, row.raw))
        rows = left
        if card.mend:
            asked = _asked(cards, rows, specials)
    return rows


def _asked(cards: Iterable[DataCheck], rows: list[Judged], specials: tuple[str, ...]) -> list[DataCheck]:
    """The checks that can find something in the rows as they are now; they are told of the special tokens in them."""
    text = joined_text(rows)
    present = tuple(token for token in specials if token in text)
    for row in rows if present else ():
        if row.example.messages:
            row.view = row.view._replace(specials=present)
    return active(cards, text, rows)


def active(cards: Iterable[DataCheck], text: str, rows: list[Judged]) -> list[DataCheck]:
    """The checks that can find something in rows of this text."""
    conversations = any(row.view.turns for row in rows)
    specials = any(row.view.specials for row in rows)
    asked = (card for card in cards if (conversations or not card.conversations_only) and (specials or not card.specials_only))
    return [card for card in asked if card.screen(text)]


def found_in(card: DataCheck, rows: list[Judged]) -> Iterator[tuple[Judged, str]]:
    """The rows in which a check finds something, and what; `card.finds` for many rows."""
    look, screen, any_row = card.look, card.screen if card.is_screened else None, not card.conversations_only
    for row in rows:
        view = row.view
        if (screen is None or screen(view.text)) and (any_row or view.turns) and (detail := look(view)):
            yield row, detail


def joined_text(rows: list[Judged]) -> str:
    """The texts of many rows as one."""
    return "\n".join([row.view.text for row in rows])


def view_of(example: Example) -> RowView:
    """What checks see of an example."""
    if example.layout != "chat":
        prompt, answer = [turn.content for turn in example.messages] or (example.given, example.learned)
        return RowView(prompt, answer, f"{prompt}\n{answer}")
    turns = tuple([Turn(message.role, message.content, bool(message.calls)) for message in example.messages])
    answer = "\n".join([turn.content for turn in turns if turn.role == "assistant"])
    prompt = "\n".join([turn.content for turn in turns if turn.role != "assistant"])
    return RowView(prompt, answer, f"{prompt}\n{answer}", turns)


def _mended(row: Judged, mend: Callable[[str], str], reason: str, detail: str, rules: Rules) -> Judged:
    value = _in_all_texts(row.value if row.mended else _exact(row), mend)
    example = parse_example(value, rules.layout, dict(rules.fields))
    view = view_of(example)._replace(specials=row.view.specials)
    return Judged(row.at, row.source, row.raw, value, example, view, [*row.mended, (reason, detail)])


def _exact(row: Judged) -> Any:
    """The row's value with whole numbers as they stand in the file, since a mended row is written out anew."""
    try:
        return exact_value(row.raw.decode()) if isinstance(row.value, dict) and row.raw.lstrip()[:1] == b"{" else row.value
    except (ValueError, RecursionError):
        return row.value


def _in_all_texts(value: Any, mend: Callable[[str], str], depth: int = 0) -> Any:
    if isinstance(value, str):
        return mend(value)
    if not isinstance(value, list | dict):
        return value
    if depth > _DEEPEST:
        raise BadRow("nested_too_deeply", f"the row has to be mended, and its values are nested deeper than {_DEEPEST} levels")
    if isinstance(value, list):
        return [_in_all_texts(item, mend, depth + 1) for item in value]
    return {key: _in_all_texts(item, mend, depth + 1) for key, item in value.items()}


def _refuse_double_keys(row: RawRow, layout: str) -> None:
    """Raise BadRow where one object names a field twice with different values; parsers take the last one without a word."""
    if layout == "chat":
        suspicious = row.raw.count(b'"messages"') + row.raw.count(b'"conversations"') > 1
    else:
        suspicious = row.raw.count(b'":') + row.raw.count(b'" :') > len(row.value)
    if not suspicious:
        return

    def check(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found and found[key] != value:
                raise BadRow("duplicate_key", f"field {key!r} is given more than once, with different values")
            found[key] = value
        return found

    with contextlib.suppress(ValueError, RecursionError):  # beyond what Python reads: whole numbers of thousands of digits, deep nesting
        json.loads(row.raw, object_pairs_hook=check)
