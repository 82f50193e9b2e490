"""Whether a tokenizer.json can be worked with in bounded memory, and what its library says where it fails, as a sentence."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from holdfast.base.errors import BLOCKED, Stop
from holdfast.base.files import Json
from holdfast.data.tokens.whole import state_of

_MOST_GROWN = 256  # times that a normalizer may lengthen a text; those of models do it three times
_LONGEST_ADDED = 64  # characters put before each text
_MOST_AROUND = 1000  # special tokens that are put around each text
_SLOW = ("*.model", "*.tiktoken", "vocab.json", "vocab.txt", "merges.txt")  # what tokenizers are kept in besides
_TIKTOKEN = re.compile(rb"[A-Za-z0-9+/]+={0,2} \d+\r?\n")  # a line of a file of ranks
_HINT = "fetch the model's tokenizer again"
_WORDS = "The quick brown fox, 1 2 3."


def refuse_growing(file: Path, tokenizer: Tokenizer) -> None:
    """Raise Stop(1) for a tokenizer that makes much of little: a normalizer that multiplies a text, tokens around it.

    Added tokens without a text are none to its library.
    """
    grown = _growth(state_of(tokenizer.normalizer))
    if grown > _MOST_GROWN:
        raise Stop(BLOCKED, f"{file}: its normalizer may make a text {grown:.3g} times as long, more than {_MOST_GROWN} times", _HINT)
    around = _count_around(state_of(tokenizer.post_processor))
    if around > _MOST_AROUND:
        raise Stop(BLOCKED, f"{file} puts {around:,} tokens around each text, more than {_MOST_AROUND:,}", _HINT)


def _growth(part: Any) -> float:
    """Return by which factor a normalizer lengthens a text, at most; of a pattern, as if it stood for one character."""
    if not isinstance(part, dict):
        return 1.0
    if isinstance(inner := part.get("normalizers"), list):
        product = 1.0
        for one in inner:
            product = min(product * _growth(one), 1e300)
        return product
    if isinstance(before := part.get("prepend"), str):
        return 1.0 if len(before) <= _LONGEST_ADDED else float(len(before))
    content, pattern = part.get("content"), part.get("pattern")
    if not isinstance(content, str) or not isinstance(pattern, dict):
        return 1.0
    literal = pattern.get("String")
    if literal == "":
        return 1.0 + len(content)
    return max(1.0, len(content) / (len(literal) if isinstance(literal, str) else 1))


def _count_around(part: Any) -> int:
    if not isinstance(part, dict):
        return 0
    if isinstance(inner := part.get("processors"), list):
        return sum(map(_count_around, inner))
    lists = [part[name] for name in ("single", "pair") if isinstance(part.get(name), list)]
    named = part.get("special_tokens")
    ids = (
        [one["ids"] for one in named.values() if isinstance(one, dict) and isinstance(one.get("ids"), list)]
        if isinstance(named, dict)
        else []
    )
    return sum(map(len, lists)) * max(1, max(map(len, ids), default=1))


def refuse_swallowing(folder: Path, tokenizer: Tokenizer) -> None:
    """Raise Stop(1) where a plain sentence has no token: rows would be made of special tokens alone."""
    with in_words(folder):
        if not tokenizer.encode(_WORDS, add_special_tokens=False).ids:
            raise Stop(BLOCKED, f"the tokenizer in {folder} makes no token of {_WORDS!r}", _HINT)


def tokenizer_code(settings: Json) -> str | None:
    """Return the class in the model's folder that a tokenizer_config.json names as its tokenizer; None where it names none."""
    named = settings.get("auto_map")
    own = named.get("AutoTokenizer") if isinstance(named, dict) else named
    classes = [one for one in (own if isinstance(own, list) else [own]) if isinstance(one, str)]
    return classes[-1] if classes else None


def without_file(folder: Path, settings: Json) -> Stop:
    """Build the refusal of a folder without a tokenizer.json."""
    if own := tokenizer_code(settings):
        text = f"{folder} has no tokenizer.json: its tokenizer is code of its own ({own}), which holdfast does not run"
        return Stop(BLOCKED, text, "save a fast tokenizer with the same ids into it as tokenizer.json, or give another model")
    found = sorted(file.name for pattern in _SLOW for file in folder.glob(pattern))
    if not found:
        return Stop(BLOCKED, f"{folder} has no tokenizer.json", _HINT)
    needs = sorted({package for name in found if (package := _package_of(folder / name))})
    hint = save_fast(folder)
    text = f"{folder} has no tokenizer.json, but {', '.join(found)}"
    return Stop(BLOCKED, text, f"pip install {' '.join(needs)}, then {hint}" if needs else hint)


def save_fast(folder: Path) -> str:
    """Return the command by which transformers writes a tokenizer.json into a model's folder."""
    return f"python -c \"from transformers import AutoTokenizer as A; A.from_pretrained('{folder}').save_pretrained('{folder}')\" writes it"


def _package_of(file: Path) -> str | None:
    """Return the package by which transformers reads a file of a tokenizer; None where it needs none."""
    if file.suffix not in (".model", ".tiktoken"):
        return None
    with file.open("rb") as text:
        first = text.readline(256)
    return "tiktoken" if _TIKTOKEN.fullmatch(first) else "sentencepiece"


@contextlib.contextmanager
def in_words(folder: Path) -> Iterator[None]:
    """Raise Stop(1) for what the tokenizer's library panics at, an expression that backtracks for ever say: a BaseException of its own."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        text = f"the tokenizer in {folder} fails on these rows: {str(error)[:200]}"
        raise Stop(BLOCKED, text, f"its tokenizer.json holds what its own library cannot work with: {_HINT}") from None
