"""Read a recipe: slot pools, and templates by category. What is wrong is told with its place; rows are drawn by generate.py.

A recipe is a folder of YAML files, or one file. Files without `category` hold shared pools and frames, every other file is one category.
A template has wishes, each naming the same slots, and one answer made of these slots, so that a row's answer is determined by its question.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from string import Formatter
from typing import Any

import yaml

SHIPPED = Path(__file__).parent / "recipes" / "linux_ai_ops"
TRIES = 60  # draws for a second value from one pool that differs from the first

Draw = Callable[[Random], str]


@dataclass(frozen=True)
class Template:
    id: str
    tool: str
    wishes: tuple[str, ...]
    answer: str
    slots: tuple[str, ...]


@dataclass(frozen=True)
class Category:
    name: str
    templates: tuple[Template, ...]
    pools: Mapping[str, Draw]


@dataclass(frozen=True)
class Recipe:
    name: str
    frames: tuple[str, ...]
    categories: tuple[Category, ...]


def load_recipe(path: Path | None = None) -> Recipe:
    """Read a recipe file or folder, the shipped one by default. Raises ValueError naming the place of what is wrong."""
    where = SHIPPED if path is None else path
    documents = [(file.name, read_yaml(file)) for file in recipe_files(where)]
    frames: tuple[str, ...] = ()
    shared_pools: dict[str, Any] = {}
    for name, document in documents:
        for place, frame in enumerate(texts(document.get("frames", []), f"{name}.frames")):
            refuse_fields(frame, {"wish", "Wish", "tool"}, f"{name}.frames[{place}]")
            frames += (frame,)
        if "category" not in document:
            refuse_unknown(document, {"frames", "pools"}, name)
            shared_pools |= mapping(document.get("pools", {}), f"{name}.pools")
    categories = tuple(read_category(document, shared_pools, name) for name, document in documents if "category" in document)
    if not categories:
        raise ValueError(f"{where}: no category in this recipe; a category file has the keys category and templates")
    twice = [name for name, times in Counter(category.name for category in categories).items() if times > 1]
    if twice:
        raise ValueError(f"{where}: category {twice[0]} is described twice")
    return Recipe(where.stem, frames or ("{Wish}.",), categories)


def recipe_files(where: Path) -> list[Path]:
    if where.is_dir():
        return sorted(where.glob("*.yaml"))
    if where.is_file():
        return [where]
    raise ValueError(f"{where}: no such recipe file or folder")


def read_yaml(file: Path) -> dict[str, Any]:
    try:
        return mapping(yaml.safe_load(file.read_text(encoding="utf-8")), file.name)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{file}: not a YAML text: {' '.join(str(error).split())}") from error


def read_category(document: dict[str, Any], shared_pools: Mapping[str, Any], file: str) -> Category:
    refuse_unknown(document, {"category", "frames", "pools", "templates"}, file)
    pools = read_pools({**shared_pools, **mapping(document.get("pools", {}), f"{file}.pools")}, file)
    templates = mapping(document.get("templates", {}), f"{file}.templates")
    if not templates:
        raise ValueError(f"{file}.templates: a category needs at least one template")
    read = tuple(read_template(str(name), body, pools, f"{file}.templates.{name}") for name, body in templates.items())
    return Category(str(document["category"]), read, pools)


def read_template(name: str, body: Any, pools: Mapping[str, Draw], where: str) -> Template:
    body = mapping(body, where)
    refuse_unknown(body, {"wishes", "answer", "tool"}, where)
    wishes = texts(body.get("wishes", []), f"{where}.wishes")
    answer = body.get("answer")
    if not wishes or not isinstance(answer, str) or not answer.strip():
        raise ValueError(f"{where}: a template needs wishes (a list of texts) and an answer (a text)")
    slots = fields(answer, f"{where}.answer")
    for slot in slots:
        if pool_of(slot, pools) not in pools:
            raise ValueError(f"{where}.answer: no pool for the slot {{{slot}}}")
    for place, wish in enumerate(wishes):
        found = set(fields(wish, f"{where}.wishes[{place}]"))
        for slot in sorted(found ^ set(slots)):
            lacks = "the answer" if slot in found else "this wish"
            raise ValueError(f"{where}.wishes[{place}]: {lacks} lacks the slot {{{slot}}}; wishes and answer must name the same slots")
    return Template(name, tool_of(body, answer, where), wishes, answer, slots)


def tool_of(body: Mapping[str, Any], answer: str, where: str) -> str:
    """Take the word a question names the tool by: the template's own, else the first word of the answer."""
    first = re.match(r"[\w.-]*\w", answer)
    tool = body.get("tool", first and first[0])
    if not isinstance(tool, str) or not tool.strip():
        raise ValueError(f"{where}.tool: the answer starts with no word that names a tool; say it here")
    return tool


