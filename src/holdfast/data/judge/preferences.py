"""Rows that say which answer is better: pairs (chosen, rejected) and marked answers, in the forms of TRL,
LLaMA-Factory, Axolotl, HH and OpenAI.

Both answers of a pair end as conversations that differ in their last turn alone. Knows no tokenizer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.book.checks_data.spreadsheet_error import error_in
from holdfast.config.objectives import either, objectives_of
from holdfast.data.judge.names import MARKS, PAIRS, TWO_ANSWERS, asked, name_answers, with_extra
from holdfast.data.judge.tool_calls import Meant, meant_in, tools_of
from holdfast.data.judge.turns import BadRow, Example, Message, before_question, kind_of, system_of, turn_of

_BESIDE = ("rejected_response", "rejected_messages")  # the worse answer beside a row of another layout
_HH = re.compile(r"\n\n(Human|Assistant): ?")
_TRUE, _FALSE = ("true", "yes", "1", "1.0", "good", "desirable"), ("false", "no", "0", "0.0", "bad", "undesirable")
_FORMS = "prompt + chosen + rejected, messages + chosen + rejected, or two whole conversations"
_NO_PAIR = f"an answer alone is no preference: two answers are needed, as {_FORMS}"
Parse = Callable[[dict[str, Any]], Example]


def parse_pair(value: dict[str, Any], parse: Parse) -> Example:
    """Parse the row as its better conversation, with the worse one's messages beside it. parse: reads rows of one answer. Raises BadRow."""
    meant = meant_in(value)
    better, worse, given = _answers(value, parse, meant)
    chosen, rejected = _whole(better, given, "chosen", meant), _whole(worse, given, "rejected", meant)
    for name, turns in (("chosen", chosen), ("rejected", rejected)):
        if not turns or turns[-1].role != "assistant":
            raise BadRow("no_assistant_turn", f"{name} does not end with an answer")
        if not turns[-1].content.strip() and not turns[-1].calls:
            raise BadRow("empty_answer", f"{name} is empty")
        if error := error_in(name, turns[-1].content):
            raise BadRow("spreadsheet_error", error)
    if chosen[:-1] != rejected[:-1]:
        at = next((at for at, (one, two) in enumerate(zip(chosen[:-1], rejected[:-1], strict=False)) if one != two), None)
        where = f"turn {at} differs" if at is not None else f"{len(chosen) - 1} turns before chosen, {len(rejected) - 1} before rejected"
        raise BadRow("prompts_differ", f"chosen and rejected answer different prompts: {where}")
    if not any(message.role == "user" for message in chosen):
        raise BadRow("no_user_turn", f"none of {len(chosen)} turns is the user's")
    inside = value.get("input")  # of OpenAI's, which holds the turns and the tools
    tools = tools_of(value) or (tools_of(dict(inside)) if isinstance(inside, Mapping) else ())
    return Example(messages=chosen, worse=rejected, tools=tools, layout="preference")


def parse_marked(value: dict[str, Any], parse: Parse) -> Example:
    """Parse a row of one answer and a mark that says whether it is a good one; a pair is two such answers. Raises BadRow."""
    name = next((name for name in MARKS if value.get(name) is not None), None)
    if name is None and any(all(value.get(one) for one in names) for names in TWO_ANSWERS):
        return parse_pair(value, parse)
    if name is None:
        learner = either(objectives_of("marks"))
        text = f"train.objective {learner} learns from marked answers: a field {' or '.join(MARKS)}, true or false, is missing"
        raise BadRow("no_mark", text)
    good = says_good(value[name])
    if good is None:
        raise BadRow("no_mark", f"{name} must say true or false, it is {value[name]!r}"[:200])
    found = parse({key: inside for key, inside in value.items() if key not in MARKS})
    if found.layout == "text":
        raise BadRow("empty_prompt", "a text without a prompt is no answer that could be marked")
    return Example(found.messages, found.given, found.learned, found.tools, good=good, layout=found.layout)


