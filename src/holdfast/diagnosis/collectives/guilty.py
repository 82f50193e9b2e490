"""Say which rank keeps the others waiting, from what each wrote down when the wait took too long. Pure.

Four signs, the surest first: a rank left no whole dump where others did (its process could not answer); it entered a collective that others
have completed and it has not (its device does not finish its work); it entered another collective than the others, under the same number;
it has not entered a collective in which the others wait, and waits in none itself. Who waits for a rank that waits for another is a victim.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace

from holdfast.base.units import listed
from holdfast.diagnosis.collectives.dumps import CollectiveEntry, Dump
from holdfast.run.types import Clue, Diagnosis

SILENT, UNFINISHED, OTHER, ABSENT = "left no whole dump", "did not complete", "entered", "did not enter"
_SURE = {SILENT: 0.6, UNFINISHED: 0.85, OTHER: 0.9, ABSENT: 0.9}
_BETWEEN_SOME = re.compile("send|recv|coalesced")  # each rank's own, under one number
_WAITED = ("hang", "collective_timeout", "unknown")
_SHOWN = 8
_STACK = 4  # frames


@dataclass(frozen=True)
class Guilty:
    """Ranks and what shows that the others wait for them. entry: the collective, where one shows it; of a rank that waits there."""

    ranks: tuple[int, ...]
    sign: str
    entry: CollectiveEntry | None = None
    described: str = ""
    waiting: tuple[int, ...] = ()
    last: Mapping[int, CollectiveEntry] | None = None  # what each guilty rank entered last
    instead: str = ""  # what the others entered under its number
    even: bool = False  # as many others entered that


def find_guilty(dumps: Mapping[int, Dump]) -> Guilty | None:
    """Find the ranks that keep the others waiting; None where nobody waits, or the dumps do not tell."""
    if not any(not entry.completed for dump in dumps.values() for entry in dump.entries):
        return None
    expected = {rank for dump in dumps.values() for members in dump.groups.values() for rank in members}
    missing = tuple(sorted(expected - set(dumps)))
    if missing and len(missing) <= len(dumps):  # else these are the dumps of some machines only
        return Guilty(missing, SILENT, waiting=tuple(sorted(dumps)))
    return _unfinished(dumps) or _other(dumps) or _absent(dumps)


def with_dumps(found: Diagnosis, dumps: Mapping[int, Dump]) -> Diagnosis:
    """Return a diagnosis with the ranks that the dumps beside it name, where ranks waited for one another."""
    if found.cause not in _WAITED or find_guilty(dumps) is None:
        return found
    named = diagnose_dumps(dumps)
    return replace(found, clues=(*named.clues, *found.clues), explanation=named.explanation)


def diagnose_dumps(dumps: Mapping[int, Dump]) -> Diagnosis:
    """Diagnose a folder of dumps."""
    found = find_guilty(dumps)
    if found is None:
        return Diagnosis.plain("unknown", 0.0, f"dumps of {len(dumps)} ranks, in which no collective shows who keeps the others waiting")
    clues = [Clue(None, text) for text in _clues(found, len(dumps))]
    return Diagnosis("collective_timeout", _SURE[found.sign], tuple(clues), explanation=_explanation(found))


def _unfinished(dumps: Mapping[int, Dump]) -> Guilty | None:
    """Find the ranks that entered a collective which another member has completed, and they have not."""
    furthest: dict[str, int] = {}
    for dump in dumps.values():
        for group, number in dump.completed.items():
            furthest[group] = max(number, furthest.get(group, number))
    slow: dict[int, CollectiveEntry] = {}
    for rank, dump in dumps.items():
        behind = [
            entry for entry in _waits(dump) if dump.completed.get(entry.group, entry.number) < entry.number <= furthest.get(entry.group, -1)
        ]
        if behind:
            slow[rank] = behind[0]
    if not slow:
        return None
    ranks = tuple(sorted(slow))
    entry = slow[ranks[0]]
    members = dumps[ranks[0]].groups.get(entry.group, ())
    completed = tuple(rank for rank in members if rank in dumps and dumps[rank].completed.get(entry.group, -1) >= entry.number)
    return Guilty(ranks, UNFINISHED, entry, _description(dumps, ranks[0], entry), completed, _last(dumps, ranks))


def _description(dumps: Mapping[int, Dump], rank: int, entry: CollectiveEntry) -> str:
    return dumps[rank].described.get(entry.group, entry.group)


def _other(dumps: Mapping[int, Dump]) -> Guilty | None:
    """Find the ranks that wait in another collective than the rest of their group does under the same number; of two halves, the later."""
    names: dict[tuple[str, int], dict[str, dict[int, CollectiveEntry]]] = defaultdict(lambda: defaultdict(dict))
    for rank, dump in sorted(dumps.items()):
        for entry in _waits(dump):
            if not _BETWEEN_SOME.search(entry.name):
                names[entry.group, entry.number][entry.name][rank] = entry
    for found in (names[key] for key in sorted(names, key=lambda key: key[1]) if len(names[key]) > 1):
        *fewer, most = sorted(found, key=lambda name: (len(found[name]), -min(found[name])))
        ranks = tuple(sorted(rank for name in fewer for rank in found[name]))
        entry = found[fewer[0]][min(found[fewer[0]])]
        described = _description(dumps, ranks[0], entry)
        others, even = tuple(sorted(found[most])), len(found[fewer[-1]]) == len(found[most])
        return Guilty(ranks, OTHER, entry, described, others, _last(dumps, ranks + others if even else ranks), instead=most, even=even)
    return None


def _absent(dumps: Mapping[int, Dump]) -> Guilty | None:
    """Find the ranks that others wait for in a collective, and that wait for nobody."""
    awaited: dict[int, list[tuple[CollectiveEntry, str, int]]] = defaultdict(list)
    for rank, dump in dumps.items():
        for entry in _waits(dump):
            for member in dump.groups.get(entry.group, ()):
                if member in dumps and not _has_entered(dumps[member], entry):
                    awaited[member].append((entry, _description(dumps, rank, entry), rank))
    waiting = {rank for places in awaited.values() for _, _, rank in places}
    ranks = tuple(sorted(set(awaited) - waiting))
    if not ranks:
        return None
    entry, described, _ = min(awaited[ranks[0]], key=lambda place: place[0].number)
    return Guilty(ranks, ABSENT, entry, described, tuple(sorted(waiting)), _last(dumps, ranks))


def _waits(dump: Dump) -> list[CollectiveEntry]:
    """Return the oldest collective of each group that the rank has not completed."""
    oldest: dict[str, CollectiveEntry] = {}
    for entry in dump.entries:
        if not entry.completed and not entry.between_two:
            oldest.setdefault(entry.group, entry)
    return list(oldest.values())


def _has_entered(dump: Dump, entry: CollectiveEntry) -> bool:
    """Return whether a rank entered the collective; True where it entered nothing of the group since it completed that one."""
    numbers = (one.number for one in dump.entries if one.group == entry.group and not one.between_two)
    return max(numbers, default=dump.completed.get(entry.group, -1)) >= entry.number


def _last(dumps: Mapping[int, Dump], ranks: tuple[int, ...]) -> dict[int, CollectiveEntry]:
    return {rank: dumps[rank].entries[-1] for rank in ranks if dumps[rank].entries}


def _named(ranks: tuple[int, ...]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + listed([str(rank) for rank in ranks], _SHOWN)


def _clues(found: Guilty, dumps: int) -> list[str]:
    lines = [f"flight recorder of {dumps} ranks: {_sentence(found)}"]
    for rank, entry in list((found.last or {}).items())[:_SHOWN]:
        lines.append(f"rank {rank} entered last: {entry.name} number {entry.number:,} of its group")
        lines += [f"  {frame}" for frame in entry.frames[:_STACK]]
    if found.entry is not None and found.entry.frames and not found.instead:
        lines.append(f"where the others wait in it: {found.entry.frames[0]}")
    return lines


def _sentence(found: Guilty) -> str:
    if found.entry is None:
        return f"{_named(found.ranks)} {found.sign}, {len(found.waiting):,} others did"
    if found.instead:
        where = f"where {_named(found.waiting)} entered {found.instead}"
        return f"{_named(found.ranks)} entered {found.entry.name} as number {found.entry.number:,} of {found.described}, {where}"
    of = f"{found.entry.name} number {found.entry.number:,} of {found.described}"
    return f"{_named(found.ranks)} {found.sign} {of}, {_named(found.waiting)} did"


def _explanation(found: Guilty) -> str:
    why = {
        SILENT: "A process that writes none is dead or cannot run: look at its log and machine, and whether its dump was collected whole.",
        UNFINISHED: "The work is queued and the device does not finish it: look at that card (Xid, ECC, temperature) and the link to it.",
        OTHER: "The program took another branch there, or skipped a collective before: compare its stack with theirs.",
        ABSENT: "The program is elsewhere: in another branch, in a slow data loader, or it stands still. Its own log and stack say where.",
    }[found.sign]
    others = "The other ranks wait for it" if len(found.ranks) == 1 else "The other ranks wait for these"
    if found.even:
        others, why = "They wait for each other", "Which of them took the wrong branch the dumps do not tell: compare their stacks."
    said = _sentence(found)
    return f"{said[0].upper()}{said[1:]}. {others}. {why}"
