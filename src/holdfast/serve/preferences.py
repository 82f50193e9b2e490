"""Comparisons by eye: what is kept of one, and what all of them say."""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path

from holdfast.base.files import Json, append_line, read_lines, read_sound_lines
from holdfast.serve.engines import MODELS
from holdfast.verify.stats import share_interval, sign_test

CHOICES = ("left", "right", "same")


class Blind:
    """Pairs that were shown and not judged yet, and the file of those that were. models: the two that answer."""

    def __init__(self, file: Path, models: tuple[str, str] = MODELS) -> None:
        self.file, self.models = file, models
        self._waiting: dict[str, Json] = {}
        self._lock = threading.Lock()

    def draw(self) -> list[str]:
        """Return the models in the order of their sides, left and right."""
        return random.SystemRandom().sample(self.models, 2)

    def show(self, prompt: str, answers: dict[str, str], order: list[str], name: str) -> Json:
        """Return what the page is told of a pair: which is which stays here. name: whose answer the tuned one is."""
        number = uuid.uuid4().hex
        with self._lock:
            self._waiting[number] = {"prompt": prompt, "answers": answers, "order": order, "name": name}
        return {"id": number, "left": answers[order[0]], "right": answers[order[1]]}

    def vote(self, number: str, choice: str) -> Json | None:
        """Keep one of CHOICES, durably; {"kept": how many pairs the file has}. None for a pair that is not there, or was judged already.

        No count by model: the side that a vote raises it for would be known from then on, and the next vote would not be blind.
        """
        with self._lock:
            shown = self._waiting.get(number)
            if shown is None:
                return None
            append_line(
                self.file, preference_row(shown, choice, shown["name"]), durable=True
            )  # where it fails, the pair can be judged again
            del self._waiting[number]
            return {"kept": kept(tally(self.file, self.models, read_sound_lines))}  # it is kept, whatever else stands there

    def tally(self) -> Json:
        """Count how often each model of the pair was preferred, and do the sign test of it."""
        return tally(self.file, self.models)

    def by_version(self) -> dict[str, Json]:
        """Return the same of each version by its name: a vote on one says nothing about the next."""
        names = dict.fromkeys(str(row.get("run")) for row in read_lines(self.file))
        found = {name: tally(self.file, self.models, of=name) for name in names}
        return {name: counts for name, counts in found.items() if kept(counts)}


def tally(file: Path, models: tuple[str, str] = MODELS, read: Callable[[Path], Iterable[Json]] = read_lines, of: str | None = None) -> Json:
    """Count how often each of two models was preferred to the other, and do the sign test of it. Raises as `read` does.

    of: the name of the run or version whose votes are counted; None for all.
    """
    counts = dict.fromkeys((*models, "same"), 0)
    for row in read(file):
        if of is not None and str(row.get("run")) != of:
            continue
        between, voted = row.get("between", MODELS), row.get("voted")
        if between in (list(models), list(reversed(models)), models) and isinstance(voted, str) and voted in counts:
            counts[voted] += 1
    first, second = (counts[model] for model in models)
    return counts | {"p_value": sign_test(second, first), "interval": share_interval(second, first)}


def kept(counts: Json) -> int:
    """Count the pairs that were judged."""
    return sum(count for name, count in counts.items() if name not in ("p_value", "interval"))


def preference_row(shown: Json, choice: str, name: str) -> Json:
    """Make a row of the file of preferences: where one was preferred, `chosen` and `rejected` are for preference training, and `response`
    is what `data collect` takes for the answer."""
    row: Json = {"prompt": shown["prompt"], "run": name, "time": round(time.time(), 3), "between": sorted(shown["order"])}
    if choice == "same":
        return row | {"voted": "same", "answers": shown["answers"]}
    preferred = shown["order"][choice == "right"]
    rejected = shown["order"][choice == "left"]
    chosen = shown["answers"][preferred]
    return row | {"chosen": chosen, "rejected": shown["answers"][rejected], "response": chosen, "voted": preferred}
