"""Signs that a card does less than it could, judged from the newest readings of a run. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdfast.base.files import Json

READINGS = 10  # that are looked at
_FEWEST = 3  # below which nothing is said
_MOST = 0.8  # share of them in which it must be so
_IDLE, _AT_CAP, _LOWERED = 0.5, 0.95, 0.9
_FAN_FULL, _HOT_C = 0.95, 80
_FOREIGN_BYTES = 256 << 20  # a desktop's share is no competitor
_GIB = 2**30


def signs(readings: Sequence[Json]) -> list[Json]:
    """Return [{sign, gpu, says}] of what held in nearly all of the newest readings in which steps were committed."""
    newest = list(readings[-READINGS:])
    cards = min((len(one.get("gpus") or []) for one in newest), default=0)
    if len(newest) < _FEWEST:
        return []
    stepped = newest[-1].get("step") != newest[0].get("step")
    used = _used(newest, cards)
    return [
        found for number in range(cards) for found in _of_card(number, [one["gpus"][number] for one in newest], stepped, number in used)
    ]


def _used(newest: Sequence[Json], cards: int) -> set[int]:
    """Return the cards that the run computes on, of the first `cards`: those that a process of its own holds memory of.

    Where no reading tells whose process is on which card, the only one, or the busiest of several.
    """
    told = {number: [one["gpus"][number].get("ours") for one in newest] for number in range(cards)}
    if any(ours is True for known in told.values() for ours in known):
        return {number for number, known in told.items() if known.count(True) >= _MOST * len(newest)}
    unknown = [number for number, known in told.items() if False not in known]
    return set(sorted(unknown, key=lambda number: -sum(one["gpus"][number].get("busy") or 0 for one in newest))[:1])


def _of_card(number: int, seen: list[Json], stepped: bool, used: bool) -> list[Json]:
    """Find what is told of one card. used: the run computes on it; else what only such a card is told of is left out."""
    last = seen[-1]
    found = []

    def held(so: Callable[[Json], bool]) -> bool:
        return sum(map(so, seen)) >= _MOST * len(seen)

    def newest(so: Callable[[Json], bool]) -> Json:
        """Return the newest reading in which it was so: the last of all may lack what is told of it."""
        return next(card for card in reversed(seen) if so(card))

    def say(sign: str, says: str) -> None:
        found.append({"sign": sign, "gpu": number, "says": f"GPU {number} ({last['name']}) {says}"})

    if held(_is_hot):
        say("throttled", f"is slowed down by heat ({_degrees(newest(_is_hot))}): better air, a lower power limit")
    elif held(lambda card: "brake" in (card["slowed"] or [])):
        say("throttled", "is slowed down by the board or its power supply, not by heat: look at its power cables and supply")
    if held(_is_capped):
        cap = newest(_is_capped)
        say("power_cap", f"works at its power limit of {cap['watts_cap']:.0f} W, which is below its usual {cap['watts_usual']:.0f} W")
    if used and (others := [pid for pid in last.get("others") or {} if held(lambda card, pid=pid: _holds(card, pid))]):  # type: ignore[misc]
        told = "; ".join(f"{pid} {last['others'][pid]['command']}".strip() for pid in others[:2])
        size = sum(last["others"][pid]["bytes"] for pid in others) / _GIB
        say("another_process", f"is shared: {size:.1f} GiB of it are another program's (process {told})")
    if used and stepped and held(lambda card: card["busy"] is not None) and sum(card["busy"] or 0 for card in seen) < _IDLE * len(seen):
        busy = sum(card["busy"] or 0 for card in seen) / len(seen)
        say("starved", f"works {busy:.0%} of the time, though steps go on: it waits, for rows, checkpoints or processors")
    if held(_has_full_fan):
        full = newest(_has_full_fan)
        say("fan", f"has its fan at {full['fan']:.0%} ({_degrees(full)}): better air, less dust")
    elif held(_is_uncooled):
        say("fan", f"is at {_degrees(newest(_is_uncooled))} and its fan stands still")
    return found


def _is_hot(card: Json) -> bool:
    at_limit = card["celsius"] is not None and bool(card["celsius_limit"]) and card["celsius"] >= card["celsius_limit"]
    return at_limit or "heat" in (card["slowed"] or [])


def _is_capped(card: Json) -> bool:
    watts, cap, usual = card["watts"], card["watts_cap"], card["watts_usual"]
    return bool(watts and cap and usual) and cap < _LOWERED * usual and watts >= _AT_CAP * cap


def _has_full_fan(card: Json) -> bool:
    return bool((card["fan"] or 0) >= _FAN_FULL)


def _is_uncooled(card: Json) -> bool:
    return bool(card["fan"] == 0 and (card["celsius"] or 0) >= _HOT_C)


def _holds(card: Json, pid: str) -> bool:
    held: int = ((card.get("others") or {}).get(pid) or {}).get("bytes", 0)
    return held >= _FOREIGN_BYTES


def _degrees(card: Json) -> str:
    if card["celsius"] is None:
        return "temperature unknown"
    return f"{card['celsius']:.0f} °C" + (f", limit {card['celsius_limit']:.0f} °C" if card["celsius_limit"] else "")
