"""Tokenise examples with the model's own tokenizer.json. No torch, no transformers."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

from tokenizers import AddedToken, Encoding, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from holdfast.base.errors import BLOCKED, Stop
from holdfast.base.file_errors import of_the_file
from holdfast.base.files import Json, read_json
from holdfast.base_model.forms import read_config
from holdfast.data.judge.rules import Rules
from holdfast.data.judge.turns import BadRow
from holdfast.data.templates.chat_template import ChatTemplate, load_template
from holdfast.data.templates.skeleton import BESIDE, Piece
from holdfast.data.tokens.tokenizer_file import in_words, refuse_growing, refuse_swallowing, without_file
from holdfast.data.tokens.whole import TokenPlace, pieces_of, reads_whole, runs_of, sizes_of, text_of
from holdfast.data.tokens.word_counts import QWEN2_WORDS, WordCounts, begins_with_space, tokens_of, word_counts

_NAMED = ("bos", "eos", "unk", "pad")  # special tokens that a tokenizer_config.json names, as transformers adds them


@dataclass(frozen=True)
class Tokens:
    """One row: token numbers, and for each whether, or with which share, it is learned. `cut`: how many tokens did not fit."""

    ids: list[int]
    learned: list[bool] | list[int] | list[bool | float]
    cut: int
    lost: int = 0  # answers of which nothing is learned
    torn: int = 0  # answers of which the end is cut off


class Fit(NamedTuple):
    """What of a row is trained on: tokens, how many did not fit, how many are learned; and of its answers, how many are cut: `lost`
    those of which nothing is learned, `torn` those of which the end is not.
    """

    tokens: int
    cut: int
    learned: int
    lost: int = 0
    torn: int = 0


@dataclass(frozen=True)
class Codec:
    """A model's tokenizer and template. `pad` is the number padding is filled with: never the end-of-text token."""

    folder: Path
    tokenizer: Tokenizer
    template: ChatTemplate
    pad: int
    pad_reason: str
    bos: tuple[int, ...]
    vocabulary: int
    given: str | None = None  # the template that stands in place of the folder's
    stands_in: bool = False  # for the tokenizer of a model that is not known: it counts, and says nothing about single rows

    @property
    def eos(self) -> int | None:
        """The token an answer ends with; None when the tokenizer names none."""
        number = self.tokenizer.token_to_id(self.template.eos) if self.template.eos else None
        return number if isinstance(number, int) else None

    @functools.cached_property
    def specials(self) -> tuple[str, ...]:
        """Texts that become special tokens wherever they stand."""
        added = self.tokenizer.get_added_tokens_decoder().values()
        return tuple(sorted(token.content for token in added if token.special and len(token.content) > 2))

    @functools.cached_property
    def whole(self) -> bool:
        """Whether the text of a row is encoded as one, because its pieces alone would have other tokens."""
        return reads_whole(self.tokenizer)

    def encode(self, rows: list[list[Piece]], rules: Rules) -> list[Tokens | BadRow]:
        """Tokenise rows of pieces: each piece on its own, as a prompt is tokenised on its own when the model is used, or the text as one
        with a tokenizer to which it matters where a text begins.
        """
        return [self._join(row, ids, sizes, rules) for row, (ids, sizes) in zip(rows, self._encoded(rows), strict=True)]

    def placed(self, row: list[Piece]) -> list[TokenPlace]:
        """Return the tokens of a row as `encode` has them, without its lead, each with its place in the row's text and its piece."""
        found: list[TokenPlace] = []
        begin = piece = 0
        for run in self._runs(row):
            text = text_of(run)
            with in_words(self.folder):
                encoding = self.tokenizer.encode(text, add_special_tokens=False)
            last = len(encoding.ids) - 1
            for at, (number, (first, end), own) in enumerate(
                zip(encoding.ids, encoding.offsets, pieces_of(encoding.offsets, run), strict=True)
            ):
                found.append(TokenPlace(number, begin + first, begin + (len(text) if at == last else end), piece + own))
            begin, piece = begin + len(text), piece + len(run)
        return found

    def measure(self, rows: list[list[Piece]], rules: Rules) -> list[int | Fit | BadRow]:
        """Return the results of `encode` without the token numbers; of a row that fits whole, as nearly all do, its length alone."""
        if self.whole:
            return self._measure_whole(rows, rules)
        found: list[int | Fit | BadRow] = []
        at = 0
        sizes = self._sizes([text for row in rows for text, _ in row])
        most = rules.max_tokens
        for row in rows:
            if len(row) == 2 and row[1][1] and not row[0][1] and not self.bos:
                given, learned = sizes[at], sizes[at + 1]
                if given and learned and given + learned <= most:
                    found.append(given + learned)
                    at += 2
                    continue
            found.append(self._fit(row, sizes[at : at + len(row)], rules))
            at += len(row)
        return found

    def _fit(self, row: list[Piece], sizes: list[int], rules: Rules) -> Fit | BadRow:
        try:
            return fit(self.lead(row), [(size, learned) for size, (_, learned) in zip(sizes, row, strict=True)], rules)
        except BadRow as bad:
            return bad

    @functools.cached_property
    def _words(self) -> WordCounts | None:
        with in_words(self.folder):
            return word_counts(self.tokenizer, self.template.eos)

    def _sizes(self, texts: list[str]) -> list[int]:
        """Count the tokens of each text; a text that stands there more than once is counted once."""
        once = [*dict.fromkeys(texts)]
        with in_words(self.folder):
            counts = self._words.of(once) if self._words is not None else tokens_of(self.tokenizer, once)
        if len(once) == len(texts):
            return counts
        size_of = dict(zip(once, counts, strict=True))
        return [size_of[text] for text in texts]

    def _measure_whole(self, rows: list[list[Piece]], rules: Rules) -> list[int | Fit | BadRow]:
        """Measure by the words of the texts where those are counted; token by token where a row is too long, or ends with what is given."""
        counted = [row for row in rows if row[-1][0] and row[-1][1]] if self._words else []
        runs = [self._runs(row) for row in counted]
        sizes = iter(self._sizes([text_of(run) for row in runs for run in row]))
        found = (len(self.lead(row)) + sum(size for _, size in zip(own, sizes)) for row, own in zip(counted, runs, strict=True))  # noqa: B905
        known = {id(row): size for row, size in zip(counted, found, strict=True) if 2 <= size <= rules.max_tokens}
        left = iter([*self._encoded([row for row in rows if id(row) not in known])])
        return [known[id(row)] if id(row) in known else self._fit(row, next(left)[1], rules) for row in rows]

    def _runs(self, row: list[Piece]) -> list[list[Piece]]:
        return runs_of(row, self.whole, self.template.lead)

    def _encoded(self, rows: list[list[Piece]]) -> Iterator[tuple[list[int], list[int]]]:
        """Yield of each row its tokens, without its lead, and how many of them each piece has."""
        runs = [self._runs(row) for row in rows]
        encode = self.tokenizer.encode_batch if self.whole else self.tokenizer.encode_batch_fast  # the fast one tells no offsets
        with in_words(self.folder):
            encoded: Iterator[Encoding] = iter(encode([text_of(run) for row in runs for run in row], add_special_tokens=False))
        for row in runs:
            ids: list[int] = []
            sizes: list[int] = []
            for run, one in zip(row, encoded):  # noqa: B905  each row takes its own
                ids += one.ids
                sizes += sizes_of(one, run)
            yield ids, sizes

    def lead(self, row: list[Piece]) -> tuple[int, ...]:
        """Return the tokens before a row whose text does not begin with them already."""
        if not self.bos:
            return ()
        begins = tuple(filter(None, (self.template.bos, self.template.lead)))
        return () if next((text for text, _ in row if text), "").startswith(begins) else self.bos

    def _join(self, row: list[Piece], ids: list[int], sizes: list[int], rules: Rules) -> Tokens | BadRow:
        lead = self.lead(row)
        try:
            size = fit(lead, [(size, learned) for size, (_, learned) in zip(sizes, row, strict=True)], rules)
        except BadRow as bad:
            return bad
        ids = [*lead, *ids]
        flags: list[bool | float] = [False] * len(lead)
        for own, (_, learned) in zip(sizes, row, strict=True):
            flags += [learned] * own
        return Tokens(ids[: size.tokens], flags[: size.tokens], size.cut, size.lost, size.torn)