def says_good(mark: Any) -> bool | None:
    """Return whether a mark calls its answer a good one; None for what is no mark."""
    word = str(mark).strip().lower()
    return True if word in _TRUE else False if word in _FALSE else None


def _answers(value: dict[str, Any], parse: Parse, meant: Meant) -> tuple[Any, Any, tuple[Message, ...]]:
    """Return (better answer, worse answer, the turns before both)."""
    names = next((names for names in TWO_ANSWERS if all(name in value for name in names)), None)
    if names:
        rest = {key: inside for key, inside in value.items() if key not in names}
        return value[names[0]], value[names[1]], _given(rest, meant)
    beside = next((name for name in _BESIDE if value.get(name)), None)
    if beside:
        found = parse({key: inside for key, inside in value.items() if key != beside})
        if found.messages:
            return found.messages[-1:], value[beside], found.messages[:-1]
        return found.learned, value[beside], (*before_question(value), Message("user", found.given))
    hint = name_answers(value)
    raise BadRow("no_preference", f"{_NO_PAIR}; {hint or 'answers alone are learned with sft'}")


def _given(value: dict[str, Any], meant: Meant) -> tuple[Message, ...]:
    """Return the turns before the answers, from whichever field holds them; none where each answer brings its own."""
    inside = value.get("input")
    turns = value.get("messages") or value.get("conversations") or (inside.get("messages") if isinstance(inside, Mapping) else None)
    prompt = value.get("prompt")
    if turns is None and isinstance(prompt, list):
        turns = prompt
    before = (Message("system", system),) if (system := system_of(value)) else ()
    if turns is not None:
        found = tuple(turn_of(turn, at, meant) for at, turn in enumerate(turns)) if isinstance(turns, list) else ()
        return found if found and found[0].role == "system" else before + found
    for pair in PAIRS:
        question = value.get(pair.question)
        if isinstance(question, str) and question.strip():
            behind = with_extra(pair, value).extra
            extra = value.get(behind) if behind else None
            text = asked(question, extra if isinstance(extra, str) else "")
            return _transcript(text) or (*before_question(value), Message("user", text))
    return before


def _whole(answer: Any, given: tuple[Message, ...], name: str, meant: Meant) -> tuple[Message, ...]:
    """Return the conversation that an answer ends, or is: a text, turns as a file has them, or a tuple of turns."""
    if isinstance(answer, tuple):
        return given + answer
    if isinstance(answer, str):
        found = _transcript(answer)
        if found:
            return _behind(given, found)
        if not any(message.role == "user" for message in given):
            raise BadRow("missing_field", f"{name} is an answer without a prompt: {_FORMS} are read")
        return (*given, Message("assistant", answer))
    turns = answer if isinstance(answer, list) else [answer] if isinstance(answer, dict) else None
    if not turns:
        if turns == [] or answer is None:
            raise BadRow("empty_answer", f"{name} is empty")
        raise BadRow("wrong_type", f"{name} must be a text, a turn or a list of turns, it is {kind_of(answer)}")
    found = tuple(turn_of(turn, at, meant) for at, turn in enumerate(turns))
    return _behind(given, found)


def _behind(given: tuple[Message, ...], found: tuple[Message, ...]) -> tuple[Message, ...]:
    """Put turns behind those given; a whole conversation has its own, and of those given the system's alone, where it has none."""
    if not any(message.role == "user" for message in found):
        return given + found
    return found if found[0].role == "system" else (*(one for one in given if one.role == "system"), *found)


def _transcript(text: str) -> tuple[Message, ...]:
    """Parse the turns of a transcript as HH writes them; none where it is no such text."""
    if not text.startswith(("\n\nHuman:", "\n\nAssistant:")):
        return ()
    parts = _HH.split(text)[1:]
    roles = {"Human": "user", "Assistant": "assistant"}
    turns = tuple(Message(roles[role], said.strip()) for role, said in zip(parts[::2], parts[1::2], strict=True))
    return turns[:-1] if turns and turns[-1].role == "assistant" and not turns[-1].content and len(turns) > 1 else turns
