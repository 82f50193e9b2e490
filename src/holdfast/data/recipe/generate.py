"""Compose instruction rows from a recipe's slots. Pure: it reads no file (that is recipe.py) and writes none (that is the verb's job)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypedDict

import numpy as np

from holdfast.data.duplicates.seen import SeenKeys
from holdfast.data.duplicates.similar import Near, key_of, normal, signatures
from holdfast.data.recipe.pools import draw_slots
from holdfast.data.recipe.recipe import Category, Recipe, load_recipe
from holdfast.data.recipe.templates import DIFFICULTIES, RecipeTemplate

__all__ = ["GeneratedRows", "Row", "load_recipe", "make_set"]

HELD_OUT_SHARE = 0.1
SHINGLE, TOO_ALIKE = 5, 0.8  # characters; Jaccard similarity from which two rows count as near-duplicates
TRIES = 60  # draws for one row before its template counts as used up


class _Row(TypedDict):
    category: str
    template: str
    instruction: str
    input: str
    output: str
    split: str  # "train" or "held_out"


class Row(_Row, total=False):
    difficulty: str  # where rows of several were asked for


@dataclass(frozen=True)
class GeneratedRows:
    """Rows, and what was checked of them: facts that stand in a row, of those there are; rows nearly like an earlier one."""

    rows: list[Row]
    facts_used: int
    facts_known: int
    near_duplicates: int


Progress = Callable[[int], None]


def make_set(recipe: Recipe, rows: int, seed: int, progress: Progress = lambda _: None) -> GeneratedRows:
    """Draw `rows` different rows, spread over the categories by quota, a tenth of them held out. Same recipe, rows and seed: same list.

    No two rows of a template are near-duplicates. No held-out answer stands in a training row, hence no slot combination is in both splits.
    `progress` is told the number of new rows now and then. Raises ValueError where the recipe cannot yield that many.
    """
    if rows < 1:
        raise ValueError(f"rows must be at least 1, not {rows}")
    drawn: list[tuple[Row, RecipeTemplate]] = []
    for category, quota in zip(recipe.categories, category_quotas(recipe, rows), strict=True):
        drawn += _fill_all(recipe, category, quota, seed, progress)
    rng = Random(f"{seed} split")
    rng.shuffle(drawn)
    made = [row for row, _ in drawn]
    alike = near_duplicates(made)
    if alike > recipe.near_duplicates * rows:
        raise ValueError(
            f"{recipe.name}: {alike:,} of {rows:,} rows are nearly like an earlier one, at most {recipe.near_duplicates:.1%} may be; "
            "ask for fewer, enlarge its pools, or raise near_duplicates"
        )
    held_out = choose_held_out(made, round(rows * HELD_OUT_SHARE), rng)
    made = [{**row, "split": "held_out" if place in held_out else "train"} for place, row in enumerate(made)]
    used = {(row["category"], template.id, fact) for row, template in drawn for fact in template.facts}
    return GeneratedRows(made, len(used), _facts_of(recipe), alike)


def _facts_of(recipe: Recipe) -> int:
    """Count the facts of the templates that rows are drawn from."""
    asked = set(recipe.shares) or set(DIFFICULTIES)
    return sum(len(each.facts) for category in recipe.categories for each in category.templates if each.difficulty in asked)


def category_quotas(recipe: Recipe, rows: int) -> list[int]:
    """Return the number of rows of each category: its quota, or an even part of the rest. Raises ValueError where that does not add up."""
    asked = [round(rows * each.quota) if isinstance(each.quota, float) else each.quota for each in recipe.categories]
    rest = rows - sum(quota or 0 for quota in asked)
    open_ones = asked.count(None)
    if rest < 0 or (rest and not open_ones):
        raise ValueError(f"{recipe.name}: the quotas of its categories add up to {rows - rest} rows, {rows} are wanted")
    even = iter(parts_of(rest, [1.0] * open_ones))
    return [next(even) if quota is None else quota for quota in asked]


def parts_of(whole: int, shares: Sequence[float]) -> list[int]:
    """Divide a whole number by shares: each part rounded down, the largest remainders one more, the first of equal ones first."""
    exact = [whole * share / sum(shares) for share in shares]
    parts = [int(part) for part in exact]
    for place in sorted(range(len(parts)), key=lambda at: (round(parts[at] - exact[at], 9), at))[: whole - sum(parts)]:
        parts[place] += 1
    return parts


def _fill_all(recipe: Recipe, category: Category, quota: int, seed: int, progress: Progress) -> list[tuple[Row, RecipeTemplate]]:
    """Generate the rows of a category, of each difficulty its part."""
    if not recipe.shares:
        return fill_category(recipe, category, category.templates, quota, Random(f"{seed} {category.name}"), progress)
    made: list[tuple[Row, RecipeTemplate]] = []
    for difficulty, part in zip(recipe.shares, parts_of(quota, list(recipe.shares.values())), strict=True):
        templates = [template for template in category.templates if template.difficulty == difficulty]
        if part and not templates:
            raise ValueError(f"{recipe.name}: category {category.name} has no {difficulty} template, and {part} such rows are wanted")
        name = f"{seed} {category.name}" if difficulty == DIFFICULTIES[0] else f"{seed} {category.name} {difficulty}"
        found = fill_category(recipe, category, templates, part, Random(name), progress)
        made += [({**row, "difficulty": difficulty}, template) for row, template in found] if len(recipe.shares) > 1 else found
    return made


def fill_category(
    recipe: Recipe, category: Category, templates: Sequence[RecipeTemplate], quota: int, rng: Random, progress: Progress
) -> list[tuple[Row, RecipeTemplate]]:
    """Draw from the templates in turn, leaving out those that have nothing new to give."""
    made: list[tuple[Row, RecipeTemplate]] = []
    open_templates = list(templates)
    rng.shuffle(open_templates)
    seen: dict[str, Alike] = defaultdict(Alike)
    while len(made) < quota:
        if not open_templates:
            raise ValueError(
                f"{recipe.name}: category {category.name}: gives {len(made)} different rows, {quota} are wanted; "
                "ask for fewer or enlarge its pools"
            )
        before = len(made)
        for template in list(open_templates)[: quota - len(made)]:
            row = draw_fresh(recipe.frames, category, template, seen[template.id], rng)
            if row is None:
                open_templates.remove(template)
            else:
                made.append((row, template))
        progress(len(made) - before)
    return made


def near_duplicates(rows: Sequence[Row]) -> int:
    """Count the rows that are the same as or nearly like an earlier one, as `data check` does."""
    texts = [f"{normal(row['instruction'])}\n{normal(row['output'])}" for row in rows]
    compared, comparable = signatures(texts)
    alike = SeenKeys().add(np.array([key_of(text) for text in texts], np.int64))
    alike[comparable] |= Near().add(compared[comparable])
    return int(alike.sum())


def draw_fresh(frames: tuple[str, ...], category: Category, template: RecipeTemplate, seen: Alike, rng: Random) -> Row | None:
    for _ in range(TRIES):
        values = draw_slots(template.slots, category.pools, rng)
        wish = rng.choice(template.wishes).format(**values)
        instruction = rng.choice(frames).format(wish=wish, Wish=wish[0].upper() + wish[1:], tool=template.tool)
        output = template.answer.format(**values)
        if seen.is_new(f"{instruction}\n{output}"):
            return {
                "category": category.name,
                "template": template.id,
                "instruction": instruction,
                "input": "",
                "output": output,
                "split": "train",
            }
    return None


class Alike:
    """Texts of which no two are near-duplicates, each kept as the bits of its shingles: comparing two is one `and`."""

    def __init__(self) -> None:
        self._bits: dict[str, int] = {}
        self._kept: list[tuple[int, int]] = []

    def is_new(self, text: str) -> bool:
        """Keep `text`, unless it is too like one that is kept."""
        found = shingles(text)
        mask = 0
        for shingle in found:
            mask |= 1 << self._bits.setdefault(shingle, len(self._bits))
        for size, other in self._kept:
            both = (mask & other).bit_count()
            if both / (len(found) + size - both) >= TOO_ALIKE:
                return False
        self._kept.append((len(found), mask))
        return True


def shingles(text: str) -> frozenset[str]:
    return frozenset(text[at : at + SHINGLE] for at in range(max(1, len(text) - SHINGLE + 1)))


def choose_held_out(rows: list[Row], wanted: int, rng: Random) -> set[int]:
    """Choose places whose answers stand in no other row, template by template in turn; each keeps two rows to learn from if it can."""
    everything = "\n".join(f"{row['instruction']}\n{row['input']}\n{row['output']}" for row in rows)
    queues = _answers(rows)
    left = Counter((row["category"], row["template"]) for row in rows)
    order = list(queues)
    rng.shuffle(order)
    chosen: set[int] = set()
    for keep in (2, 1, 0):
        progress = True
        while progress and len(chosen) < wanted:
            progress = False
            for key in order:
                queue = queues[key]
                while queue and everything.count(queue[-1][0]) != len(queue[-1][1]):  # it stands in other rows, too
                    queue.pop()
                if queue and left[key] - len(queue[-1][1]) >= keep and len(chosen) + len(queue[-1][1]) <= wanted:
                    _, places = queue.pop()
                    left[key] -= len(places)
                    chosen.update(places)
                    progress = True
                if len(chosen) == wanted:
                    return chosen
    if len(chosen) < wanted:
        raise ValueError(
            f"only {len(chosen)} of {wanted} rows can be held out: other answers stand in several rows; "
            "ask for more rows or enlarge the pools"
        )
    return chosen


def _answers(rows: list[Row]) -> dict[tuple[str, str], list[tuple[str, list[int]]]]:
    """Group rows: for each category and template, every answer with the places of its rows."""
    by_answer: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for place, row in enumerate(rows):
        by_answer[row["category"], row["template"], row["output"]].append(place)
    found: dict[tuple[str, str], list[tuple[str, list[int]]]] = defaultdict(list)
    for (category, template, output), places in by_answer.items():
        found[category, template].append((output, places))
    return found
