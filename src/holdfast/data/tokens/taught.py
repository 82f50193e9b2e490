"""What the rows that are trained on teach: how many of their answers are learned, what of them is left out. Counts; decides nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

from holdfast.base.files import Json
from holdfast.base.units import counted
from holdfast.data.judge.judge import JudgedRow, joined_text
from holdfast.data.templates.conversation import RenderedRow
from holdfast.data.tokens.codec import Codec

_MARKUP = (
    "<|im_start|>",
    "<|im_end|>",
    "[INST]",
    "[/INST]",
    "<<SYS>>",
    "<s>",
    "</s>",
    "<bos>",
    "<eos>",
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|eot_id|>",
    "<|endoftext|>",
    "<start_of_turn>",
    "<end_of_turn>",
    "<|turn>",
    "<turn|>",
    "<|user|>",
    "<|assistant|>",
    "<|system|>",
    "<|end|>",
    "<|start|>",
    "<|return|>",
    "<|channel|>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<｜end▁of▁sentence｜>",
    "<|START_OF_TURN_TOKEN|>",
    "<|END_OF_TURN_TOKEN|>",
    "<extra_id_0>",
)  # what chat templates and tokenizers of the known families write between turns


@dataclass
class LearnedAnswers:
    """Of the kept rows: their answers, how many are learned, and of those how many without a token that ends them.

    `off`: answers that their rows mark as not to be learned; `cut`: those beyond the longest row allowed; `shares`: those that count less
    than whole. `tool_calls_left_out`, `reasoning_left_out`: turns.
    """

    answers: int = 0
    learned: int = 0
    without_end: int = 0
    tool_calls_left_out: int = 0
    reasoning_left_out: int = 0
    off: int = 0
    cut: int = 0
    shares: int = 0

    def take(self, written: RenderedRow, lost: int, torn: int) -> None:
        """Count a row. lost, torn: answers that the limit takes away, and those whose end it takes."""
        self.shares += written.shares
        if not lost and not torn and not written.notes and written.learned == written.answers:
            self.answers += written.answers
            self.learned += written.answers
            return
        learned = max(0, written.learned - lost)
        self.answers += written.answers
        self.learned += learned
        self.without_end += min(learned, written.unended + torn)
        self.tool_calls_left_out += written.calls
        self.reasoning_left_out += written.thoughts
        self.off += written.off
        self.cut += lost

    def merge(self, other: LearnedAnswers) -> None:
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))

    def __sub__(self, other: LearnedAnswers) -> LearnedAnswers:
        return LearnedAnswers(**{name: count - getattr(other, name) for name, count in vars(self).items()})

    def as_json(self) -> Json:
        """Return all counts; `off`, `cut` and `shares` where they are not 0."""
        return {name: count for name, count in vars(self).items() if count or name not in ("off", "cut", "shares")}


def notes_of(rows: list[JudgedRow], written: list[RenderedRow], codec: Codec) -> Iterator[tuple[str, JudgedRow, str]]:
    """Yield (reason, row, detail) of each note on rows that are trained on, beside those on their texts."""
    for row, one in zip(rows, written, strict=True):
        for reason, detail in one.notes:
            yield reason, row, detail
    if codec.stands_in:
        return
    text = joined_text(rows)
    source = codec.template.source or ""
    foreign = [mark for mark in _MARKUP if mark in text and mark not in codec.template.added and mark not in source]
    for row in rows if foreign else ():
        found = next((mark for mark in foreign if mark in row.text), "")
        if found:
            yield "foreign_markup", row, f"{found!r} is another model's mark; this tokenizer makes plain pieces of it, which are learned"


def told_of(taught: Json, train_on: str = "assistant") -> list[str]:
    """Return the notes on the answers of a set, each a sentence; those that begin with "! " are about something that is lost."""
    answers, learned, cut, off = (taught.get(name, 0) for name in ("answers", "learned", "cut", "off"))
    said = []
    if learned < answers:
        why = [
            f"{cut:,} beyond the longest row allowed" if cut else "",
            f"{off:,} marked by their rows as not to be learned" if off else "",
        ]
        left = answers - learned - cut - off
        if left > 0:
            why.append(
                f"{left:,} not the last one, which alone is learned" if train_on == "last" else f"{left:,} left out by the chat template"
            )
        said.append(f"! of {counted(answers, 'answer')} {learned:,} are learned ({'; '.join(filter(None, why))})")
    if shares := taught.get("shares", 0):
        said.append(f"{shares:,} of {learned:,} answers count less than whole, as their rows say")
    if taught["without_end"]:
        ending = f"{taught['without_end']:,} of {learned:,} answers are learned without a token that ends them"
        said.append(f"! {ending}: the model does not learn from them to stop; holdfast data show FILE --row N shows one")
    for name, what, it in (("tool_calls_left_out", "tool calls", "them"), ("reasoning_left_out", "reasoning", "it")):
        if taught[name]:
            said.append(f"! {what} of {counted(taught[name], 'turn')} left out: the chat template has no place for {it}")
    return said
