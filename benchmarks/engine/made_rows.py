"""Row files of rows with given lengths in tokens, for a given tokenizer. Made of words the tokenizer knows as one token each."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer

ANSWER_SHARE = 0.4


class Writer:
    """Knows the words and what the chat template costs. Lengths are exact; the shortest row is `shortest` tokens."""

    def __init__(self, model: Path, seed: int = 0) -> None:
        self.tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        candidates = [
            token[1:] for token in self.tokenizer.get_vocab() if token.startswith("\u0120") and token[1:].isascii() and token[1:].isalpha()
        ]
        encoded = self.tokenizer.encode_batch_fast([f" {word}" for word in sorted(candidates)], add_special_tokens=False)
        self.words = [f" {word}" for word, one in zip(sorted(candidates), encoded, strict=True) if len(one.ids) == 1][:2000]
        self.random = random.Random(seed)
        self.given, self.learned = (self._count(text) for text in ("<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n", "<|im_end|>\n"))
        self.shortest = self.given + self.learned + 2

    def row(self, tokens: int) -> dict[str, str]:
        inner = max(2, tokens - self.given - self.learned)
        answer = max(1, round(inner * ANSWER_SHARE))
        question, reply = ("".join(self.random.choices(self.words, k=count)) for count in (inner - answer, answer))
        return {"instruction": question, "input": "", "output": reply}

    def write(self, file: Path, lengths: Iterable[int]) -> Path:
        with file.open("w") as handle:
            for tokens in lengths:
                handle.write(json.dumps(self.row(tokens)) + "\n")
        return file

    def write_many(self, file: Path, rows: int, tokens: int) -> Path:
        """Millions of different short rows: a few thousand bodies, each row with its number in front."""
        bodies = [self.row(tokens) for _ in range(5000)]
        cut = [json.dumps(body)[len('{"instruction": "') :] for body in bodies]
        with file.open("w", buffering=1 << 20) as handle:
            for number in range(rows):
                handle.write(f'{{"instruction": "{number}{cut[number % len(cut)]}\n')
        return file

    def _count(self, text: str) -> int:
        return len(self.tokenizer.encode(text, add_special_tokens=False).ids)
