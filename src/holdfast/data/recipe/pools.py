"""What a recipe's slots are filled with: lists, ranges, and patterns over other pools. Pure: chance is passed in."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from random import Random
from typing import Any

from holdfast.data.recipe.recipe_file import YamlPlace, fields, texts

TRIES = 60  # draws for a second value from one pool that differs from the first

Draw = Callable[[Random], str]


def read_pools(described: Mapping[str, Any], place: YamlPlace) -> dict[str, Draw]:
    pools: dict[str, Draw] = {}
    for name, body in described.items():
        if not re.fullmatch(r"[a-z_]+", name):
            raise (place / name).wrong("a pool's name has small letters and _ only")
        pools[name] = _read_pool(name, body, described, pools, place / name)
    return pools


def _read_pool(name: str, body: Any, described: Mapping[str, Any], pools: Mapping[str, Draw], place: YamlPlace) -> Draw:
    if isinstance(body, list) and body and all(isinstance(value, str | int) and not isinstance(value, bool) for value in body):
        values = [str(value) for value in body]
        return lambda rng: rng.choice(values)
    if (
        isinstance(body, dict)
        and set(body) in ({"from", "to"}, {"from", "to", "step"})
        and all(isinstance(value, int) for value in body.values())
    ):
        if body["from"] > body["to"] or body.get("step", 1) < 1:
            raise place.wrong(f"from {body['from']} to {body['to']} step {body.get('step', 1)} holds no number")
        numbers = range(body["from"], body["to"] + 1, body.get("step", 1))
        return lambda rng: str(rng.choice(numbers))
    if isinstance(body, dict) and set(body) == {"join"}:
        patterns = texts(body["join"], place / "join")
        slots = {pattern: fields(pattern, place / "join") for pattern in patterns}
        for slot in {slot for found in slots.values() for slot in found}:
            if pool_of(slot, described) not in described:
                raise (place / "join").wrong(f"no pool for the slot {{{slot}}}")
            if list(described).index(pool_of(slot, described)) >= list(described).index(name):
                raise (place / "join").wrong(f"the pool of {{{slot}}} must be described above this one")
        return lambda rng: _joined(rng.choice(patterns), slots, pools, rng)
    raise place.wrong("a pool is a list of texts or numbers (quote on, off, yes, no), {from, to, step} or {join: [patterns]}")


def _joined(pattern: str, slots: Mapping[str, tuple[str, ...]], pools: Mapping[str, Draw], rng: Random) -> str:
    return pattern.format(**draw_slots(slots[pattern], pools, rng))


def pool_of(slot: str, pools: Mapping[str, Any]) -> str:
    return slot if slot in pools else slot.rstrip("0123456789")


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
