"""Examples and the turns they are made of: read from whatever form a file gives them. Knows no tokenizer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from holdfast.data.judge.bad_row import BadRow as BadRow
from holdfast.data.judge.bad_row import kind_of as kind_of
from holdfast.data.judge.blocks import without_blocks
from holdfast.data.judge.known_forms import form_within, who_speaks
from holdfast.data.judge.learned_turns import learns, row_mask
from holdfast.data.judge.names import TALKS, THINKING, TURN_MARKS, in_our_case
from holdfast.data.judge.tool_calls import SHOWN, Meant, calls_of, loaded, meant_in

_ROLES = {
    "developer": "system",
    "human": "user",
    "prompter": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "chatbot": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "ai": "assistant",
    "function": "tool",
    "tool_response": "tool",
    "function_call": "call",
    "tool_call": "call",
}
_SHAREGPT_ROLES = _ROLES | {"observation": "tool"} | {role: role for role in ("user", "assistant", "system", "tool")}
_TURN_NAMES = {"role", "from", "author", "speaker"}
_NO_SHARE = {"role", "speaker"}  # a turn with one of these is none of ShareGPT
_CONTENTS = ("content", "value", "parts", "text", "utterance")  # of a turn with a role, the first that is there
EXCHANGES = (("input", "output"), ("human", "assistant"), ("user", "assistant"), ("question", "answer"), ("prompt", "response"))
_BESIDE = ("name", "tool_call_id")  # of a turn: templates may ask for them
_PART_TEXTS = ("text", "value", "content")


class Message(NamedTuple):
    """One turn. `calls`: the tool calls it makes, each {"type": "function", "function": {"name", "arguments"}}; `thinking`: what the
    assistant thought before it, apart from the content. `learn`: OFF where the row says that this answer is not to be learned, a share
    between 0 and 1 where it counts less than whole, False where it stands in the row's prompt. `beside`: further fields that a template
    may ask for.
    """

    role: str
    content: str
    calls: tuple[Any, ...] = ()
    thinking: str = ""
    learn: bool | float = True
    beside: tuple[tuple[str, str], ...] = ()

    @property
    def said(self) -> str:
        """All text of it."""
        return f"{self.thinking}\n{self.content}" if self.thinking else self.content


@dataclass(frozen=True, slots=True)
class Example:
    """One row: a conversation (assistant turns are learned), or plain text with an optional given part (the rest is learned).

    `tools`: what the conversation's tools are, as its chat template takes them. `worse`: the same conversation with the worse answer.
    `good`: False where the answer is one that is not to be given.
    """

    messages: tuple[Message, ...] = ()
    given: str = ""
    learned: str = ""
    tools: tuple[Any, ...] = ()
    worse: tuple[Message, ...] = ()
    good: bool = True
    layout: str = field(default="", compare=False)


def conversation(value: dict[str, Any]) -> tuple[Message, ...]:
    """Return the turns of a row, wherever it has them. Raises BadRow."""
    try:
        messages = turns_of(value)
        system = system_of(value)
        if system and (not messages or messages[0].role != "system"):
            messages = (Message("system", system), *messages)
        return checked_turns(messages)
    except BadRow as bad:
        if bad.reason not in _WITHOUT_ROLES:
            raise
        if form := form_within(value):
            raise BadRow("not_rows", form) from None
        field = talk_field(value)
        if told := who_speaks(value.get(field), field):
            raise BadRow(bad.reason, f"{bad.detail}; {told}") from None
        raise


_WITHOUT_ROLES = ("wrong_type", "wrong_role", "no_user_turn", "no_assistant_turn")


def turns_of(value: dict[str, Any], row: dict[str, Any] | None = None) -> tuple[Message, ...]:
    """Return the turns in the first field that holds some. row: the whole row, where value is a part of it. Raises BadRow."""
    field = talk_field(value) or "messages"
    turns = value.get(field)
    if isinstance(turns, str):
        turns = loaded(turns)
        if not isinstance(turns, list):
            hint = "; Python's writing of a list is none, json.dumps writes one" if str(value[field]).lstrip().startswith("[{'") else ""
            raise BadRow("wrong_type", f"{field} must be a list of turns, it is text, and no JSON{hint}")
    if not isinstance(turns, list):
        raise BadRow("missing_field" if turns is None else "wrong_type", f"{field} must be a list of turns, it is {kind_of(turns)}")
    if len(turns) == 1 and isinstance(turns[0], list):
        turns = turns[0]
    share = field == "conversations" and not any(
        isinstance(turn, dict) and not _NO_SHARE.isdisjoint(map(in_our_case, turn)) for turn in turns
    )
    found: list[Message] = []
    meant = meant_in(row or value)
    for number, turn in enumerate([one for given in turns for one in without_blocks(given)]):
        if isinstance(turn, dict) and ("role" in turn or "from" in turn):
            found.append(turn_of(turn, number, meant, share or None))
        else:
            found += exchange_of(turn, number) or [turn_of(turn, number, meant, share or None)]
    less = row_mask(value, [one.role for one in found])
    return tuple([one._replace(learn=min(one.learn, less[at])) if at in less else one for at, one in enumerate(found)])


def talk_field(value: dict[str, Any]) -> str:
    """Return the name of the field that holds the turns of a row; "" where none does."""
    found = next(
        (name for name in TALKS if isinstance(inside := value.get(name), list) and inside and isinstance(inside[0], dict | list)), ""
    )
    texts = (name for name in TALKS if isinstance(inside := value.get(name), str) and inside.lstrip()[:2] in ("[{", "[["))
    return found or next(texts, "") or next((name for name in ("conversations", "messages") if name in value), "")


def checked_turns(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Return turns of which something can be learned. Raises BadRow."""
    if not any(message.role == "user" for message in messages):
        raise BadRow("no_user_turn", f"none of {len(messages)} turns is the user's")
    answers = [message for message in messages if message.role == "assistant"]
    if not answers:
        raise BadRow("no_assistant_turn", f"none of {len(messages)} turns is the assistant's, so there is nothing to learn")
    if not any(answer.content.strip() or answer.calls for answer in answers):
        raise BadRow("empty_answer", "every assistant turn is empty")
    return messages


