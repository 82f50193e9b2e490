"""Judge the rows of a block: which can be read, what has to be mended, which are rejected and why. Knows no token numbers; keeps nothing.

`train` and `data check` both come through here, so what one rejects the other does, too.
"""

from __future__ import annotations

import contextlib
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from holdfast.book.kinds.data_check import DataCheck, RowView, Turn
from holdfast.data.files.raw_row import Reject, Source, UnparsedRow
from holdfast.data.files.read import parse, with_all_digits
from holdfast.data.judge.layouts import CONVERSATIONS, WITHOUT_TURNS, example_of, parse_example, prompt_and_answer
from holdfast.data.judge.row_weight import weight_of
from holdfast.data.judge.rules import Rules, checks
from holdfast.data.judge.turns import BadRow, Example, Message, talk_field

_DEEPEST = 100


@dataclass(slots=True, eq=False)
class JudgedRow:
    """A row that can be trained on, if its tokens fit; `at`: its place in the block, `line`: from the block's first.

    `mended`: (reason, detail) of each change that `value` and the texts show. `known`: its example, where that was needed already.
    """

    at: int
    line: int
    raw: bytes
    value: Any
    layout: str
    prompt: str
    answer: str
    mended: tuple[tuple[str, str], ...] = ()
    known: Example | None = None
    specials: tuple[str, ...] = ()
    tokens: int | None = None
    weight: float | None = None  # as its field says; None where it has none

    @property
    def source(self) -> Source:
        return Source("", self.line)

    @property
    def example(self) -> Example:
        if self.known is None:
            self.known = example_of(self.layout, self.prompt, self.answer)
        return self.known

    @property
    def is_pair(self) -> bool:
        """Whether its turns are the prompt and the answer, and no more."""
        return self.layout not in CONVERSATIONS and self.layout not in WITHOUT_TURNS

    @property
    def text(self) -> str:
        return f"{self.prompt}\n{self.answer}"

    @property
    def is_ascii(self) -> bool:
        return self.prompt.isascii() and self.answer.isascii()

    @property
    def view(self) -> RowView:
        """What checks see of it."""
        turns = _turns(self.example) if self.layout in CONVERSATIONS else ()
        return RowView(self.prompt, self.answer, self.text, turns, self.specials, self.tokens, worse=_worse(self.known))


def judge(rows: Iterable[UnparsedRow], first_line: int, rules: Rules, specials: tuple[str, ...]) -> tuple[list[JudgedRow], list[Reject]]:
    """Return the good rows in order, and the rejects; lines are counted from `first_line`."""
    rejects: list[Reject] = []
    good: list[JudgedRow] = []
    fields = dict(rules.fields)
    by_names = rules.layout == "auto" and not fields and rules.wanted == "answers"
    for at, unparsed in enumerate(rows):
        value, mended = _value(unparsed, first_line)
        if isinstance(value, Reject):
            rejects.append(value)
            continue
        try:
            example, texts = None, prompt_and_answer(value) if by_names else None
            if texts is None:
                value = _with_all_digits(unparsed, value, fields)
                example = parse_example(value, rules.layout, fields, rules.wanted)
                texts = _texts(example)
            weight = weight_of(value, rules.weight, any(why == "nan_literal" for why, _ in mended)) if rules.weight else None
            if unparsed.json is None:
                _refuse_double_keys(unparsed.raw, value, texts[0])
        except BadRow as bad:
            rejects.append(Reject(Source("", unparsed.line - first_line), bad.reason, bad.detail, unparsed.raw))
            continue
        good.append(JudgedRow(at, unparsed.line - first_line, unparsed.raw, value, *texts, mended, example, weight=weight))
    return _checked(good, rejects, rules, specials), rejects


def _value(row: UnparsedRow, first_line: int) -> tuple[Any, tuple[tuple[str, str], ...]]:
    """Return the row's JSON value, or the Reject that stands for it; and the changes needed to read it."""
    if not row.damage:
        try:
            return orjson.loads(row.raw if row.json is None else row.json), ()
        except orjson.JSONDecodeError:
            pass
    parsed = parse("", row, first_line)
    return (parsed, ()) if isinstance(parsed, Reject) else (parsed.value, (parsed.mended,) if parsed.mended else ())


def _with_all_digits(row: UnparsedRow, value: Any, fields: Mapping[str, str]) -> Any:
    """Return the value with whole numbers of any size, where they may be learned."""
    text = row.raw if row.json is None else row.json
    return with_all_digits(text, value) if fields or b"tool" in text or b"function" in text else value


def _checked(rows: list[JudgedRow], rejects: list[Reject], rules: Rules, specials: tuple[str, ...]) -> list[JudgedRow]:
    """Return the rows that pass. Mends come first and are looked at by all later checks: one may bring to light what another is for."""
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


def _asked(cards: Iterable[DataCheck], rows: list[JudgedRow], specials: tuple[str, ...]) -> list[DataCheck]:
    """Select the checks that can find something in the rows as they are now; they are told of the special tokens in them."""
    text = joined_text(rows)
    may_be = any(beginning in text for beginning in {token[:2] for token in specials})  # most of them begin alike
    present = tuple(token for token in specials if token in text) if may_be else ()
    for row in rows if present else ():
        if row.layout not in WITHOUT_TURNS:
            row.specials = present
    return active(cards, text, rows)


