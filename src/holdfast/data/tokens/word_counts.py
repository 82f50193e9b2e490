"""Count the tokens of texts word by word, each word once, where a tokenizer cannot but cut its texts there. Keeps counts, no texts.

Most words of a set come again and again, and a tokenizer of the two common kinds never makes one token of the end of a word and the
space behind it: byte-level ones cut their texts before they look for tokens, those of SentencePiece have no token with a space inside.
What is not certain is left to the tokenizer.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence

from tokenizers import Encoding, Tokenizer
from tokenizers.models import BPE

from holdfast.base.files import Json
from holdfast.data.tokens.whole import state_of

QWEN2_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CUT_AT_SPACES = (
    QWEN2_WORDS,
    QWEN2_WORDS.replace(r"\p{N}|", r"\p{N}{1,3}|"),
)  # Qwen2 and 3, Llama 3: no match goes on from a letter to a space
_SPACE = "\u2581"  # as SentencePiece writes it
_SPACE_BYTE = "\u0120"  # as byte-level tokenizers write it
_METASPACE = [{"type": "Prepend", "prepend": _SPACE}, {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}]
_MANY = 1 << 40  # stands for the count of a word that is not known, and makes every sum with it one that is not known
_LONGEST = 64  # characters of a word that is kept
_MOST = 1 << 17  # words that are kept
_JOINED = 64  # words that are counted as one text
_AT_ONCE = 256  # texts; the encodings of more at a time go beyond the caches of the processor


def word_counts(tokenizer: Tokenizer, ending: str) -> WordCounts | None:
    """Build the counter of words of this tokenizer; None where the tokens of a text need not be those of its words.

    A text is cut where a space follows anything but white space. `ending`: with what nearly every text ends.
    """
    model = tokenizer.model
    if not isinstance(model, BPE) or model.dropout:
        return None
    normal, before = state_of(tokenizer.normalizer), state_of(tokenizer.pre_tokenizer)
    added = tokenizer.get_added_tokens_decoder().values()
    for token in added:
        odd = token.lstrip or token.rstrip or token.single_word or (token.normalized and normal)
        if odd or any(letter.isspace() for letter in token.content):
            return None
    names = tuple(token.content for token in added)
    alone = ending if ending in names and not any(_overlap(ending, name) for name in names if name != ending) else ""
    if before:
        good = normal.get("type", "NFC") == "NFC" and _is_byte_level(before)
        return WordCounts(tokenizer, " ", names, alone) if good else None
    if normal.get("normalizers") != _METASPACE or model.ignore_merges or model.continuing_subword_prefix or model.end_of_word_suffix:
        return None
    vocabulary = tokenizer.get_vocab(with_added_tokens=False)
    good = _SPACE in vocabulary and not any(_SPACE in token.lstrip(_SPACE) for token in vocabulary)
    return WordCounts(tokenizer, "", names, alone) if good else None


def begins_with_space(tokenizer: Tokenizer) -> bool:
    """True if a tokenizer's normalizer puts a space before every text, as those of Llama 2 do, and nothing else changes texts."""
    return not tokenizer.pre_tokenizer and state_of(tokenizer.normalizer).get("normalizers") == _METASPACE


def _overlap(one: str, other: str) -> bool:
    """True if `other` may take the place of `one` in a text: it holds it, or ends as that begins."""
    return one in other or any(other.endswith(one[:length]) for length in range(1, len(one)))


def _is_byte_level(before: Json) -> bool:
    """True if texts are cut into words of bytes in one of the known ways."""
    if before["type"] == "ByteLevel":
        return bool(before["use_regex"] and not before["add_prefix_space"])
    kinds = before.get("pretokenizers", [])
    if [kind["type"] for kind in kinds] != ["Split", "ByteLevel"]:
        return False
    split, level = kinds
    known = split["pattern"].get("Regex") in _CUT_AT_SPACES and split["behavior"] == "Isolated" and not split["invert"]
    return known and not level["use_regex"] and not level["add_prefix_space"]


