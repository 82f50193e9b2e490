"""Rows with a better and a worse answer, of random tokens."""

from __future__ import annotations

import numpy as np

from holdfast.data.token_set.token_set import TokenSet


def pairs_of(count: int = 5, marked: bool = False) -> TokenSet:
    """Rows of a prompt and two answers of random tokens, or of one that is marked good or bad."""
    rng = np.random.default_rng(7)
    rows, flags = [], []
    for at in range(count):
        prompt = rng.integers(3, 211, int(rng.integers(3, 9)))
        answers = [rng.integers(3, 211, int(rng.integers(2, 12))) for _ in range(1 if marked else 2)]
        bad = [marked and at % 2 == 1] if marked else [False, True]
        for answer, worse in zip(answers, bad, strict=True):
            rows.append(np.concatenate([prompt, answer]))
            flags.append(np.concatenate([np.zeros(len(prompt)), np.ones(len(answer))]) + 2 * worse)
    each = 1 if marked else 2
    lengths = [sum(len(row) for row in rows[at * each : at * each + each]) for at in range(count)]
    ids, learned = np.concatenate(rows).astype(np.int32), np.concatenate(flags).astype(np.uint8)
    starts = np.cumsum([0, *lengths])
    return TokenSet(ids, learned, starts, np.zeros(count, np.int32), np.arange(1, count + 1), ("rows.jsonl",), 0, 0)
