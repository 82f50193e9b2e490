"""Comparisons by eye: what is kept of one, and what all of them say."""

from __future__ import annotations

import time
from pathlib import Path

from holdfast.core.files import Json, read_lines
from holdfast.ship.serve.engines import MODELS
from holdfast.ship.verify.stats import share_interval, sign_test


def tally(file: Path) -> Json:
    """How often each was preferred, and the sign test of it."""
    counts = {"tuned": 0, "base": 0, "same": 0}
    for row in read_lines(file):
        if row.get("voted") in counts:
            counts[row["voted"]] += 1
    interval = share_interval(counts["tuned"], counts["base"])
    return counts | {"p_value": sign_test(counts["tuned"], counts["base"]), "interval": interval}


def preference_row(shown: Json, choice: str, name: str) -> Json:
    """A row of the file of preferences: where one was preferred, `chosen` and `rejected` are for preference training, and `response`
    is what `data collect` takes for the answer."""
    row: Json = {"prompt": shown["prompt"], "run": name, "time": round(time.time(), 3)}
    if choice == "same":
        return row | {"voted": "same", "answers": shown["answers"]}
    preferred = shown["order"][choice == "right"]
    rejected = next(model for model in MODELS if model != preferred)
    chosen = shown["answers"][preferred]
    return row | {"chosen": chosen, "rejected": shown["answers"][rejected], "response": chosen, "voted": preferred}