def system_of(value: dict[str, Any]) -> str:
    """Return the system prompt in a field beside the turns: text, a turn or parts of text."""
    system = next((value[name] for name in ("system", "systeminstruction", "system_instruction") if value.get(name)), "")
    if isinstance(system, dict):
        system = system.get("parts", system.get("content", system.get("text")))
    if isinstance(system, list):
        system = "".join(part.get("text", "") for part in system if isinstance(part, dict) and isinstance(part.get("text"), str))
    return system if isinstance(system, str) and system.strip() else ""


def before_question(value: dict[str, Any]) -> tuple[Message, ...]:
    """Return what stands before the question of a row: the system's text, and `history`, exchanges of a question and its answer.

    Raises BadRow for a history that is none.
    """
    history, system = value.get("history") or [], system_of(value)
    if not isinstance(history, list) or not all(isinstance(one, list) and [type(text) for text in one] == [str, str] for one in history):
        raise BadRow("wrong_type", "history must be a list of exchanges, each [question, answer] as text")
    before = [Message(role, text) for exchange in history for role, text in zip(("user", "assistant"), exchange, strict=True)]
    return (*([Message("system", system)] if system else []), *before)


def exchange_of(turn: Any, number: int) -> list[Message]:
    """Return question and answer of an element that holds both in fields of its own; empty where it is a turn."""
    if not isinstance(turn, dict) or not _TURN_NAMES.isdisjoint(turn):
        return []
    names = next((names for names in EXCHANGES if all(isinstance(turn.get(name), str) for name in names)), None)
    if names is None:
        return []
    system = turn.get("system")
    before = [Message("system", system)] if isinstance(system, str) and system.strip() and not number else []
    asked = [Message("user", turn[names[0]])] if turn[names[0]].strip() else []
    return [*before, *asked, Message("assistant", turn[names[1]], learn=learns(turn, number))]


