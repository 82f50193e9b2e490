"""A data check: one rule about the texts of a training row, as a card. Sees one row at a time; reads no file, counts nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

from pydantic import Field

from holdfast.book.kinds.catalog import Card

RowVerdict = Literal["reject", "mend", "note"]


class Turn(NamedTuple):
    """One turn of a conversation; `calls`: whether it calls tools."""

    role: str
    content: str
    calls: bool = False


class RowView(NamedTuple):
    """What a check sees; `text` is prompt and answer. `turns` is empty for a row that is no conversation.

    `specials`: texts that the tokenizer takes for tokens of its own, where a chat template is written around the row.
    `tokens` is None until they are counted. `loss`: the mean of the answer's tokens under a model, in nats; `deviation`: how far that
    lies from the median of all rows; both None but in a second look. `worse`: the worse answer of a pair.
    """

    prompt: str
    answer: str
    text: str
    turns: tuple[Turn, ...] = ()
    specials: tuple[str, ...] = ()
    tokens: int | None = None
    loss: float | None = None
    deviation: float | None = None
    worse: str = ""


class Columns(NamedTuple):
    """Many rows at once, as a check sees them."""

    prompts: Sequence[str]
    answers: Sequence[str]
    tokens: Sequence[int | None]


def _anything(_: str) -> bool:
    return True


class DataCheck(Card):
    """One rule. `screen` is asked first, with the text of many rows at once, then `sift` for the places of the rows that are worth a
    look: what these rule out, `look` never sees.

    `look` gives what is wrong, in words, or an empty text. A rejected row is not trained on; a mended one is, with `mend` applied to
    all its texts; a note changes nothing, unless it has a `mend` and redaction is asked for: then that is applied.
    """

    verdict: RowVerdict
    screen: Callable[[str], Any] = Field(_anything, exclude=True)
    sift: Callable[[Columns], Iterable[int]] | None = Field(None, exclude=True)
    look: Callable[[RowView], str] = Field(exclude=True)
    mend: Callable[[str], str] | None = Field(None, exclude=True)
    conversations_only: bool = False
    beyond_ascii: bool = False  # asked only of texts that are not ASCII alone
    second_look: bool = False  # asked only of what `data check --second-look` measured
    pairs_only: bool = False  # asked only of rows with a better and a worse answer
    specials_only: bool = False  # asked only where the tokenizer's special tokens stand in some text

    @property
    def reason(self) -> str:
        """The name rows are counted under."""
        return self.id.replace("-", "_")

    @property
    def is_screened(self) -> bool:
        return self.screen is not _anything

    def finds(self, row: RowView) -> str:
        """Return what is wrong with this row, or an empty text."""
        if self.pairs_only and not row.worse:
            return ""
        if (self.conversations_only and not row.turns) or (self.beyond_ascii and row.text.isascii()):
            return ""
        if (self.is_screened and not self.screen(row.text)) or not self.sifted([row.prompt], [row.answer], [row.tokens]):
            return ""
        return self.look(row)

    def sifted(self, prompts: Sequence[str], answers: Sequence[str], tokens: Sequence[int | None]) -> list[int]:
        """Return the positions of the rows that are worth a look."""
        return [*(range(len(answers)) if self.sift is None else self.sift(Columns(prompts, answers, tokens)))]

    def matches(self, evidence: Any) -> bool:
        """Return whether the check fires on a row. evidence: fields of a RowView; turns as (role, content) or (role, content, calls)."""
        turns = tuple(Turn(*turn) for turn in evidence.get("turns", ()))
        given = {"prompt": "", "answer": ""} | evidence
        return bool(self.finds(RowView(**given | {"turns": turns, "text": f"{given['prompt']}\n{given['answer']}"})))

    def details(self) -> Iterator[str]:
        yield {
            "reject": "The row is not trained on.",
            "mend": "The row is repaired and trained on.",
            "note": "The row is trained on as it is; with `--redact` (in a config: `data.redact`) it is taken out."
            if self.mend
            else "The row is trained on as it is.",
        }[self.verdict]
