"""Tokenise examples with the model's own tokenizer.json. No torch, no transformers."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from holdfast.core.errors import BLOCKED, Stop
from holdfast.core.files import read_json
from holdfast.rows.formats import BadRow
from holdfast.rows.template import Piece, Template, load_template


@dataclass(frozen=True)
class Tokens:
    """One row: token numbers, and for each whether it is learned. `cut`: how many tokens did not fit."""

    ids: list[int]
    learned: list[bool]
    cut: int


@dataclass(frozen=True)
class Codec:
    """A model's tokenizer and template. `pad` is the number padding is filled with: never the end-of-text token."""

    folder: Path
    tokenizer: Tokenizer
    template: Template
    pad: int
    pad_reason: str
    bos: tuple[int, ...]
    vocabulary: int

    @property
    def eos(self) -> int | None:
        """The token an answer ends with; None when the tokenizer names none."""
        number = self.tokenizer.token_to_id(self.template.eos) if self.template.eos else None
        return number if isinstance(number, int) else None

    def encode(self, rows: list[list[Piece]], max_tokens: int) -> list[Tokens | BadRow]:
        """Tokenise rows of pieces; each piece on its own, as a prompt is tokenised on its own when the model is used."""
        texts = [text for row in rows for text, _ in row]
        encoded = iter(self.tokenizer.encode_batch_fast(texts, add_special_tokens=False))
        return [self._join([(next(encoded).ids, learned) for _, learned in row], row[0][0], max_tokens) for row in rows]

    def _join(self, parts: list[tuple[list[int], bool]], first_text: str, max_tokens: int) -> Tokens | BadRow:
        ids: list[int] = []
        learned: list[bool] = []
        if self.bos and not (self.template.bos and first_text.startswith(self.template.bos)):
            ids, learned = list(self.bos), [False] * len(self.bos)
        for numbers, is_learned in parts:
            ids += numbers
            learned += [is_learned] * len(numbers)
        total, targets = len(ids), sum(learned[1:])
        ids, learned = ids[:max_tokens], learned[:max_tokens]
        if not any(learned[1:]):
            cause = f"the answer begins after max_tokens = {max_tokens}" if targets else "the answer has no token"
            return BadRow("all_labels_masked", f"{cause}; the row has {total} tokens, {targets} of them to be learned")
        return Tokens(ids, learned, total - len(ids))


def load_codec(folder: Path) -> Codec:
    """Load tokenizer and template of a model folder. Raises Stop(1) when there is none or it is damaged."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise Stop(
            BLOCKED,
            f"{folder} has no tokenizer.json",
            "save the model's fast tokenizer into it: AutoTokenizer.from_pretrained(...).save_pretrained(folder)",
        )
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # noqa: BLE001  (tokenizers raises plain Exception for a damaged file; it is reported below)
        raise Stop(BLOCKED, f"{file} is damaged: {error}", "fetch the model's tokenizer again") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    template = load_template(folder)
    pad, reason = _pad_token(folder, tokenizer, template)
    bos = () if template.compiled else _leading_specials(tokenizer, template)
    return Codec(folder, tokenizer, template, pad, reason, bos, tokenizer.get_vocab_size(with_added_tokens=True))


def _leading_specials(tokenizer: Tokenizer, template: Template) -> tuple[int, ...]:
    """What the tokenizer itself puts before a text (the beginning-of-text token), for forms without a chat template."""
    ids = tokenizer.encode("", add_special_tokens=True).ids
    eos = tokenizer.token_to_id(template.eos) if template.eos else None
    return tuple(number for number in ids if number != eos)


def _pad_token(folder: Path, tokenizer: Tokenizer, template: Template) -> tuple[int, str]:
    """A token for padding that is not the end of text: the model's own, else one that never has to be predicted."""
    settings = read_json(folder / "tokenizer_config.json") or {}
    value = settings.get("pad_token")
    own = value.get("content") if isinstance(value, dict) else value
    eos = tokenizer.token_to_id(template.eos) if template.eos else None
    number = tokenizer.token_to_id(own) if isinstance(own, str) else None
    if number is not None and number != eos:
        return number, f"the tokenizer's own {own}"
    for candidate in ("<|pad|>", "<pad>", "[PAD]", "<|endoftext|>", "<unk>", "[UNK]"):
        number = tokenizer.token_to_id(candidate)
        if number is not None and number != eos:
            return number, f"{candidate}, because the tokenizer's pad token is {own or 'not set'}" + (" = its EOS" if own else "")
    number = 0 if eos != 0 else 1
    return number, f"token {number}, because the tokenizer has no pad token; padding is masked and never learned"
