"""Write a conversation as its chat template does, so that every answer is learned as a server would have the model write it.

An answer stands behind the prompt that a server renders for it. A template that writes the past otherwise than it wrote it as an answer
(Qwen3 drops the reasoning of earlier turns, gpt-oss ends them with another token) therefore makes several sequences of a conversation,
each with the answers that its text has as they were given. Where a template says itself what is generated, that is learned.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from holdfast.data.judge.learned_turns import OFF
from holdfast.data.judge.turns import BadRow, Message
from holdfast.data.templates.another_prompt import behind_another_prompt, shared, thought_of
from holdfast.data.templates.owners import owners
from holdfast.data.templates.sandbox import MARK_BEGIN, MARK_END
from holdfast.data.templates.skeleton import Piece
from holdfast.data.templates.template import ChatTemplate, render

Note = tuple[str, str]  # reason and detail
_MOST_RENDERED = 4_000_000  # turns of all renderings of a row
_SPANS = re.compile(f"{MARK_BEGIN}(.*?){MARK_END}", re.DOTALL)
_PROBE = 60  # characters of a text that is looked for


class RenderedRow(NamedTuple):
    """A row as it is trained on. `sequences`: pieces, each with whether it is learned; of several each has other answers of the row.

    `answers`: of the row, `learned`: of them, without what a limit cuts off, `unended`: of those, without a token that ends them.
    `off`: those that the row itself marks as not to be learned, `shares`: those it lets count less than whole.
    `calls`, `thoughts`: turns whose tool calls or reasoning are left out.
    `marked_before`: whether the prompt of the last sequence holds an answer of these.
    `last`: the piece with which the last learned answer begins in the last sequence; -1 where it is one piece, the last that is learned.
    `ends`: whether, or with which share, the row's last answer is learned: False where the template keeps nothing of it.
    """

    sequences: list[list[Piece]]
    notes: tuple[Note, ...] = ()
    answers: int = 1
    learned: int = 1
    unended: int = 0
    off: int = 0
    calls: int = 0
    thoughts: int = 0
    last: int = -1
    shares: int = 0
    marked_before: bool = False
    ends: bool | float = True


def write_conversation(messages: tuple[Message, ...], tools: tuple[Any, ...], template: ChatTemplate) -> RenderedRow:
    """Render the conversation up to its last answer. Raises BadRow where the template refuses it, or keeps no answer of it."""
    answers = [at for at, message in enumerate(messages) if message.role == "assistant"]
    if 2 * sum(at + 1 for at in answers) > _MOST_RENDERED:
        raise BadRow("too_many_turns", f"{len(messages):,} turns with {len(answers):,} answers: make several conversations of them")
    if template.marked:
        return _as_marked(messages, tools, answers, template)
    sequences, placed, notes = _turn_by_turn(messages, tools, answers, template)
    found = _JudgedAnswers(messages, template, notes)
    for at, (sequence, piece) in zip(answers, placed, strict=True):
        text = sequences[sequence][piece][0]
        sequences[sequence][piece] = (text, found.teaches(at, text))
    kept = [number for number, pieces in enumerate(sequences) if any(learned for _, learned in pieces)]
    marked = any(
        sequence < max(kept, default=0) and messages[at].learn is not True for at, (sequence, _) in zip(answers, placed, strict=True)
    )
    written = found.written([sequences[number] for number in kept], len(answers), len(sequences))
    sequence, piece = placed[-1]
    return written._replace(marked_before=marked, ends=sequences[sequence][piece][1])


def _turn_by_turn(
    messages: tuple[Message, ...], tools: tuple[Any, ...], answers: list[int], template: ChatTemplate
) -> tuple[list[list[Piece]], list[tuple[int, int]], dict[str, str]]:
    """Build sequences in which each answer stands behind its own generation prompt; of each answer its sequence and its piece; notes."""

    def asked(turns: tuple[Message, ...]) -> str:
        return render(template, turns, tools, True)

    def told(turns: tuple[Message, ...]) -> str:
        return render(template, turns, tools, False)

    sequences: list[list[Piece]] = []
    placed: list[tuple[int, int]] = []
    notes: dict[str, str] = {}
    done = ""
    for at in answers:
        before, after = asked(messages[:at]), told(messages[: at + 1])
        if not after.startswith(before):
            before, after = behind_another_prompt(asked, told, messages, at, template, notes)
        if template.always_opens:
            after = _without_opening(before, after, template)
        if sequences:
            done = _common_end(done, before, sequences[-1], template)
        if sequences and before.startswith(done):
            sequences[-1] += [(before[len(done) :], False), (after[len(before) :], True)]
        else:
            sequences.append([(before, False), (after[len(before) :], True)])
        placed.append((len(sequences) - 1, len(sequences[-1]) - 1))
        done = after
    return sequences, placed, notes


def _without_opening(before: str, after: str, template: ChatTemplate) -> str:
    """Strip the next turn's beginning that a template writes behind every turn: keep the answer up to its end and the white space there."""
    end = after.rfind(template.end, len(before))
    if end < 0:
        return after
    end += len(template.end)
    return after[: end + len(after[end:]) - len(after[end:].lstrip())]


def _common_end(done: str, before: str, sequence: list[Piece], template: ChatTemplate) -> str:
    """Trim the sequence so far of the end that the template writes behind its last turn only: the answer then ends with its end token."""
    if before.startswith(done) or not template.end:
        return done
    text = sequence[-1][0]
    begin = len(done) - len(text)
    common = shared(done, before)
    end = done.rfind(template.end, begin, common)
    if end < 0:
        return done
    end += len(template.end)
    end += len(done[end:common]) - len(done[end:common].lstrip())
    sequence[-1] = (done[begin:end], True)
    return done[:end]