def turn_of(turn: Any, number: int, meant: Meant, share: bool | None = None) -> Message:
    """Read one turn. meant: what its calls were made with (`meant_in`). Raises BadRow."""
    if not isinstance(turn, dict):
        raise BadRow("wrong_type", f"turn {number} must be an object, it is {kind_of(turn)}")
    turn = turn if turn.keys() & _TURN_NAMES else {in_our_case(name): inside for name, inside in turn.items()}
    share = turn.keys().isdisjoint(("role", "author", "speaker")) if share is None else share
    role, content = _said(turn, share)
    if isinstance(role, str) and role not in _SHAREGPT_ROLES and in_our_case(role) in _SHAREGPT_ROLES:
        role = in_our_case(role)
    calls = calls_of(turn.get("tool_calls") or turn.get("function_call"), number, meant)
    thinking = next((text for name in THINKING if isinstance(text := turn.get(name), str) and text.strip()), "")
    if isinstance(content, list):
        thoughts = [thought for part in content if (thought := _thought_in(part)) is not None]
        thinking = thinking or "\n".join(filter(None, thoughts))
        content = _joined([part for part in content if _thought_in(part) is None], number)
    if content is None and calls:
        content = ""
    if not isinstance(role, str) or not isinstance(content, str):
        wanted = "from and value" if share else "role and content"
        raise BadRow("wrong_type", f"turn {number} needs {wanted} as text, it has {kind_of(role)} and {kind_of(content)}")
    if share:
        if role not in _SHAREGPT_ROLES:
            raise BadRow("wrong_role", f"turn {number} has role {role!r}; known are {sorted(_SHAREGPT_ROLES)}")
        role = _SHAREGPT_ROLES[role]
    role = _ROLES.get(role, role)
    if role == "call":
        if called := calls_of(content, number, meant) if content.strip() else ():
            return Message("assistant", "", called)
        raise BadRow("broken_tool_call", f"turn {number} is a call by its role and makes none: {content[:SHOWN]!r}")
    if role == "user" and not calls:
        return Message(role, content)
    beside = () if role != "tool" else tuple([(name, turn[name]) for name in _BESIDE if isinstance(turn.get(name), str)])
    learn = role != "assistant" or TURN_MARKS.isdisjoint(turn) or learns(turn, number)
    return Message(role, content, calls, thinking if role == "assistant" else "", learn, beside)


def _said(turn: dict[str, Any], share: bool) -> tuple[Any, Any]:
    """Return the speaker and the content of a turn."""
    if share:
        return turn.get("from"), turn.get("value", turn.get("content"))
    content = turn.get("content")
    if content is None:
        content = next((turn[name] for name in _CONTENTS if turn.get(name) is not None), None)
    return turn.get("role", turn.get("author", turn.get("speaker"))), content


def _thought_in(part: Any) -> str | None:
    """Return the reasoning that a part of a turn is, as Anthropic, Gemini and others mark it; None where it is something else.

    In columns each part has the fields of all parts, and null in those that are not its own.
    """
    if not isinstance(part, dict) or (part.get("thinking") is None and part.get("type") != "reasoning" and part.get("thought") is not True):
        return None
    return next((text for name in ("thinking", "reasoning", "text") if isinstance(text := part.get(name), str)), "")


def _joined(parts: list[Any], number: int) -> str:
    """Join the text of a turn that is written as a list of parts."""
    texts = []
    for part in parts:
        text = next((part[key] for key in _PART_TEXTS if part.get(key) is not None), None) if isinstance(part, dict) else part
        if not isinstance(text, str):
            kind = part.get("type") if isinstance(part, dict) else kind_of(part)
            raise BadRow("wrong_type", f"turn {number} has a part that is not text ({kind}); only text is trained on")
        texts.append(text)
    return "".join(texts)
