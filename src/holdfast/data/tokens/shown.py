"""One row as it is trained: its text and each token of it, learned or given. Trains nothing and keeps nothing."""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.base.files import Json
from holdfast.data.files.raw_row import UnparsedRow
from holdfast.data.judge.notes import note
from holdfast.data.judge.rules import Rules
from holdfast.data.judge.turns import BadRow
from holdfast.data.judge.unused import UnusedFields
from holdfast.data.templates.chat_template import worse_pieces
from holdfast.data.templates.skeleton import Piece
from holdfast.data.tokens.codec import Codec
from holdfast.data.tokens.shard import Block, readable
from holdfast.data.tokens.taught import notes_of


@dataclass
class ShownRow:
    """`text` is the texts of all tokens, one after the other."""

    text: str
    tokens: list[Json]
    layout: str
    notes: list[str] = field(default_factory=list)
    weight: float | None = None  # where the rules name a field for it: 1 in a row without
    worse: ShownRow | None = None  # of a pair: the conversation with the worse answer

    def as_json(self) -> Json:
        own = {"text": self.text, "tokens": self.tokens, "format": self.layout, "notes": self.notes} | (
            {"weight": self.weight} if self.weight is not None else {}
        )
        return own | ({"rejected": {"text": self.worse.text, "tokens": self.worse.tokens}} if self.worse else {})


def show_row(row: UnparsedRow, rules: Rules, codec: Codec) -> ShownRow:
    """Return the row as `train` takes it under these rules. Raises BadRow with the reason where it is rejected."""
    good, rejects = readable(Block((row,)), rules, codec)
    if not good:
        raise BadRow(rejects[0].reason, rejects[0].detail)
    judged, written = good[0]
    tokens = [token for pieces in written.sequences for token in _tokens(pieces, codec)[: rules.max_tokens]]
    notes = [f"{reason}: {detail}" for reason, detail in judged.mended]
    if codec.template.compiled is None and judged.example.messages:
        notes.append("the model has no chat template: turns are written in a plain form")
    notes += [f"{reason}: {detail}" for reason, _, detail in notes_of([judged], [written], codec)]
    longest = max(len(_tokens(pieces, codec)) for pieces in written.sequences)
    if longest > rules.max_tokens:
        fate = {"cut": "the end is cut off", "reject": "the row is rejected", "split": "it is trained on as several rows"}[rules.too_long]
        notes.append(f"{longest:,} tokens, {rules.max_tokens:,} may be trained on: {fate}")
        if rules.too_long != "cut":
            tokens = [token for pieces in written.sequences for token in _tokens(pieces, codec)]
    if not any(token["learned"] for token in tokens[1:]):
        raise BadRow("all_labels_masked", f"no token of its {len(tokens):,} would be learned")
    judged.tokens = len(tokens)
    notes += [f"{card.reason}: {detail}" for card, _, detail in note([judged], rules)]
    unused = UnusedFields()
    unused.add([(judged.value, judged.example)], dict(rules.fields), rules.beside)
    notes += [f"not used, though it may change what the row means: {name}" for name in unused.telling]
    worse = None
    if judged.example.worse:
        other = _tokens(worse_pieces(judged.example, codec.template), codec)[: rules.max_tokens]
        worse = ShownRow(_text(other), other, judged.layout)
    if not judged.example.good:
        notes.append("the answer is marked as one that is not to be given")
    weight = (1.0 if judged.weight is None else judged.weight) if rules.weight else None
    return ShownRow(_text(tokens), tokens, judged.layout, notes, weight, worse)


def _text(tokens: list[Json]) -> str:
    return "".join(token["text"] for token in tokens)


def _tokens(pieces: list[Piece], codec: Codec) -> list[Json]:
    """Return each token with its own stretch of text; a character of several tokens goes to the first of them."""
    found: list[Json] = [
        {"id": number, "text": codec.tokenizer.decode([number], skip_special_tokens=False), "learned": False}
        for number in codec.lead(pieces)
    ]
    text, done = "".join(part for part, _ in pieces), 0
    for number, _, end, piece in codec.placed(pieces):
        until = max(done, end)
        share = pieces[piece][1]
        own = {"weight": share} if 0 < share < 1 else {}
        found.append({"id": number, "text": text[done:until], "learned": bool(share)} | own)
        done = until
    return found