def read_pools(described: Mapping[str, Any], file: str) -> dict[str, Draw]:
    pools: dict[str, Draw] = {}
    for name, body in described.items():
        where = f"{file}.pools.{name}"
        if not re.fullmatch(r"[a-z_]+", str(name)):
            raise ValueError(f"{where}: a pool's name has small letters and _ only")
        pools[name] = read_pool(body, described, pools, where)
    return pools


def read_pool(body: Any, described: Mapping[str, Any], pools: Mapping[str, Draw], where: str) -> Draw:
    if isinstance(body, list) and body and all(isinstance(value, str | int) and not isinstance(value, bool) for value in body):
        values = [str(value) for value in body]
        return lambda rng: rng.choice(values)
    if (
        isinstance(body, dict)
        and set(body) in ({"from", "to"}, {"from", "to", "step"})
        and all(isinstance(value, int) for value in body.values())
    ):
        if body["from"] > body["to"] or body.get("step", 1) < 1:
            raise ValueError(f"{where}: from {body['from']} to {body['to']} step {body.get('step', 1)} holds no number")
        numbers = range(body["from"], body["to"] + 1, body.get("step", 1))
        return lambda rng: str(rng.choice(numbers))
    if isinstance(body, dict) and set(body) == {"join"}:
        patterns = texts(body["join"], f"{where}.join")
        slots = {pattern: fields(pattern, f"{where}.join") for pattern in patterns}
        for slot in {slot for found in slots.values() for slot in found}:
            if pool_of(slot, described) not in described:
                raise ValueError(f"{where}.join: no pool for the slot {{{slot}}}")
            if list(described).index(pool_of(slot, described)) >= list(described).index(where.rsplit(".", 1)[1]):
                raise ValueError(f"{where}.join: the pool of {{{slot}}} must be described above this one")
        return lambda rng: joined(rng.choice(patterns), slots, pools, rng)
    raise ValueError(f"{where}: a pool is a list of texts or numbers (quote on, off, yes, no), {{from, to, step}} or {{join: [patterns]}}")


def joined(pattern: str, slots: Mapping[str, tuple[str, ...]], pools: Mapping[str, Draw], rng: Random) -> str:
    return pattern.format(**draw_slots(slots[pattern], pools, rng))


def pool_of(slot: str, pools: Mapping[str, Any]) -> str:
    return slot if slot in pools else slot.rstrip("0123456789")


def fields(text: str, where: str) -> tuple[str, ...]:
    """List the slots of a pattern in order, each once."""
    try:
        names = [name for _, name, _, _ in Formatter().parse(text) if name is not None]
    except ValueError as error:
        raise ValueError(f"{where}: {error} (write {{{{ and }}}} for braces that are no slot)") from error
    for name in names:
        if not re.fullmatch(r"[a-zA-Z_]+[0-9]*", name):
            raise ValueError(f"{where}: {{{name}}} is no slot name (write {{{{ and }}}} for braces that are no slot)")
    return tuple(dict.fromkeys(names))


def refuse_fields(text: str, known: set[str], where: str) -> None:
    for name in fields(text, where):
        if name not in known:
            raise ValueError(f"{where}: unknown slot {{{name}}}, known: {', '.join(sorted(known))}")


def refuse_unknown(body: Mapping[str, Any], known: set[str], where: str) -> None:
    for key in body:
        if key not in known:
            raise ValueError(f"{where}.{key}: unknown key, known: {', '.join(sorted(known))}")


def mapping(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{where}: must be a mapping of names to values")
    return value


def texts(value: Any, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(text, str) and text.strip() for text in value):
        raise ValueError(f"{where}: must be a list of texts")
    return tuple(value)


def draw_slots(slots: Iterable[str], pools: Mapping[str, Draw], rng: Random) -> dict[str, str]:
    """Give each slot a value; {port} and {port2} never get the same one."""
    values: dict[str, str] = {}
    for slot in slots:
        pool = pool_of(slot, pools)
        taken = {values[other] for other in values if pool_of(other, pools) == pool}
        value = pools[pool](rng)
        for _ in range(TRIES):
            if value not in taken:
                break
            value = pools[pool](rng)
        values[slot] = value
    return values
