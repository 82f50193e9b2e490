"""Bring a row of any known layout into one form: what is given and what is to be learned. Knows no tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace
from typing import Any, Literal

from holdfast.config.objectives import either, objectives_of
from holdfast.data.judge.known_forms import columns_of, form_within, known_form
from holdfast.data.judge.names import (
    BESIDE_PAIRS,
    FIRST_PAIRS,
    KNOWN_NAMES,
    MARKS,
    PAIRS,
    PREFERENCE,
    REJECTED,
    TALKS,
    TWO_ANSWERS,
    Pair,
    answer_beside,
    asked,
    in_our_case,
    name_answers,
    name_them,
    pair_of,
    two_answers,
    under_our_names,
    with_extra,
)
from holdfast.data.judge.preferences import parse_marked, parse_pair
from holdfast.data.judge.tool_calls import tools_of
from holdfast.data.judge.turns import (
    BadRow,
    Example,
    Message,
    before_question,
    checked_turns,
    conversation,
    kind_of,
    system_of,
    talk_field,
    turns_of,
)

_PAIR_BY_NAMES: dict[tuple[str, ...], Pair | None] = {}  # what rows of these fields are; None: no pair
Wanted = Literal["answers", "pairs", "marks"]
_MOST_NAMES = 1000  # lists of fields that are kept, and characters of one
CONVERSATIONS = ("chat", "preference")
WITHOUT_TURNS = ("prompt-completion", "text")  # the layouts that no chat template is written around
_KNOWN = (
    "alpaca: instruction + output; prompt-completion: prompt + completion; chat: messages or conversations; "
    "question-answer: question, prompt, query, problem or input + answer, response or output; text: text; "
    "preferences: prompt + chosen + rejected"
)


def prompt_and_answer(value: Any) -> tuple[str, str, str] | None:
    """Return layout, prompt and answer of a row with fields of its own for them, as nearly all rows have; None where `parse_example` has to
    look at it. The prompt of a text is empty."""
    if type(value) is not dict:
        return None
    names = tuple(value)
    pair = _PAIR_BY_NAMES[names] if names in _PAIR_BY_NAMES else _pair_by_names(value, names)
    if pair is None:
        return None
    answer = value[pair.answer]
    prompt = value[pair.question] if pair.question else ""
    if type(prompt) is not str or type(answer) is not str or not answer or answer.isspace():
        return None
    if pair.question and (not prompt or prompt.isspace()):
        return None
    extra = value.get(pair.extra) if pair.extra else None
    if extra is None or extra == "":
        return pair.layout, prompt, answer
    if type(extra) is not str:
        return None
    return pair.layout, asked(prompt, extra), answer


def _pair_by_names(value: dict[str, Any], names: tuple[str, ...]) -> Pair | None:
    if not PREFERENCE.isdisjoint(names) or not BESIDE_PAIRS.isdisjoint(map(in_our_case, names)):
        return None  # its values tell
    if any(name not in KNOWN_NAMES and in_our_case(name) in KNOWN_NAMES for name in names):
        return None
    try:
        layout, pair = _recognise(value, value, {})
    except BadRow:
        return None
    if layout == "text" and pair is None:
        pair = Pair("text", "", "", "text")
    if len(_PAIR_BY_NAMES) < _MOST_NAMES and sum(map(len, names)) < _MOST_NAMES:
        _PAIR_BY_NAMES[names] = pair
    return pair


def example_of(layout: str, prompt: str, answer: str) -> Example:
    """Build the example that `parse_example` makes of a row of which `prompt_and_answer` gives this."""
    if layout in WITHOUT_TURNS:
        return Example(given=prompt, learned=answer, layout=layout)
    return Example(messages=(Message("user", prompt), Message("assistant", answer)), layout=layout)


def parse_example(value: Any, layout: str, fields: Mapping[str, str] | None = None, wanted: Wanted = "answers") -> Example:
    """Read one parsed row in `layout` ("auto": by its fields). `fields`: names of ours and those the file uses. Raises BadRow.

    wanted: answers that are all good, pairs of a better and a worse one, or answers with marks.
    """
    if isinstance(value, list) and value and all(isinstance(turn, dict) and "role" in map(in_our_case, turn) for turn in value):
        value = {"messages": value}
    if not isinstance(value, dict):
        raise BadRow("not_an_object", f"a JSON object is needed, this is {kind_of(value)}")
    if isinstance(value.get("row"), dict) and ("row_idx" in value or len(value) == 1):  # as the Hub's row viewer gives it
        value = value["row"]
    as_it_stands, value = value, under_our_names(value, fields or {})

    def answer_alone(one: dict[str, Any]) -> Example:
        _refuse_preferences(one)
        return _read_as(one, *(_recognise(one, as_it_stands, fields or {}) if layout == "auto" else (layout, pair_of(one, layout))))

    if wanted == "pairs":
        return parse_pair(value, answer_alone)
    if wanted == "marks":
        return parse_marked(value, answer_alone)
    return answer_alone(value)


def _read_as(value: dict[str, Any], name: str, pair: Pair | None) -> Example:
    if pair and pair.question and (_turns_in(value.get(pair.question)) or _turns_in(value.get(pair.answer))):
        return _continued(value, pair)
    if pair and name != "text":
        return _with_beside(_from_pair(value, pair), value)
    if pair:
        return Example(learned=_answer(value, pair.answer), layout="text")
    if name == "text":
        return Example(learned=_answer(value, "text"), layout="text")
    talk = talk_field(value)
    if answer := answer_beside(value, talk):
        said = _turns_in(value[answer]) or [{"role": "assistant", "content": value[answer]}]
        value = value | {talk: [*value[talk], *said]}
    return Example(messages=conversation(value), tools=tools_of(value), layout="chat")


def _layout_of(value: dict[str, Any]) -> tuple[str, Pair | None] | None:
    """Return the layout of a row under our names, and its pair if it is one; None for a row of no known layout."""
    if "conversations" in value:
        return "chat", None
    if pair := _first(PAIRS[:3], value):
        return pair.layout, pair
    if talk_field(value):
        return "chat", None
    if pair := _first(PAIRS[3:FIRST_PAIRS], value):
        return pair.layout, pair
    if "text" in value:
        return "text", None
    if isinstance(value.get("content"), str) and "role" not in value:
        return "text", Pair("text", "", "", "content")
    pair = _first(PAIRS[FIRST_PAIRS:], value)
    return pair and (pair.layout, pair)


def _first(pairs: tuple[Pair, ...], value: dict[str, Any]) -> Pair | None:
    """Return the first of these pairs that the row has, with what stands behind its question."""
    return next((with_extra(pair, value) for pair in pairs if pair.question in value and pair.answer in value), None)


def _reads(found: tuple[str, Pair | None], mapped: Set[str]) -> bool:
    """Return whether a row of this layout is read from a field that was mapped."""
    layout, pair = found
    return not mapped.isdisjoint(pair[1:] if pair else TALKS if layout == "chat" else (layout,))


def _mapped(value: dict[str, Any], mapped: Set[str]) -> tuple[str, Pair | None] | None:
    """Return the layout of the fields that were mapped, where the row has another one besides: they were asked for."""
    for pair in PAIRS:
        if pair.question in value and pair.answer in value and not mapped.isdisjoint((pair.question, pair.answer)):
            return pair.layout, with_extra(pair, value)
    if talk_field(value) in mapped:
        return "chat", None
    return ("text", None) if "text" in mapped and "text" in value else None


def _recognise(value: dict[str, Any], as_it_stands: dict[str, Any], fields: Mapping[str, str]) -> tuple[str, Pair | None]:
    """Return what `_layout_of` does. Raises BadRow for no known layout, with the names as they stand in the file."""
    if form := known_form(as_it_stands):
        raise BadRow("not_rows", form)
    if found := _layout_of(value):
        there = {ours for ours, theirs in fields.items() if in_our_case(theirs) in map(in_our_case, as_it_stands)}
        return found if not there or _reads(found, there) else _mapped(value, there) or found
    if form := form_within(value):
        raise BadRow("not_rows", form)
    if talk := next(((name, field) for name, inside in value.items() if isinstance(inside, dict) and (field := _whole_talk(inside))), None):
        tools = ", tools: .tools" if "tools" in value[talk[0]] else ""
        taken = f"jq -c '.{talk[0]} | {{messages: .{talk[1]}{tools}}}'"
        raise BadRow("missing_field", f"turns stand in {'.'.join(talk)}; {taken} makes rows of them")
    if lists := {
        name: len(inside) for name, inside in value.items() if isinstance(inside, list) and inside and _looks_like_a_row(inside[0])
    }:
        told = " and ".join(f"{count:,} rows stand in one object's field {name!r}" for name, count in lists.items())
        inside = next(iter(lists))
        row = ".row" if isinstance(value[inside][0].get("row"), dict) else ""
        raise BadRow("missing_field", f"{told}; jq -c '.{inside}[]{row}' takes them out")
    names = sorted(map(str, as_it_stands))[:20]
    if lacking := [f"{theirs} (as {ours})" for ours, theirs in fields.items() if ours not in value]:
        raise BadRow("missing_field", f"{' and '.join(lacking)} is missing, which data.fields asks for; the row has {names}")
    if answers := next((both for both in TWO_ANSWERS if all(name in value for name in both)), None) or two_answers(as_it_stands):
        raise BadRow("preference_row", f"{' and '.join(answers)} are two answers of which one is the better; {_pairs_called(as_it_stands)}")
    hint = name_them(value, as_it_stands, _would_be_read)
    if half := next((both for both in TWO_ANSWERS if any(name in value for name in both)), None):
        one, other = sorted(half, key=lambda name: name not in value)
        text = f"{one} is there, and {other} is missing: a pair has both; the row has {names}"
        raise BadRow("missing_field", text + (f"; to learn it by itself: {hint}" if hint and one == half[0] else ""))
    raise BadRow("missing_field", f"fields {names} fit no known layout ({_KNOWN}){hint and f'; {hint}'}")


def _pairs_called(row: Mapping[str, Any]) -> str:
    """Say what learns pairs, and how the columns of this row are named to it."""
    named = "" if any(all(name in row for name in both) for both in TWO_ANSWERS) else name_answers(row)
    return f"{_PREFERENCES}{named and f'; {named}'}"


def _would_be_read(value: Mapping[str, Any], fields: Mapping[str, str]) -> bool:
    """Return whether the row is read where the fields are called so. Asks for no hint, which would ask this again."""
    named = under_our_names(dict(value), fields)
    found = _layout_of(named)
    try:
        return found is not None and bool(_read_as(named, *found))
    except BadRow:
        return False


def _refuse_preferences(value: dict[str, Any]) -> None:
    """Raise BadRow for a row that says which answer is better, or that its own is bad: learning the answer alone may be the opposite."""
    pair = next((names for names in TWO_ANSWERS if all(value.get(name) for name in names)), None)
    worse = next((name for name in REJECTED if value.get(name)), None)
    if pair or worse:
        fields = " and ".join(pair) if pair else f"an answer and {worse}"
        raise BadRow("preference_row", f"it holds {fields}, two answers of which one is the better; {_PREFERENCES}")
    mark = next((name for name in MARKS if _is_mark(value.get(name))), None)
    if mark and "text" not in value:
        kept = f"jq -c 'select(.{mark}) | del(.{mark})' keeps the good ones"
        raise BadRow("preference_row", f"its {mark} says whether the answer is a good one ({value[mark]}); {_PREFERENCES}, {kept}")


_PREFERENCES = (
    f"preferences are learned with train.objective {either(objectives_of('pairs'))} (marked answers: {either(objectives_of('marks'))}); "
    "sft learns answers that are all good"
)


def _is_mark(value: Any) -> bool:
    return isinstance(value, bool) or (isinstance(value, str) and value.strip().lower() in ("true", "false"))


def _turns_in(value: Any) -> list[Any]:
    """Return the turns that a field holds instead of a text, one or a list; empty where it holds none."""
    turns = [value] if isinstance(value, dict) and "content" in value else value
    return turns if isinstance(turns, list) and all(isinstance(turn, dict) for turn in turns) else []


def _continued(value: dict[str, Any], pair: Pair) -> Example:
    """Parse a prompt and a completion of turns (TRL, logs of servers), of which only the completion is learned. Either may be a text."""
    given, learned = (
        turns_of({"messages": inside}, value) if (inside := _turns_in(value[name])) else (Message(role, _text(value, name)),)
        for name, role in ((pair.question, "user"), (pair.answer, "assistant"))
    )
    system = system_of(value)
    before = (Message("system", system),) if system and given[0].role != "system" else ()
    messages = (*before, *[turn._replace(learn=False) for turn in given], *learned)
    if not any(turn.role == "assistant" for turn in learned):
        raise BadRow("no_assistant_turn", f"none of the {len(learned)} turns of {pair.answer} is the assistant's")
    return Example(messages=checked_turns(messages), tools=tools_of(value), layout="chat")


def _with_beside(example: Example, value: dict[str, Any]) -> Example:
    """Return the example with what stands before its question: the system's text and `history`."""
    before = before_question(value) if example.messages else ()
    return replace(example, messages=(*before, *example.messages), layout="chat") if before else example


