"""Of which answer each span is that a template marks as generated. Found by changing an answer and seeing which spans change with it.

Where in the text an answer begins tells nothing: gpt-oss leaves out the reasoning of earlier turns, and its text is another from there on.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

from holdfast.data.judge.turns import BadRow, Message
from holdfast.data.templates.skeleton import Unclear

_ODD = "\ue0f0\ue0f1"  # what is added to an answer; private characters, which no template asks for


def owners(
    spans: Sequence[str],
    given: Sequence[str],
    messages: tuple[Message, ...],
    answers: Sequence[int],
    marked: Callable[[tuple[Message, ...]], list[str]],
) -> list[int]:
    """Return the turn of each span. given: the text before each; marked: the spans of other messages.

    A span that no answer changes (an end that is written once, behind the last turn) is of the answer before it, or of the one behind it
    where somebody else speaks before it.
    """
    if len(spans) == len(answers) and all(_holds(span, messages[turn]) for span, turn in zip(spans, answers, strict=True)):
        return [*answers]
    known: dict[int, int] = {}
    for turn in answers:
        for at in _changed(spans, messages, turn, marked):
            known.setdefault(at, turn)
    found: list[int] = []
    for at in range(len(spans)):
        behind = next((known[later] for later in range(at, len(spans)) if later in known), answers[-1])
        before = found[-1] if found else behind
        others = (str.__str__(one.content).strip() for one in messages[before + 1 : behind])
        found.append(behind if at in known or any(said and said in given[at] for said in others) else before)
    return found


def _holds(span: str, message: Message) -> bool:
    """True if a span is plainly of this answer. Its content may be a mark, of which nothing can be asked."""
    content = str.__str__(message.content)
    return content.strip() in span if content.strip() else any(call["function"]["name"] in span for call in message.calls)


def _changed(
    spans: Sequence[str], messages: tuple[Message, ...], turn: int, marked: Callable[[tuple[Message, ...]], list[str]]
) -> Sequence[int]:
    """Return the spans that another answer of this turn would change, which stand side by side."""
    content = messages[turn].content
    if type(content) is not str:
        return [at for at, span in enumerate(spans) if str.__str__(content) in span]
    for other in _others(messages[turn]):
        try:
            theirs = marked((*messages[:turn], other, *messages[turn + 1 :]))
        except (BadRow, Unclear):
            continue
        same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(spans, theirs)))  # noqa: B905  either may be shorter
        behind = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(reversed(spans[same:]), reversed(theirs[same:])))  # noqa: B905
        until = len(spans) - sum(1 for _ in behind)
        if same < until:
            return range(same, until)
    return []


def _others(message: Message) -> Iterator[Message]:
    """Yield the answer with something added to each of its texts; where that changes no span, with a content where it had none."""
    calls = tuple({**call, "function": {**call["function"], "name": call["function"]["name"] + _ODD}} for call in message.calls)
    thinking = message.thinking and message.thinking + _ODD
    yield message._replace(content=message.content and message.content + _ODD, calls=calls, thinking=thinking)
    if not message.content:
        yield message._replace(content=_ODD)
