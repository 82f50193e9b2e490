"""Read a recipe: slot pools, facts, and templates by category. What is wrong is told with its place; rows are drawn by generate.py.

A recipe is a folder of YAML files, or one file. A file holds shared pools, facts and frames, one category (`category`, `templates`), or
several (`categories`). A template has wishes, each naming the same slots, and one answer made of these slots, so that a row's answer is
determined by its question. Facts are things that belong together; a template that names a field of one stands for a template per fact.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.data.recipe.pools import Draw, read_pools
from holdfast.data.recipe.recipe_file import YamlPlace, mapping, read_file, refuse_fields, refuse_unknown, share, texts, whole
from holdfast.data.recipe.templates import DIFFICULTIES, Facts, RecipeTemplate, read_facts, read_templates

SHIPPED = Path(__file__).parent / "recipes" / "linux_ai_ops"
_SETTINGS = ("rows", "seed", "near_duplicates", "difficulty")
_SHARED = ("frames", "pools", "facts")
_CATEGORY = ("frames", "pools", "facts", "templates", "quota")


@dataclass(frozen=True)
class Category:
    """`quota`: its rows, as a number or as a share; None: an even part of what the others leave."""

    name: str
    templates: tuple[RecipeTemplate, ...]
    pools: Mapping[str, Draw]
    quota: int | float | None = None


@dataclass(frozen=True)
class Recipe:
    """`shares`: what part of the rows is of which difficulty; empty: all templates alike. `near_duplicates`: the most there may be."""

    name: str
    frames: tuple[str, ...]
    categories: tuple[Category, ...]
    shares: Mapping[str, float] = field(default_factory=dict)
    rows: int = 1500
    seed: int = 0
    near_duplicates: float = 0.02


def load_recipe(path: Path | None = None) -> Recipe:
    """Read a recipe file or folder, the shipped one by default. Raises ValueError naming the place of what is wrong."""
    where = SHIPPED if path is None else path
    documents = [read_file(file) for file in recipe_files(where)]
    frames: tuple[str, ...] = ()
    pools: dict[str, Any] = {}
    facts: dict[str, list[dict[str, str]]] = {}
    settings: dict[str, Any] = {}
    for document, place in documents:
        frames += _frames(document, place)
        settings |= _settings(document, place)
        if "category" in document:
            continue
        refuse_unknown(document, {*_SHARED, *_SETTINGS, "categories"}, place)
        pools |= mapping(document.get("pools", {}), place / "pools")
        facts |= read_facts(document.get("facts", {}), place / "facts")
    categories: list[Category] = []
    for document, place in documents:
        if "category" in document:
            refuse_unknown(document, {*_CATEGORY, *_SETTINGS, "category"}, place)
            categories.append(_read_category(str(document["category"]), document, pools, facts, place))
        for name, body in mapping(document.get("categories", {}), place / "categories").items():
            there = place / "categories" / name
            frames += _frames(mapping(body, there), there)
            refuse_unknown(body, _CATEGORY, there)
            categories.append(_read_category(name, body, pools, facts, there))
    if not categories:
        raise ValueError(f"{where}: no category in this recipe; a category file has the keys category and templates")
    twice = [name for name, times in Counter(category.name for category in categories).items() if times > 1]
    if twice:
        raise ValueError(f"{where}: category {twice[0]} is described twice")
    _refuse_unused_facts(documents, categories)
    return Recipe(where.stem, frames or ("{Wish}.",), tuple(categories), **settings)


def recipe_files(where: Path) -> list[Path]:
    if where.is_dir():
        return sorted(where.glob("*.yaml"))
    if where.is_file():
        return [where]
    raise ValueError(f"{where}: no such recipe file or folder")


def difficulty_shares(given: Mapping[str, Any]) -> dict[str, float]:
    """Normalise parts such as easy=2, medium=1 to shares that add up to 1. Raises ValueError for an invalid part."""
    for name, part in given.items():
        if name not in DIFFICULTIES:
            raise ValueError(f"{name} is no difficulty, known: {', '.join(DIFFICULTIES)}")
        if isinstance(part, bool) or not isinstance(part, int | float) or not 0 <= part < 1e9:
            raise ValueError(f"the part of {name} must be a number from 0 on, it is {part!r}")
    total = sum(given.values())
    if not total:
        raise ValueError("no difficulty has a part of the rows")
    return {name: given[name] / total for name in DIFFICULTIES if given.get(name)}


def _frames(document: Mapping[str, Any], place: YamlPlace) -> tuple[str, ...]:
    found = texts(document.get("frames", []), place / "frames")
    for number, frame in enumerate(found):
        refuse_fields(frame, {"wish", "Wish", "tool"}, place / "frames" / number)
    return found


def _settings(document: Mapping[str, Any], place: YamlPlace) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, least in (("rows", 1), ("seed", 0)):
        if key in document:
            found[key] = whole(document[key], least, place / key)
    if "near_duplicates" in document:
        found["near_duplicates"] = share(document["near_duplicates"], place / "near_duplicates")
    if "difficulty" in document:
        try:
            found["shares"] = difficulty_shares(mapping(document["difficulty"], place / "difficulty"))
        except ValueError as error:
            raise (place / "difficulty").wrong(str(error)) from None
    return found


def _read_category(name: str, document: Mapping[str, Any], shared: Mapping[str, Any], shared_facts: Facts, place: YamlPlace) -> Category:
    pools = read_pools({**shared, **mapping(document.get("pools", {}), place / "pools")}, place / "pools")
    facts = {**shared_facts, **read_facts(document.get("facts", {}), place / "facts")}
    described = mapping(document.get("templates", {}), place / "templates")
    if not described:
        raise (place / "templates").wrong("a category needs at least one template")
    found: list[RecipeTemplate] = []
    for template, body in described.items():
        found += read_templates(template, body, pools, facts, place / "templates" / template)
    return Category(name, tuple(found), pools, _quota(document, place / "quota"))


def _quota(document: Mapping[str, Any], place: YamlPlace) -> int | float | None:
    value = document.get("quota")
    if value is None:
        return None
    return share(value, place) if isinstance(value, str) else whole(value, 0, place)


def _refuse_unused_facts(documents: Iterable[tuple[dict[str, Any], YamlPlace]], categories: Iterable[Category]) -> None:
    """Raise ValueError for a table of facts that no template names."""
    used = {(category.name, table) for category in categories for template in category.templates for table, _ in template.facts}
    used |= {("", table) for _, table in used}
    for document, place in documents:
        owners = [(str(document.get("category", "")), document, place)]
        owners += [(name, body, place / "categories" / name) for name, body in document.get("categories", {}).items()]
        for name, body, there in owners:
            for table in body.get("facts", {}):
                if (name, table) not in used:
                    raise (there / "facts" / table).wrong("no template uses these facts")
