"""Rows that a language model writes from a recipe: asked for, checked, kept one answer at a time in a journal. Sends nothing itself.

The journal makes it resumable: every answer is one line, on disk before the next is waited for; a kill costs the answers under way.
"""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import orjson

from holdfast.base.errors import GAVE_UP, USAGE, Stop
from holdfast.base.file_errors import at_place
from holdfast.base.files import Json, append_line, cut_torn_line, read_lines
from holdfast.data.duplicates.similar import Near, key_of, normal, signatures
from holdfast.data.files.raw_row import UnparsedRow
from holdfast.data.judge.judge import judge
from holdfast.data.judge.rules import NO_LIMIT, Rules
from holdfast.data.recipe.ask import Answer, Asker
from holdfast.data.recipe.generate import Row, category_quotas, parts_of
from holdfast.data.recipe.prompt import FIELDS, SCHEMA, messages, rows_in
from holdfast.data.recipe.recipe import Category, Recipe
from holdfast.data.recipe.templates import DIFFICULTIES

_ROW_TOKENS = 400  # that an answer may take a row
_TOLD = 12  # newest questions that are not to be asked again
_BARREN = 8  # answers in a row without a new row, after which a category is given up
_RULES = Rules("alpaca", NO_LIMIT, (), "cut")


@dataclass(frozen=True)
class Order:
    """What is wanted: rows by the recipe, so many a request and so many requests at once, for at most `most_cost`.

    Prices are per million tokens.
    """

    recipe: Recipe
    model: str
    per_request: int = 10
    parallel: int = 4
    price_in: float | None = None
    price_out: float | None = None
    most_cost: float | None = None

    @property
    def key(self) -> str:
        """What an unfinished journal must have been begun with."""
        named = [[each.name, [[one.id, one.wishes, one.answer] for one in each.templates]] for each in self.recipe.categories]
        wanted = [self.recipe.name, named, dict(self.recipe.shares), self.recipe.rows, self.recipe.seed, self.model]
        return hashlib.sha256(orjson.dumps(wanted)).hexdigest()[:16]

    def cost(self, tokens_in: int, tokens_out: int) -> float | None:
        if self.price_in is None or self.price_out is None:
            return None
        return (tokens_in * self.price_in + tokens_out * self.price_out) / 1e6


@dataclass
class GenerationTotals:
    """What came of it so far. `uncounted`: answers whose tokens the endpoint did not say; `refused`: rows by the reason."""

    rows: list[Row] = field(default_factory=list)
    requests: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    uncounted: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    resumed: int = 0

    def take(self, entry: Json) -> None:
        self.requests += 1
        self.rows += entry["rows"]
        self.refused.update(entry["refused"])
        if entry["tokens"] is None:
            self.uncounted += 1
        else:
            self.tokens_in += entry["tokens"][0]
            self.tokens_out += entry["tokens"][1]


Progress = Callable[[int, GenerationTotals], None]


@dataclass(frozen=True)
class _Request:
    category: Category
    difficulty: str
    wanted: int
    messages: list[Json]


def write_rows(order: Order, asker: Asker, journal: Path, progress: Progress = lambda _, __: None) -> GenerationTotals:
    """Have the rows written that the journal lacks. Raises Stop(3) when no more come, with what there is kept in the journal."""
    writer = _Writer(order, journal)
    progress(0, writer.found)
    pool = ThreadPoolExecutor(order.parallel, "ask")
    asked: dict[Future[Answer], _Request] = {}
    try:
        while True:
            while len(asked) < order.parallel and (request := writer.next_request(asked.values())):
                asked[pool.submit(asker.ask, request.messages, SCHEMA, _ROW_TOKENS * request.wanted)] = request
            if not asked:
                return writer.found
            done, _ = wait(asked, return_when=FIRST_COMPLETED)
            for future in sorted(done, key=lambda one: one.exception() is not None):  # an answer that is there is kept in any case
                progress(writer.keep(asked.pop(future), future.result()), writer.found)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


