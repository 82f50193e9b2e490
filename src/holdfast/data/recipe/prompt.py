"""What is said to a model that is to write rows, and the rows in what it answers. Sends nothing, judges no row."""

from __future__ import annotations

import json
from collections.abc import Iterable
from random import Random
from typing import Any

from holdfast.base.files import Json
from holdfast.data.recipe.generate import Alike, draw_fresh
from holdfast.data.recipe.recipe import Category, Recipe

FIELDS = ("instruction", "input", "output")
_SHOWN = 4  # rows of the recipe that each request shows
SCHEMA: Json = {
    "type": "object",
    "properties": {
        "rows": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {name: {"type": "string"} for name in FIELDS},
                "required": list(FIELDS),
                "additionalProperties": False,
            },
        }
    },
    "required": ["rows"],
    "additionalProperties": False,
}


def messages(recipe: Recipe, category: Category, difficulty: str, wanted: int, before: Iterable[str], rng: Random) -> list[Json]:
    """Build the chat for the model: the form, the subject, a few rows of the recipe, and the prompts asked `before`."""
    drawn = Alike()
    like = [template for template in category.templates if template.difficulty == difficulty] or list(category.templates)
    chosen = rng.sample(like, min(_SHOWN, len(like)))
    rows = [draw_fresh(recipe.frames, category, template, drawn, rng) for template in chosen]
    shown = [{name: row[name] for name in FIELDS} for row in rows if row]  # type: ignore[literal-required]
    told = "".join(f"\n- {question}" for question in before)
    return [
        {
            "role": "system",
            "content": (
                "You write rows of training data. Answer with one JSON object "
                '{"rows": [{"instruction": .., "input": .., "output": ..}]} and nothing else. '
                "An instruction says all that is needed to give its output; input is empty unless a text is worked on."
            ),
        },
        {
            "role": "user",
            "content": (
                f"Write {wanted} {difficulty} rows about: {category.name}. Let them differ in subject and wording, "
                f"and be right.\nRows in this style:\n{json.dumps({'rows': shown}, ensure_ascii=False)}"
                + (f"\nThese were asked before; do not repeat them:{told}" if told else "")
            ),
        },
    ]


def rows_in(text: str) -> tuple[list[Any], str]:
    """Parse the rows of an answer, whole ones also of a torn answer; and its fault: none, `cut_off` or `not_json`."""
    start = min((at for at in (text.find("{"), text.find("[")) if at >= 0), default=-1)
    if start < 0:
        return [], "not_json"
    decoder = json.JSONDecoder()
    try:
        value, _ = decoder.raw_decode(text, start)
    except (ValueError, RecursionError):
        pass
    else:
        rows = value.get("rows") if isinstance(value, dict) else value
        return (rows, "") if isinstance(rows, list) else ([value], "")
    at = text.find("[", start) + 1
    found: list[Any] = []
    while at and (at := text.find("{", at)) >= 0:
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            break
        found.append(value)
    return found, "cut_off" if found or text.lstrip().startswith(("{", "[", "```")) else "not_json"
