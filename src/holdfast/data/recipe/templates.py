"""Templates of a recipe, and the facts they are filled with: things that belong together, such as an error, its cause and its cure.

A template that names a field of a table of facts stands for one template per fact, each of which then is like any other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.data.recipe.pools import Draw, pool_of
from holdfast.data.recipe.recipe_file import YamlPlace, fields, mapping, refuse_unknown, texts

DIFFICULTIES = ("easy", "medium", "hard")

Facts = Mapping[str, list[dict[str, str]]]


@dataclass(frozen=True)
class RecipeTemplate:
    """`facts`: the tables and numbers of the facts it was made of."""

    id: str
    tool: str
    wishes: tuple[str, ...]
    answer: str
    slots: tuple[str, ...]
    difficulty: str = "easy"
    facts: tuple[tuple[str, int], ...] = ()


def read_facts(value: Any, place: YamlPlace) -> dict[str, list[dict[str, str]]]:
    """Read tables of facts, each a list of mappings with the same fields."""
    found: dict[str, list[dict[str, str]]] = {}
    for name, table in mapping(value, place).items():
        there = place / name
        if not re.fullmatch(r"[a-z_]+", name):
            raise there.wrong("a table of facts has small letters and _ only in its name")
        if not isinstance(table, list) or not table:
            raise there.wrong("must be a list of facts, each a mapping of fields to texts")
        for number, fact in enumerate(table):
            if set(mapping(fact, there / number)) != set(table[0]):
                raise (there / number).wrong(f"has the fields {', '.join(sorted(fact))}, the first one has {', '.join(sorted(table[0]))}")
            for key, text in fact.items():
                if not isinstance(text, str) or not text.strip():
                    raise (there / number / str(key)).wrong("must be a text")
        found[name] = table
    return found


def read_templates(name: str, body: Any, pools: Mapping[str, Draw], facts: Facts, place: YamlPlace) -> list[RecipeTemplate]:
    """Read one template, or one for each fact of the table it names."""
    body = mapping(body, place)
    refuse_unknown(body, {"wishes", "answer", "tool", "difficulty"}, place)
    wishes = texts(body.get("wishes", []), place / "wishes")
    answer = body.get("answer")
    if not wishes or not isinstance(answer, str) or not answer.strip():
        raise place.wrong("a template needs wishes (a list of texts) and an answer (a text)")
    difficulty = body.get("difficulty", "easy")
    if difficulty not in DIFFICULTIES:
        raise (place / "difficulty").wrong(f"must be one of {', '.join(DIFFICULTIES)}, it is {difficulty!r}")
    table = _table_of(wishes, answer, facts, pools, place)
    if table is None:
        return [_whole_template(name, body, wishes, answer, pools, place)]
    _refuse_ambiguous(wishes, answer, table, facts[table], place)
    made = []
    for number, fact in enumerate(facts[table]):
        filled = {f"{{{table}.{key}}}": text.strip() for key, text in fact.items()}
        given = [_filled(wish, filled) for wish in wishes]
        try:
            one = _whole_template(name, body, tuple(given), _filled(answer, filled), pools, place, may_say_more=True)
        except ValueError as error:
            raise ValueError(f"{error}, with facts.{table}[{number}]") from None
        made.append(RecipeTemplate(one.id, one.tool, one.wishes, one.answer, one.slots, one.difficulty, ((table, number),)))
    return made


def _whole_template(
    name: str,
    body: Mapping[str, Any],
    wishes: tuple[str, ...],
    answer: str,
    pools: Mapping[str, Draw],
    place: YamlPlace,
    may_say_more: bool = False,
) -> RecipeTemplate:
    """Build a template; `may_say_more`: a wish may have slots that the answer lacks, as an error message has its cure does not need."""
    slots = fields(answer, place / "answer")
    for slot in slots:
        if pool_of(slot, pools) not in pools:
            raise (place / "answer").wrong(f"no pool for the slot {{{slot}}}")
    for number, wish in enumerate(wishes):
        found = set(fields(wish, place / "wishes" / number))
        for slot in sorted(found if may_say_more else ()):
            if pool_of(slot, pools) not in pools:
                raise (place / "wishes" / number).wrong(f"no pool for the slot {{{slot}}}")
        for slot in sorted(set(slots) - found if may_say_more else found ^ set(slots)):
            lacks = "the answer" if slot in found else "this wish"
            raise (place / "wishes" / number).wrong(f"{lacks} lacks the slot {{{slot}}}; wishes and answer must name the same slots")
    if may_say_more:
        slots = tuple(dict.fromkeys([*slots, *(slot for wish in wishes for slot in fields(wish, place))]))
    return RecipeTemplate(name, _tool_of(body, answer, place), wishes, answer, slots, body.get("difficulty", "easy"))


def _table_of(wishes: Iterable[str], answer: str, facts: Facts, pools: Mapping[str, Draw], place: YamlPlace) -> str | None:
    """Return the table whose fields a template names, None without. Raises ValueError for an unknown one and for two."""
    found: dict[str, YamlPlace] = {}
    for text, there in [(answer, place / "answer"), *((wish, place / "wishes" / number) for number, wish in enumerate(wishes))]:
        for slot in fields(text, there):
            table, dot, key = slot.partition(".")
            if not dot:
                continue
            if table in pools:
                raise there.wrong(f"{{{slot}}} is no slot name; {table} is a pool, and only facts have fields")
            if table not in facts or key not in facts[table][0]:
                known = sorted(f"{name}.{field}" for name, table in facts.items() for field in table[0])
                raise there.wrong(f"no fact {{{slot}}}, known: {', '.join(known) or 'none'}")
            found[table] = there
    if len(found) > 1:
        raise place.wrong(f"names the facts {' and '.join(sorted(found))}; one table a template")
    return next(iter(found), None)


def _refuse_ambiguous(wishes: Iterable[str], answer: str, table: str, facts: list[dict[str, str]], place: YamlPlace) -> None:
    """Raise ValueError where one question would have two answers."""
    for number, wish in enumerate(wishes):
        answers: dict[str, int] = {}
        for at, fact in enumerate(facts):
            filled = {f"{{{table}.{key}}}": text.strip() for key, text in fact.items()}
            first = answers.setdefault(_filled(wish, filled), at)
            if _filled(answer, filled) != _filled(answer, {f"{{{table}.{key}}}": text.strip() for key, text in facts[first].items()}):
                raise (place / "wishes" / number).wrong(f"facts.{table}[{first}] and [{at}] make the same question and other answers")


def _filled(text: str, values: Mapping[str, str]) -> str:
    for slot, value in values.items():
        text = text.replace(slot, value)
    return text


def _tool_of(body: Mapping[str, Any], answer: str, place: YamlPlace) -> str:
    """Take the word a question names the tool by: the template's own, else the first word of the answer."""
    first = re.match(r"[\w.-]*\w", answer)
    tool = body.get("tool", first and first[0])
    if not isinstance(tool, str) or not tool.strip():
        raise (place / "tool").wrong("the answer starts with no word that names a tool; say it here")
    return tool