class _Writer:
    """What is wanted still, and what was had. Only one thread calls it."""

    def __init__(self, order: Order, journal: Path) -> None:
        self._order, self._journal = order, journal
        self.found = GenerationTotals()
        self._questions: set[int] = set()
        self._near = Near()
        self._newest: dict[str, deque[str]] = {each.name: deque(maxlen=_TOLD) for each in order.recipe.categories}
        self._barren: Counter[str] = Counter()
        self._missing: dict[tuple[str, str], int] = {}
        shares = order.recipe.shares or {DIFFICULTIES[0]: 1.0}
        self._categories = {each.name: each for each in order.recipe.categories}
        for category, quota in zip(order.recipe.categories, category_quotas(order.recipe, order.recipe.rows), strict=True):
            for difficulty, part in zip(shares, parts_of(quota, list(shares.values())), strict=True):
                self._missing[category.name, difficulty] = part
        self._several = len(shares) > 1
        self._resume()

    def _resume(self) -> None:
        cut_torn_line(self._journal)
        entries = read_lines(self._journal)
        begun = next(entries, None)
        if begun is None:
            append_line(self._journal, {"key": self._order.key, "model": self._order.model}, durable=True)
            return
        if begun.get("key") != self._order.key:
            raise Stop(
                USAGE,
                f"{self._journal} is of an unfinished command with another recipe, seed, number of rows or model ({begun.get('model')})",
                f"finish that one, or start anew: rm {self._journal}",
            )
        for entry in entries:
            self.found.take(entry)
            for row in entry["rows"]:
                self._is_new(row)
                self._count(row)
        self.found.resumed = len(self.found.rows)

    def next_request(self, asked: Iterable[_Request]) -> _Request | None:
        """Return the next request, beside those already asked: the part of which most is missing. None when nothing is."""
        under_way = list(asked)
        cost, most_cost = self._order.cost(self.found.tokens_in, self.found.tokens_out), self._order.most_cost
        if cost is not None and most_cost is not None and cost >= most_cost and any(self._missing.values()):
            if under_way:
                return None
            raise Stop(GAVE_UP, f"{len(self.found.rows):,} rows cost {cost:g}, --max-cost is {most_cost:g}", "a higher one goes on")
        missing = Counter(self._missing)
        for request in under_way:
            missing[request.category.name, request.difficulty] -= request.wanted
        (name, difficulty), most = max(missing.items(), key=lambda part: part[1])
        if most < 1:
            return None
        wanted = min(most, self._order.per_request)
        category = self._categories[name]
        number = self.found.requests + len(under_way)
        rng = Random(f"{self._order.recipe.seed} {name} {number}")
        return _Request(category, difficulty, wanted, messages(self._order.recipe, category, difficulty, wanted, self._newest[name], rng))

    def keep(self, request: _Request, answer: Answer) -> int:
        """Check an answer and write down what is good of it; return how many new rows."""
        name = request.category.name
        values, broken = rows_in(answer.text)
        refused = Counter({"cut_off" if answer.cut or broken == "cut_off" else broken: 1} if broken else {})
        rows: list[Row] = []
        for value in values:
            row, reason = self._checked(value, request)
            if row is None:
                refused[reason] += 1
            elif self._missing[name, request.difficulty] == 0:
                refused["more_than_asked"] += 1
            elif not self._is_new(row):
                refused["duplicate"] += 1
            else:
                self._count(row)
                rows.append(row)
        tokens = None if answer.tokens_in is None or answer.tokens_out is None else [answer.tokens_in, answer.tokens_out]
        entry: Json = {"category": name, "rows": rows, "refused": dict(refused), "tokens": tokens}
        try:
            append_line(self._journal, entry, durable=True)
        except OSError as error:
            raise at_place(error, self._journal, "cannot be written", "choose another --out; rerun the same command to resume") from None
        self.found.take(entry)
        self._barren[name] = 0 if rows else self._barren[name] + 1
        if self._barren[name] >= _BARREN:
            raise Stop(
                GAVE_UP,
                f"category {name}: {_BARREN} answers in a row gave no new row ({', '.join(refused) or 'no rows in them'})",
                "try another model, or ask for fewer rows; what was written is kept, rerun the same command to resume",
            )
        return len(rows)

    def _checked(self, value: Any, request: _Request) -> tuple[Row | None, str]:
        """Return the row, or why it is none: it has the three texts, and `data check` would keep it."""
        if not isinstance(value, dict) or not all(isinstance(value.get(name, ""), str) for name in FIELDS):
            return None, "wrong_form"
        if not {"instruction", "output"} <= set(value):
            return None, "missing_field"
        try:
            good, rejects = judge([UnparsedRow(1, orjson.dumps(value))], 1, _RULES, ())
        except orjson.JSONEncodeError:  # half of a surrogate pair
            return None, "bad_encoding"
        if not good:
            return None, rejects[0].reason
        value = good[0].value
        row = Row(
            category=request.category.name,
            template="model",
            instruction=value["instruction"].strip(),
            input=value.get("input", "").strip(),
            output=value["output"].strip(),
            split="train",
        )
        if self._several:
            row["difficulty"] = request.difficulty
        return row, ""

    def _is_new(self, row: Row) -> bool:
        """Remember the row; False when its question, or something nearly like the whole, was there before."""
        question = normal(f"{row['instruction']}\n{row['input']}")
        compared, comparable = signatures([f"{question}\n{normal(row['output'])}"])
        again = key_of(question) in self._questions or bool(comparable[0] and self._near.add(compared)[0])
        self._questions.add(key_of(question))
        return not again

    def _count(self, row: Row) -> None:
        self._newest[row["category"]].append(row["instruction"][:120])
        difficulty = row.get("difficulty", next(iter(self._order.recipe.shares), DIFFICULTIES[0]))
        self._missing[row["category"], difficulty] -= 1
