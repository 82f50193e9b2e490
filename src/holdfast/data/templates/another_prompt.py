"""Where an answer begins in a text that does not begin with the answer's own generation prompt. Found by what the turns change in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from holdfast.data.judge.turns import BadRow, Message
from holdfast.data.templates.skeleton import Unclear
from holdfast.data.templates.template import ChatTemplate, placed_thinking

_ODD = "\ue0f0\ue0f1"  # what is put before all that a turn says; private characters, which no template asks for
_MOST_LINES = 3  # of a generation prompt behind the turns
_ENDS_OF_MARKUP = ">]:\n"
Rendering = Callable[[tuple[Message, ...]], str]


def behind_another_prompt(
    asked: Rendering, told: Rendering, messages: tuple[Message, ...], at: int, template: ChatTemplate, notes: dict[str, str]
) -> tuple[str, str]:
    """Return the prompt of answer `at`, and the prompt with the answer behind it, where the template writes another prompt there.

    asked, told: what it writes of the turns before the answer, with its generation prompt, and of those up to the answer.
    A prompt that opens a thought is kept where the turn has one. A prompt whose earlier turns alone are written otherwise is kept, with
    the answer as the whole text has it. Else the prompt is what stands before the answer in the whole text. Notes what it was.
    """
    before, after = asked(messages[:at]), told(messages[: at + 1])
    begin = _first_said(after, told, messages[: at + 1])
    common = _end_of_markup(after, min(shared(before, after), begin), begin, messages[:at])
    last = _first_said(before, asked, messages[:at]) if at else 0
    if common and last < common and before[common:].count("\n") <= _MOST_LINES:
        rest = before[common:]
        thought = thought_of(messages[at], template)
        if thought and rest.strip().endswith("<think>"):
            own = after[common:].partition("</think>")
            return before, f"{before}{thought}\n</think>\n\n{(own[2] if own[1] else own[0]).lstrip()}"
        notes["prompt_differs"] = (
            f"{_DIFFERS}: its generation prompt ends with {rest!r}, which its own writing of an answer has not: a server's prompt differs"
        )
        return before[:common], after
    found = after.rfind(before[last:], 0, begin) if at and last < len(before) else -1
    if found >= 0:
        notes["prompt_differs"] = f"{_DIFFERS}: it writes turns before it otherwise; it is learned behind the prompt that a server renders"
        return before, before + after[found + len(before) - last :]
    notes["prompt_differs"] = f"{_DIFFERS}: it is learned as the whole conversation is written, and a server's prompt differs"
    return after[:begin], after


_DIFFERS = "the chat template's prompt is not what stands before this answer"


def thought_of(message: Message, template: ChatTemplate) -> str:
    """Return the reasoning of a turn, apart or in its text."""
    if message.thinking or type(message.content) is not str:
        return message.thinking.strip()
    if placed := placed_thinking(message, template):
        return placed[0]
    return message.content.split("</think>")[0].rpartition("<think>")[2].strip() if "</think>" in message.content else ""


def _first_said(text: str, rendering: Rendering, messages: tuple[Message, ...]) -> int:
    """Find where the content of the last turn begins in `text`, the rendering of all turns; its length where nothing of it is there."""
    message = messages[-1]
    if type(message.content) is not str:
        place = text.rfind(str.__str__(message.content))
        return place if place >= 0 else len(text)
    found = len(text)
    for other in _others(message):
        try:
            theirs = rendering((*messages[:-1], other))
        except (BadRow, Unclear):
            continue
        if theirs != text:
            found = min(found, shared(text, theirs))
    return found


def _others(message: Message) -> Iterator[Message]:
    """Yield the turn with something put before each of its texts, one at a time."""
    if message.content.strip():
        yield message._replace(content=_ODD + message.content)
    if message.calls:
        calls = ({**call, "function": {**call["function"], "name": _ODD + call["function"]["name"]}} for call in message.calls)
        yield message._replace(calls=tuple(calls))
    if message.thinking.strip():
        yield message._replace(thinking=_ODD + message.thinking)


def _end_of_markup(text: str, common: int, begin: int, messages: tuple[Message, ...]) -> int:
    """Return the last place up to `common` that is not within a mark of the template: where the answer or a mark begins, or a turn ends."""
    said = tuple(content for one in messages if (content := str.__str__(one.content).strip()))
    while 0 < common < begin and text[common - 1] not in _ENDS_OF_MARKUP and not text.endswith(said, 0, common):
        common -= 1
    return common


def shared(one: str, two: str) -> int:
    """Count the characters with which both begin."""
    low, high = 0, min(len(one), len(two))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[low:middle] == two[low:middle] else (low, middle - 1)
    return low