class WordCounts(dict[str, int]):
    """Tokens of each word as it stands behind a space; the first word of a text has a space before it, the last one two behind it."""

    def __init__(self, tokenizer: Tokenizer, lead: str, added: tuple[str, ...], ending: str) -> None:
        """Take `lead`: what a word is counted with; `added`: the tokens texts are cut at first; `ending`: one of them, or ""."""
        super().__init__()
        self._tokenizer, self._lead, self._added, self._ending = tokenizer, lead, added, ending
        self._going_on = (_SPACE, *added)  # what ends so may be one token with a space behind it, or be cut from it in another way
        self._starts = _Starts(tokenizer, _SPACE_BYTE if lead else _SPACE)

    def __missing__(self, _: str) -> int:
        return _MANY

    def of(self, texts: Sequence[str]) -> list[int]:
        """Count the tokens of each text, without those a tokenizer adds around it."""
        split = [*map(self._words, texts)]
        self._learn(split)
        found = [sum(map(self.__getitem__, words)) for words in split]
        left = [at for at, count in enumerate(found) if count >= _MANY]
        for at, count in zip(left, tokens_of(self._tokenizer, [texts[at] for at in left]), strict=True):
            found[at] = count
        return found

    def _words(self, text: str) -> list[str]:
        head, token, tail = text.rpartition(self._ending) if self._ending else ("", "", text)
        words = (head if token else tail).split(" ")
        words[0] = f" {words[0]}"
        words[-1] += "  "
        if token:
            words.append(f" {token}{tail}  ")
        return words

    def _learn(self, split: list[list[str]]) -> None:
        """Count the words that are not known and have tokens of their own, where that is less work than counting the texts."""
        if len(self) > _MOST:
            self.clear()
        fresh = [word for word in set[str]().union(*split) if word not in self and len(word) <= _LONGEST]
        if 3 * sum(map(len, fresh)) > 2 * sum(map(len, itertools.chain.from_iterable(split))):
            return
        alone: list[tuple[str, str]] = []
        joined: list[tuple[str, str]] = []
        for word in fresh:
            is_first, is_last = word[:1] == " " and word != "  ", word[-2:] == "  "
            bare = word[is_first : len(word) - 2 * is_last]
            own = bool(bare) and not bare.startswith(self._added)  # a space may stand before it
            free = bool(bare) and not (bare[-1].isspace() or bare.endswith(self._going_on))  # and behind it
            if own and free and not (is_first and self._lead):
                joined.append((word, bare))
            elif (own or is_first) and (free or is_last):
                alone.append((word, bare if is_first else self._lead + bare))
        self.update(zip((word for word, _ in alone), tokens_of(self._tokenizer, [text for _, text in alone]), strict=True))
        self.update(zip((word for word, _ in joined), self._tokens_joined([text for _, text in joined]), strict=True))

    def _tokens_joined(self, words: list[str]) -> list[int]:
        """Count the tokens of each word behind a space, from texts of many words: half the work. A word's first token holds that space."""
        counts: list[int] = []
        for start in range(0, len(words), _JOINED * _AT_ONCE):
            chunks = [words[at : at + _JOINED] for at in range(start, min(len(words), start + _JOINED * _AT_ONCE), _JOINED)]
            for chunk, found in zip(chunks, _encoded(self._tokenizer, [self._lead + " ".join(chunk) for chunk in chunks]), strict=True):
                ids = found.ids
                starts = [at for at, number in enumerate(ids) if self._starts[number]]
                if len(starts) == len(chunk):  # otherwise some word has a token in it that looks like its first
                    counts += map(operator.sub, [*starts[1:], len(ids)], starts)
                else:
                    counts += tokens_of(self._tokenizer, [self._lead + word for word in chunk])
        return counts


class _Starts(dict[int, bool]):
    """Of each token, by its number: whether it begins with a space. Fills itself."""

    def __init__(self, tokenizer: Tokenizer, space: str) -> None:
        super().__init__()
        self._tokenizer, self._space = tokenizer, space

    def __missing__(self, number: int) -> bool:
        token: str | None = self._tokenizer.id_to_token(number)
        self[number] = begins = token is not None and token.startswith(self._space)
        return begins


def tokens_of(tokenizer: Tokenizer, texts: list[str]) -> list[int]:
    """Count the tokens of each text."""
    counts: list[int] = []
    for start in range(0, len(texts), _AT_ONCE):
        counts += map(len, _encoded(tokenizer, texts[start : start + _AT_ONCE]))
    return counts


def _encoded(tokenizer: Tokenizer, texts: list[str]) -> list[Encoding]:
    found: list[Encoding] = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    return found
