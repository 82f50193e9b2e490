"""Counting tokens word by word gives what the tokenizer gives, for whatever text, or leaves the text to it."""

from __future__ import annotations

import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from conftest import SHARED, needs_shared
from holdfast.base_model.folder import EMBEDDED
from holdfast.data.tokens import word_counts as words
from holdfast.data.tokens.codec import load_codec
from holdfast.data.tokens.word_counts import QWEN2_WORDS, WordCounts, tokens_of, word_counts

END = "<|end|>"
CORPUS = ["the house by the river", "a house, a river and\n  the  birch", "it's 12 o'clock", "def f(x):\n    return x + 1"] * 9
WORDS = [
    "the",
    "house",
    "river,",
    "it's",
    "IT'S",
    "12",
    "",
    "\n",
    "x\n",
    "\n\n  y",
    "\t",
    "\u2581",
    "a\u2581",
    "\u2581b",
    "a\u2581b",
    f"a{END}b",
    "é",
    "e\u0301",
    "\u0301",
    "中文",
    "\u00a0",
    "z\u2003",
]
SOME_TEXT = st.lists(st.sampled_from([*WORDS, END, f"a{END}", f"{END}b", "<tool>", f"x{END}\n"]) | st.text(max_size=4), max_size=9).map(
    " ".join
)


def byte_level(split: str | None = QWEN2_WORDS) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split is None)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(split), "isolated"), level]) if split else level
    tokenizer.normalizer = normalizers.NFC() if split else None
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, special_tokens=[END]))
    tokenizer.add_tokens([AddedToken("<tool>", special=False, normalized=False)])
    return tokenizer


def of_sentencepiece() -> Tokenizer:
    """Like those of Llama 2 and Mistral: no words, every space a letter, bytes for what is not known."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    steps = [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(split=True)
    tokenizer.normalizer = None
    specials = ["<unk>", END, *(f"<0x{n:02X}>" for n in range(256))]
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=500, special_tokens=specials, show_progress=False))
    made = Tokenizer.from_str(tokenizer.to_str())
    fresh = Tokenizer(made.model)
    fresh.normalizer = normalizers.Sequence(steps)
    fresh.add_special_tokens([END])
    return fresh


TOKENIZERS = {"byte level": byte_level(), "byte level of GPT-2": byte_level(None), "SentencePiece": of_sentencepiece()}


@pytest.mark.parametrize("name", TOKENIZERS)
@given(st.lists(SOME_TEXT, max_size=6))
@example(
    [
        "the house",
        " the house",
        "the  house",
        "the house ",
        "",
        " ",
        f"the{END}",
        f"the {END}",
        f"a {END} b{END}\n",
        "x\n y",
        "x \n y",
        "a\u2581 b",
    ]
)
@settings(max_examples=300, deadline=None)
def test_texts_have_the_tokens_the_tokenizer_gives_them(name: str, texts: list[str]) -> None:
    tokenizer = TOKENIZERS[name]
    counts = word_counts(tokenizer, END)
    assert counts is not None
    expected = tokens_of(tokenizer, texts)
    assert counts.of(texts * 20) == expected * 20, "words that come so often are counted"
    assert counts.of(texts) == expected, "and are known now"


def test_words_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = word_counts(TOKENIZERS["byte level"], END)
    assert counts is not None
    rng = random.Random(0)
    texts = [" ".join(rng.choices(["the", "house", "river"], k=8)) + END for _ in range(50)]
    counts.of(texts)
    monkeypatch.setattr(words, "tokens_of", lambda _, texts: pytest.fail(f"{texts} are counted again") if texts else [])
    assert counts.of(texts[::-1]) == tokens_of(TOKENIZERS["byte level"], texts[::-1])


def test_only_so_many_words_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "_MOST", 30)
    counts = word_counts(TOKENIZERS["byte level"], END)
    assert counts is not None
    for start in range(0, 300, 10):
        texts = [f"the {number} house {number}" for number in range(start, start + 10)] * 4
        assert counts.of(texts) == tokens_of(TOKENIZERS["byte level"], texts)
        assert len(counts) <= 30 + 14
    long = "x" * 200
    counts.of([long] * 9)
    assert not any(long in word for word in counts)


def changed(name: str) -> Tokenizer:
    tokenizer = byte_level() if name != "a space inside a token" else of_sentencepiece()
    if name == "other words":
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(r".{1,5}"), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
    elif name == "whole texts":
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    elif name == "a token that takes the space behind it":
        tokenizer.add_special_tokens([AddedToken("<|tool|>", rstrip=True)])
    elif name == "a token with a space":
        tokenizer.add_tokens([AddedToken("the house", normalized=False)])
    elif name == "chance":
        tokenizer.model.dropout = 0.1
    elif name == "another normal form":
        tokenizer.normalizer = normalizers.NFKC()
    elif name == "a space inside a token":
        tokenizer.model = models.BPE({"<unk>": 0, "\u2581": 1, "a": 2, "a\u2581": 3}, [("a", "\u2581")], unk_token="<unk>")
    return tokenizer


@pytest.mark.parametrize(
    "name",
    (
        "other words",
        "whole texts",
        "a token that takes the space behind it",
        "a token with a space",
        "chance",
        "another normal form",
        "a space inside a token",
    ),
)
def test_what_may_have_tokens_across_words_is_left_alone(name: str) -> None:
    assert word_counts(changed(name), END) is None


def test_another_token_that_holds_the_ending_is_seen() -> None:
    tokenizer = byte_level()
    tokenizer.add_special_tokens([f"<|begin{END}", f"{END}|>"])
    counts, texts = word_counts(tokenizer, END), [f"the house{END}", f"the <|begin{END}", f"the house{END}|>"] * 5
    assert isinstance(counts, WordCounts)
    assert counts.of(texts) == tokens_of(tokenizer, texts)


def test_the_embedded_tokenizer_is_counted_by_words() -> None:
    codec = load_codec(EMBEDDED["tiny"])
    assert word_counts(codec.tokenizer, codec.template.eos) is not None


@needs_shared
@pytest.mark.matrix
@pytest.mark.parametrize("name", ["mistral", "qwen2.5", "gpt2"])
def test_real_tokenizers_are_counted_by_words(name: str) -> None:
    codec = load_codec(SHARED / "data" / "tokenizers" / name)
    counts = word_counts(codec.tokenizer, codec.template.eos)
    assert counts is not None
    for file in (
        "rows/alpaca_en_demo.json",
        "rows/alpaca_zh_demo.json",
        "broken/blns/blns.json",
        "chat/wiki_demo.txt",
        "chat/c4_demo.jsonl",
    ):
        path = SHARED / "data" / file
        texts = path.read_text().splitlines() * 3
        assert counts.of(texts) == tokens_of(codec.tokenizer, texts), file
    ambiguous = ["the house\u2581 by the river"] * 9
    assert counts.of(ambiguous) == tokens_of(codec.tokenizer, ambiguous), "a letter that is written like a space, and a space"