def fit(lead: tuple[int, ...], parts: list[tuple[int, bool | float]], rules: Rules) -> Fit:
    """Return how much of a row is trained on, from the number of tokens of each part. Raises BadRow where nothing of it can be."""
    total, targets, learned, lost, torn = len(lead), 0, 0, 0, 0
    for length, is_learned in parts:
        if is_learned:
            begin = max(total, 1)  # the first token of a row is never predicted
            targets += max(0, total + length - begin)
            learned += max(0, min(total + length, rules.max_tokens) - begin)
            answers = not (type(is_learned) is float and is_learned == BESIDE)
            lost += answers and begin >= rules.max_tokens
            torn += answers and begin < rules.max_tokens < total + length
        total += length
    if total > rules.max_tokens and rules.too_long == "reject":
        raise BadRow("too_long", f"the row has {total} tokens, max_tokens = {rules.max_tokens}")
    if not learned:
        cause = f"the answer begins after max_tokens = {rules.max_tokens}" if targets else "the answer has no token"
        raise BadRow("all_labels_masked", f"{cause}; the row has {total} tokens, {targets} of them to be learned")
    return Fit(min(total, rules.max_tokens), max(0, total - rules.max_tokens), learned, lost, torn)


def load_codec(folder: Path, given: str | None = None) -> Codec:
    """Load tokenizer and template of a model folder. given: a template in place of the folder's.

    Raises Stop(1) when there is none or it is damaged.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # rows are shared out among threads and processes of ours
    tokenizer = _load_tokenizer(folder)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    refuse_swallowing(folder, tokenizer)
    template = _with_tokens(load_template(folder, given), tokenizer)
    pad, reason = _pad_token(folder, tokenizer, template)
    bos = () if template.compiled else _around(tokenizer)[0]
    return Codec(folder, tokenizer, template, pad, reason, bos, tokenizer.get_vocab_size(with_added_tokens=True), given=given)


def plain_codec(codec: Codec) -> Codec:
    """Return the same tokenizer with the plain instruction form instead of a chat template: for counting, when the model is not known."""
    return dataclasses.replace(codec, template=ChatTemplate(None, "", codec.template.eos, None), bos=(), stands_in=True)


def _load_tokenizer(folder: Path) -> Tokenizer:
    file = folder / "tokenizer.json"
    settings = read_json(folder / "tokenizer_config.json") or {}
    try:
        if file.is_file():
            tokenizer = Tokenizer.from_file(str(file))
            refuse_growing(file, tokenizer)
            return _as_transformers_reads(tokenizer, folder, settings)
        if settings.get("tokenizer_class") == "Qwen2Tokenizer" and (folder / "merges.txt").is_file():
            return _of_qwen2(folder, settings)
    except Stop:
        raise
    except Exception as error:  # noqa: BLE001  (tokenizers raises plain Exception for a damaged file; it is reported below)
        raise Stop(
            BLOCKED, f"the tokenizer in {folder} is damaged: {of_the_file(error, file)}", "fetch the model's tokenizer again"
        ) from None
    raise without_file(folder, settings)


def _as_transformers_reads(tokenizer: Tokenizer, folder: Path, settings: Json) -> Tokenizer:
    """Apply AutoTokenizer's rules to the tokenizer: since transformers 5 those of Llama 2 are its class's, whatever the file says.

    There a space stands before a text alone and not behind each special token, too. Rows are compared with AutoTokenizer before step one.
    """
    of_llama = (read_config(folder / "config.json") or {}).get("model_type") == "llama"
    named = settings.get("tokenizer_class") in ("LlamaTokenizer", "LlamaTokenizerFast")
    if not (of_llama and named and begins_with_space(tokenizer) and _transformers_major() >= 5):
        return tokenizer
    scheme = "never" if settings.get("add_prefix_space") is False else "always" if settings.get("legacy") else "first"
    tokenizer.normalizer = None
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    return tokenizer


def _transformers_major() -> int:
    """Return the first number of the version of transformers; 0 where it is not installed."""
    try:
        return int(version("transformers").partition(".")[0])
    except (PackageNotFoundError, ValueError):
        return 0


def _of_qwen2(folder: Path, settings: Json) -> Tokenizer:
    """Build the tokenizer of a Qwen2 folder that has vocabulary and merges only, as transformers does."""
    tokenizer = Tokenizer(models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt")))
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(QWEN2_WORDS), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    added = sorted((int(number), token) for number, token in settings.get("added_tokens_decoder", {}).items())
    tokenizer.add_tokens([AddedToken(token["content"], special=token["special"], normalized=False) for _, token in added])
    named = [(dict.fromkeys(("eos_token", "unk_token", "pad_token"), "<|endoftext|>") | settings).get(f"{name}_token") for name in _NAMED]
    texts = [one.get("content") if isinstance(one, dict) else one for one in named]
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in texts if text])
    return tokenizer


def _around(tokenizer: Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the tokens the tokenizer itself puts before and behind a text, for forms without a chat template."""
    plain = tokenizer.encode("x", add_special_tokens=False).ids
    whole = tokenizer.encode("x", add_special_tokens=True).ids
    at = next((at for at in range(len(whole)) if plain and whole[at : at + len(plain)] == plain), len(whole))
    return tuple(whole[:at]), tuple(whole[at + len(plain) :])


def _with_tokens(template: ChatTemplate, tokenizer: Tokenizer) -> ChatTemplate:
    """Return the template with what the tokenizer puts around a text, and with the texts of its special tokens."""
    lead, trail = ("".join(tokenizer.id_to_token(number) or "" for number in ids) for ids in _around(tokenizer))
    added = tokenizer.get_added_tokens_decoder().values()
    specials = tuple(sorted(token.content for token in added if token.special))
    return dataclasses.replace(template, lead=lead, trail=trail, specials=specials, added=frozenset(token.content for token in added))


def _pad_token(folder: Path, tokenizer: Tokenizer, template: ChatTemplate) -> tuple[int, str]:
    """Choose a token for padding that is not the end of text: the model's own, else one that never has to be predicted."""
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