def active(cards: Iterable[DataCheck], text: str, rows: list[JudgedRow]) -> list[DataCheck]:
    """Select the checks that can find something in rows of this text."""
    conversations = any(row.layout in CONVERSATIONS for row in rows)
    pairs = any(row.layout == "preference" for row in rows)
    specials = any(row.specials for row in rows)
    foreign = "" if text.isascii() else joined_text([row for row in rows if not row.is_ascii])
    asked = (
        card
        for card in cards
        if not card.second_look
        and (pairs or not card.pairs_only)
        and (conversations or not card.conversations_only)
        and (specials or not card.specials_only)
    )
    return [card for card in asked if (foreign and card.screen(foreign) if card.beyond_ascii else card.screen(text))]


def found_in(card: DataCheck, rows: list[JudgedRow]) -> Iterator[tuple[JudgedRow, str]]:
    """Yield the rows in which a check finds something, and the finding; `card.finds` for many rows."""
    if card.sift:
        places = card.sifted([row.prompt for row in rows], [row.answer for row in rows], [row.tokens for row in rows])
        rows = [rows[place] for place in places]
    if card.conversations_only:
        rows = [row for row in rows if row.layout in CONVERSATIONS]
    if card.beyond_ascii:
        rows = [row for row in rows if not row.is_ascii]
    look, screen = card.look, card.screen if card.is_screened else None
    for row in rows:
        if (screen is None or screen(row.text)) and (detail := look(row.view)):
            yield row, detail


def _worse(example: Example | None) -> str:
    return example.worse[-1].content if example and example.worse else ""


def joined_text(rows: list[JudgedRow]) -> str:
    """Join the texts of many rows to one."""
    return "\n".join([part for row in rows for part in (row.prompt, row.answer)])


def view_of(example: Example) -> RowView:
    """Return the view of an example that checks see."""
    _, prompt, answer = _texts(example)
    return RowView(prompt, answer, f"{prompt}\n{answer}", _turns(example) if example.layout == "chat" else ())


def _texts(example: Example) -> tuple[str, str, str]:
    """Return layout, prompt and answer; of a conversation all that the assistant does not say, and all it says."""
    if example.layout not in CONVERSATIONS:
        prompt, answer = [turn.content for turn in example.messages] or (example.given, example.learned)
        return example.layout, prompt, answer
    answer = "\n".join([turn.said for turn in example.messages if turn.role == "assistant"])
    prompt = "\n".join([turn.content for turn in example.messages if turn.role != "assistant"])
    return example.layout, prompt, answer


def beside_answer(example: Example, marked: bool) -> tuple[str, str]:
    """Return (the worse answer of a pair, the mark of a marked answer), "" where there is none."""
    worse = "\n".join([_said_and_called(turn) for turn in example.worse if turn.role == "assistant"])
    return worse, ("good" if example.good else "bad") if marked and not worse else ""


def with_calls(example: Example, prompt: str, answer: str) -> tuple[str, str]:
    """Return the prompt with the tools of a row and the answer with its calls, which tell rows apart as their texts do."""
    if example.tools:
        prompt = f"{prompt}\n{json.dumps(example.tools, sort_keys=True, ensure_ascii=False)}"
    if any(turn.calls for turn in example.messages):
        answer = "\n".join([_said_and_called(turn) for turn in example.messages if turn.role == "assistant"])
    return prompt, answer


def own_prompt(example: Example, prompt: str) -> str:
    """Return the prompt without its system turns: many rows may share these, and are nearly alike by them alone."""
    if all(turn.role != "system" for turn in example.messages):
        return prompt
    return "\n".join([turn.content for turn in example.messages if turn.role not in ("system", "assistant")])


def _said_and_called(turn: Message) -> str:
    calls = [json.dumps(call["function"], sort_keys=True, ensure_ascii=False) for call in turn.calls]  # without the id, which is drawn
    return "\n".join([turn.said, *calls])


def _turns(example: Example) -> tuple[Turn, ...]:
    return tuple([Turn(message.role, message.content, bool(message.calls)) for message in example.messages])


def _mended(row: JudgedRow, mend: Callable[[str], str], reason: str, detail: str, rules: Rules) -> JudgedRow:
    value = _in_all_texts(row.value if row.mended or not isinstance(row.value, dict) else with_all_digits(row.raw, row.value), mend)
    example = parse_example(value, rules.layout, dict(rules.fields), rules.wanted)
    mended = (*row.mended, (reason, detail))
    return JudgedRow(row.at, row.line, row.raw, value, *_texts(example), mended, example, row.specials, weight=row.weight)


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


_IN_TURNS = (b'"role":', b'"content":', b'"from":', b'"value":')


def _refuse_double_keys(raw: bytes, value: Any, layout: str) -> None:
    """Raise BadRow where one object names a field twice with different values; parsers take the last one without a word."""
    turns = (value.get(talk_field(value)) if isinstance(value, dict) else value) if layout == "chat" else None
    if isinstance(turns, list):
        suspicious = any(raw.count(name) > len(turns) for name in _IN_TURNS) or raw.count(b'"messages"') + raw.count(b'"conversations"') > 1
    else:
        suspicious = raw.count(b'":') + raw.count(b'" :') > len(value)
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
        json.loads(raw, object_pairs_hook=check)
