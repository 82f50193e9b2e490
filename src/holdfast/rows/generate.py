"""Compose instruction rows from a recipe's slots. Pure: it reads no file (that is recipe.py) and writes none (that is the verb's job)."""

from __future__ import annotations

from collections import Counter, defaultdict
from random import Random
from typing import TypedDict

from holdfast.rows.recipe import Category, Recipe, Template, draw_slots, load_recipe

__all__ = ["Row", "load_recipe", "make_rows"]

HELD_OUT_SHARE = 0.1
SHINGLE, TOO_ALIKE = 5, 0.8  # characters; Jaccard similarity from which two rows count as near-duplicates
TRIES = 60  # draws for one row before its template counts as used up


class Row(TypedDict):
    category: str
    template: str
    instruction: str
    input: str
    output: str
    split: str  # "train" or "held_out"


def make_rows(recipe: Recipe, rows: int, seed: int) -> list[Row]:
    """Draw `rows` different rows, spread evenly over the categories, a tenth of them held out. Same recipe, rows and seed: same list.

    No two rows of a template are near-duplicates. No held-out answer stands in a training row, hence no slot combination is in both splits.
    Raises ValueError where the recipe cannot yield that many.
    """
    if rows < 1:
        raise ValueError(f"rows must be at least 1, not {rows}")
    made: list[Row] = []
    for place, category in enumerate(recipe.categories):
        quota = rows // len(recipe.categories) + (place < rows % len(recipe.categories))
        made += fill_category(recipe, category, quota, Random(f"{seed} {category.name}"))
    rng = Random(f"{seed} split")
    rng.shuffle(made)
    held_out = choose_held_out(made, round(rows * HELD_OUT_SHARE), rng)
    return [{**row, "split": "held_out" if place in held_out else "train"} for place, row in enumerate(made)]


def fill_category(recipe: Recipe, category: Category, quota: int, rng: Random) -> list[Row]:
    """Draw from the templates in turn, leaving out those that have nothing new to give."""
    made: list[Row] = []
    open_templates = list(category.templates)
    rng.shuffle(open_templates)
    seen: dict[str, list[frozenset[str]]] = defaultdict(list)
    while len(made) < quota:
        if not open_templates:
            raise ValueError(
                f"{recipe.name}: category {category.name}: gives {len(made)} different rows, {quota} are wanted; "
                "ask for fewer or enlarge its pools"
            )
        for template in list(open_templates)[: quota - len(made)]:
            row = draw_fresh(recipe.frames, category, template, seen[template.id], rng)
            if row is None:
                open_templates.remove(template)
            else:
                made.append(row)
    return made


def draw_fresh(frames: tuple[str, ...], category: Category, template: Template, seen: list[frozenset[str]], rng: Random) -> Row | None:
    for _ in range(TRIES):
        values = draw_slots(template.slots, category.pools, rng)
        wish = rng.choice(template.wishes).format(**values)
        instruction = rng.choice(frames).format(wish=wish, Wish=wish[0].upper() + wish[1:], tool=template.tool)
        output = template.answer.format(**values)
        mark = shingles(f"{instruction}\n{output}")
        if all(similarity(mark, other) < TOO_ALIKE for other in seen):
            seen.append(mark)
            return {
                "category": category.name,
                "template": template.id,
                "instruction": instruction,
                "input": "",
                "output": output,
                "split": "train",
            }
    return None


def shingles(text: str) -> frozenset[str]:
    return frozenset(text[at : at + SHINGLE] for at in range(max(1, len(text) - SHINGLE + 1)))


def similarity(one: frozenset[str], other: frozenset[str]) -> float:
    both = len(one & other)
    return both / (len(one) + len(other) - both)


def choose_held_out(rows: list[Row], wanted: int, rng: Random) -> set[int]:
    """Choose places whose answers stand in no other row, template by template in turn; each keeps two rows to learn from if it can."""
    queues = answers_standing_alone(rows)
    left = Counter((row["category"], row["template"]) for row in rows)
    order = list(queues)
    rng.shuffle(order)
    chosen: set[int] = set()
    for keep in (2, 1, 0):
        progress = True
        while progress and len(chosen) < wanted:
            progress = False
            for key in order:
                if queues[key] and left[key] - len(queues[key][-1]) >= keep and len(chosen) + len(queues[key][-1]) <= wanted:
                    places = queues[key].pop()
                    left[key] -= len(places)
                    chosen.update(places)
                    progress = True
    if len(chosen) < wanted:
        raise ValueError(
            f"only {len(chosen)} of {wanted} rows can be held out: other answers stand in several rows; "
            "ask for more rows or enlarge the pools"
        )
    return chosen


def answers_standing_alone(rows: list[Row]) -> dict[tuple[str, str], list[list[int]]]:
    """For each category and template, the places of every answer that is found in its own rows' outputs and nowhere else."""
    everything = "\n".join(f"{row['instruction']}\n{row['input']}\n{row['output']}" for row in rows)
    by_answer: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for place, row in enumerate(rows):
        by_answer[row["category"], row["template"], row["output"]].append(place)
    alone: dict[tuple[str, str], list[list[int]]] = {}
    for (category, template, output), places in by_answer.items():
        alone.setdefault((category, template), []).extend([places] if everything.count(output) == len(places) else [])
    return alone