def _whole_talk(value: dict[str, Any]) -> str:
    """Return the field of turns with an answer that can be read; "" where there is none."""
    try:
        return talk_field(value) if conversation(value) else ""
    except BadRow:
        return ""


def _looks_like_a_row(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    return (
        isinstance(value.get("row"), dict)
        or bool(talk_field(value))
        or any(pair.question in value and pair.answer in value for pair in PAIRS)
    )


def _from_pair(value: dict[str, Any], pair: Pair) -> Example:
    if columns := columns_of(value, (pair.question, pair.answer)):
        raise BadRow("not_rows", columns)
    question = _text(value, pair.question)
    if pair.layout == "prompt-completion":
        return Example(given=_filled(question, pair.question), learned=_answer(value, pair.answer), layout=pair.layout)
    extra = _text(value, pair.extra, optional=True) if pair.extra else ""
    turns = (Message("user", _filled(asked(question, extra), pair.question)), Message("assistant", _answer(value, pair.answer)))
    return Example(messages=turns, layout=pair.layout)


def _text(value: dict[str, Any], field: str, optional: bool = False) -> str:
    text = value.get(field)
    if isinstance(text, str):
        return text
    if text is None:
        if optional:
            return ""
        raise BadRow("missing_field", f"{field} is {'null' if field in value else 'missing'}")
    way = f"; --field {field}={field}, data.fields in a config, learns its digits" if kind_of(text) == "a number" else ""
    raise BadRow("wrong_type", f"{field} must be text, it is {kind_of(text)}{way}")


def _filled(text: str, field: str) -> str:
    if not text.strip():
        raise BadRow("empty_prompt", f"{field} is empty")
    return text


def _answer(value: dict[str, Any], field: str) -> str:
    text = _text(value, field)
    if not text.strip():
        raise BadRow("empty_answer", f"{field} is empty")
    return text