def _as_marked(messages: tuple[Message, ...], tools: tuple[Any, ...], answers: list[int], template: ChatTemplate) -> RenderedRow:
    """Render the conversation as the template does at its end, with its own marks of the generated spans.

    Of an answer of which it keeps nothing, a call without a place say, its end mark alone would be learned: it is not.
    """

    def rendered(turns: tuple[Message, ...]) -> str:
        return render(template, turns[: answers[-1] + 1], tools, False, marks=True)

    text = rendered(messages)
    spans = [*_SPANS.finditer(text)]
    if not spans:
        raise BadRow("all_labels_masked", "the chat template marks nothing of it as generated")
    given = [text[begin : span.start()] for begin, span in zip((0, *(span.end() for span in spans)), spans, strict=False)]
    turns = owners([span[1] for span in spans], given, messages, answers, lambda other: _SPANS.findall(rendered(other)))
    said = {turn: "".join(span[1] for span, own in zip(spans, turns, strict=True) if own == turn) for turn in answers}
    found = _JudgedAnswers(messages, template, {})
    teaches = {turn: found.teaches(turn, said[turn]) for turn in answers}
    pieces: list[Piece] = []
    learned = [turn for turn in answers if teaches[turn]]
    last = -1
    for before, span, turn in zip(given, spans, turns, strict=True):
        pieces += [piece for piece in ((before, False), (span[1], teaches[turn])) if piece[0]]
        if last < 0 and turn in learned[-1:]:
            last = len(pieces) - 1
    rest = text[spans[-1].end() :]
    return found.written([[*pieces, (rest, False)] if rest else pieces], len(answers), 1)._replace(last=last, ends=teaches[answers[-1]])


class _JudgedAnswers:
    """What is found of the answers of a conversation: which are learned, and what of them is not."""

    def __init__(self, messages: tuple[Message, ...], template: ChatTemplate, notes: dict[str, str]) -> None:
        self.messages, self.template, self.notes = messages, template, notes
        self.learned = self.unended = self.off = self.calls = self.thoughts = self.shares = 0

    def teaches(self, at: int, text: str) -> bool | float:
        """Return whether, or with which share, the answer of turn `at` is learned, of which the template writes `text`."""
        message = self.messages[at]
        if not message.learn:
            self.off += 1
            return OFF
        if type(message.content) is str and not self._keeps(at, message, text):
            return False
        self.learned += 1
        end = self.template.end
        if not end or (end not in text and not text.rstrip().endswith(self.template.ends)):
            self.unended += 1
            why = "the chat template writes no token that ends an answer" if not end else f"turn {at} is learned without {end!r} at its end"
            self.notes.setdefault("answer_without_end", f"{why}: from it the model does not learn to stop")
        self.shares += message.learn is not True
        return message.learn

    def _keeps(self, at: int, message: Message, text: str) -> bool:
        """True if anything of the turn is in `text`; notes what is not."""
        names = [call["function"]["name"] for call in message.calls]
        gone = [name for name in names if name not in text]
        if gone:
            self.calls += 1
            told = f"turn {at} calls {gone[0]}, for which the chat template has no place: the call is left out"
            self.notes.setdefault("tool_calls_left_out", told)
        thought = thought_of(message, self.template)
        kept_thought = bool(thought) and _probe(thought) in text
        if thought and not kept_thought:
            self.thoughts += 1
            self.notes.setdefault("reasoning_left_out", f"the chat template keeps nothing of the reasoning of turn {at}")
        elif message.thinking and not self.template.thinking_names and "<think>" in text and self.template.compiled:
            told = "the chat template has no place for reasoning: it is written as <think>...</think> before the answer"
            self.notes.setdefault("no_place_for_reasoning", told)
        said = message.content.strip()
        if said and names and not gone and _probe(said) not in text:
            told = f"the chat template keeps nothing of what turn {at} says beside its call"
            self.notes.setdefault("content_left_out", told)
        kept = kept_thought or len(gone) < len(names) or (bool(said) and _probe(said) in text)
        kept = kept or (bool(said) and bool(text.replace(self.template.end or "\0", "").strip()))  # the template writes it otherwise
        if not kept and not gone:
            self.notes.setdefault("turn_left_out", f"the chat template keeps nothing of turn {at}, which is therefore not learned")
        return kept

    def written(self, sequences: list[list[Piece]], answers: int, parts: int) -> RenderedRow:
        if not sequences or not self.learned:
            if self.calls:
                raise BadRow("no_place_for_tool_calls", f"{self.notes['tool_calls_left_out']}, and no other answer is left to learn")
            if self.off == answers:
                raise BadRow("all_labels_masked", f"each of its {answers:,} answers is marked as not to be learned")
            raise BadRow("turn_left_out", self.notes.get("turn_left_out", "the chat template writes no answer of it"))
        if self.learned + self.off < answers:
            self.notes.setdefault("answer_not_learned", f"of {answers:,} answers {self.learned:,} are learned")
        notes = dict(sorted(self.notes.items()))
        if parts > 1:
            told = f"the chat template writes earlier turns otherwise than it wrote them as answers: {parts} sequences"
            notes["several_sequences"] = f"{told}, so that each answer is learned behind the prompt that a server renders"
        counts = (answers, self.learned, self.unended, self.off, self.calls, self.thoughts)
        return RenderedRow(sequences, tuple(notes.items()), *counts, shares=self.shares)


def _probe(text: str) -> str:
    """Return the end of a text's last line, to look for in a rendering."""
    return text.strip().rpartition("\n")[2].strip()[-_PROBE:]
