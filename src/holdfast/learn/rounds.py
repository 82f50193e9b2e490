"""The folder of a policy's rounds: what each has done. A phase is done when its file is there, which comes whole or not at all.

FOLDER/rounds/0001/arrived.jsonl  what it took      1-collected.json ... 6-acknowledged.json  one for each phase
                   fates.jsonl    every row's fate  train.jsonl, new.jsonl  what it trained on, what it was measured on
                   run/           the run           told.json  it was in the answer of a command
                   training.log   what its training said   experts/  those of its version, where the policy wants them
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from holdfast.base.errors import DamagedFile, damaged
from holdfast.base.files import Json, read_exact_lines, read_json, write_bytes, write_json
from holdfast.data.collect.outfile import row_key
from holdfast.run.folder import found_below
from holdfast.serve.experts import experts_folder

WITHDRAWN = "withdrawn"
PHASES = ("collected", "judged", "trained", "gated", "decided", "acknowledged")


def written(file: Path) -> Json | None:
    """Read what was written down of work that is done; None where nothing was. Raises DamagedFile."""
    facts = read_json(file)
    if facts is None and file.exists():
        raise damaged(file, "it holds no JSON object")
    return facts


@dataclass(frozen=True)
class Round:
    """One round's folder."""

    path: Path

    @property
    def number(self) -> int:
        return int(self.path.name)

    @property
    def arrived(self) -> Path:
        return self.path / "arrived.jsonl"

    @property
    def fates(self) -> Path:
        return self.path / "fates.jsonl"

    @property
    def rows(self) -> Path:
        """Rows it trains on that the promoted version has not learned: new ones, and those carried over."""
        return self.path / "rows.jsonl"

    @property
    def train(self) -> Path:
        return self.path / "train.jsonl"

    @property
    def new(self) -> Path:
        """New rows held out."""
        return self.path / "new.jsonl"

    @property
    def run(self) -> Path:
        """Where it trains; what was trained again without withdrawn rows lies elsewhere."""
        again = (self.of("trained") or {}).get("run")
        return Path(again) if again else self.path / "run"

    @property
    def experts(self) -> Path:
        """Where the experts of its version are."""
        return experts_folder(self.run)

    @property
    def runs(self) -> list[Path]:
        """Its run, and those of its experts."""
        return [self.run, *sorted(self.experts.glob("*/run"))]

    def file(self, phase: str) -> Path:
        return self.path / f"{PHASES.index(phase) + 1}-{phase}.json"

    def of(self, phase: str) -> Json | None:
        """Return what came of a phase; None where it is not done. Raises DamagedFile: without it the round would be another one."""
        return written(self.file(phase))

    def done(self, phase: str, facts: Json) -> Json:
        """Write down that a phase is done, and what came of it."""
        write_json(self.file(phase), facts)
        return facts

    @property
    def over(self) -> bool:
        return self.file("acknowledged").exists()

    def answer(self) -> Json:
        """Return the round's part of the --json answer."""
        judged, decided = self.of("judged") or {}, self.of("decided") or {}
        gate = self.of("gated") or {}
        return {
            "round": self.number,
            "rows": judged.get("rows"),
            "rejected_by_reason": judged.get("by_reason"),
            "verdict": decided.get("verdict"),
            "promoted": decided.get("promoted"),
            "version": decided.get("version"),
            "why": decided.get("why"),
            "against": decided.get("against"),
            "adapter_sha256": decided.get("adapter_sha256"),
            "domains": gate.get("groups"),
            "general": gate.get("general"),
            "carried": judged.get("carried"),
            "disliked_since": judged.get("disliked_since"),
            "unmeasured": gate.get("unmeasured"),
            "contradicted": gate.get("contradicted"),
            "folder": str(self.path),
        }


def rounds_of(folder: Path) -> list[Round]:
    """Return rounds that were begun, in order. A folder without its first phase's file was never begun: it took nothing."""
    found = sorted((folder / "rounds").glob("[0-9]*"))
    return [Round(path) for path in found if Round(path).file("collected").exists()]


def refuse_damaged(rounds: list[Round]) -> None:
    """Raise DamagedFile where what a phase did can no longer be read: nobody would know what was trained on what, or promoted."""
    for each in rounds:
        for phase in PHASES:
            each.of(phase)


def standing_of(folder: Path) -> Json:
    """Return where a policy's rounds stand, as `holdfast status` tells it: its newest round, the last decision, the last promotion.

    phase: the one that is not done yet; None where the round is over. problem: what cannot be read, where something cannot.
    """
    rounds = rounds_of(folder)
    newest = rounds[-1]
    phase = next((phase for phase in PHASES if not newest.file(phase).exists()), None)
    told = {"folder": str(folder), "name": folder.name, "round": newest.number, "phase": phase, "last": None, "promoted": None}
    try:
        decided = [(each, facts) for each in rounds if (facts := each.of("decided"))]
        name = ((newest.of("collected") or {}).get("policy") or {}).get("name")
    except DamagedFile as damage:
        return told | {"problem": damage.message}
    last, yes = decided[-1:], [one for one in decided if one[1]["promoted"]][-1:]
    return told | {
        "name": name,
        "last": _some(last, "promoted", "verdict", "why"),
        "promoted": _some(yes, "version", "adapter_sha256"),
    }


def _some(decided: list[tuple[Round, Json]], *names: str) -> Json | None:
    return next(({"round": each.number} | {name: facts.get(name) for name in names} for each, facts in decided), None)


def learned_in(place: Path) -> list[Path]:
    """Return the folders of policies that have begun a round: the place itself, what lies in it, and in its folder learn."""
    folders = (place, *found_below(place, "*"), *found_below(place, "learn/*"))
    return [folder for folder in folders if found_below(folder, "rounds/*") and rounds_of(folder)]


def withdrawn_people(folder: Path) -> frozenset[str]:
    """Return the hashes of the people whose rows were withdrawn: what else comes of them is not taken."""
    file = folder / WITHDRAWN / "people.txt"
    return frozenset(file.read_text().split()) if file.exists() else frozenset()


def withdraw_person(folder: Path, person: str) -> None:
    """Take no row of them from now on."""
    people = sorted({*withdrawn_people(folder), hash_of(person)})
    (folder / WITHDRAWN).mkdir(parents=True, exist_ok=True)
    write_bytes(folder / WITHDRAWN / "people.txt", "".join(f"{one}\n" for one in people).encode())


def hash_of(person: str) -> str:
    """Return the name under which somebody stands who is to be forgotten."""
    return hashlib.sha256(person.encode()).hexdigest()[:16]


def taken_by(rounds: list[Round]) -> frozenset[tuple[str, str]]:
    """Return (place, hash) of every record that a round has taken."""
    return frozenset((one["place"], one["sha256"]) for each in rounds for one in read_exact_lines(each.arrived))


def disliked_by(rounds: list[Round]) -> frozenset[int]:
    """Return the `row_key` of every answer that people found bad or corrected, as the rounds heard it."""
    return frozenset(key for each in rounds for one in read_exact_lines(each.arrived) if (key := one.get("disliked")) is not None)


def as_kept(keys: frozenset[int], rounds: list[Round]) -> frozenset[int]:
    """Return the keys of rows as they came with those under which rounds keep them: the checks may have mended their texts."""
    if not keys:
        return keys
    pairs = (pair for each in rounds for pair in zip(read_exact_lines(each.arrived), read_exact_lines(each.fates), strict=False))
    return keys | {fate["key"] for one, fate in pairs if fate.get("key") is not None and one.get("row") and row_key(one["row"]) in keys}


def people_of(rounds: list[Round]) -> dict[int, str]:
    """Return whose each row is that the rounds have kept, by its `row_key`; "" where nobody was named."""
    fates = (fate for each in rounds for fate in read_exact_lines(each.fates))
    return {fate["key"]: fate["person"] for fate in fates if fate.get("key") is not None}


def carried_from(before: list[Round]) -> Round | None:
    """Return the round whose rows are tried again: the last that trained, if it was refused only because nothing could be told."""
    last = next((each for each in reversed(before) if not (each.of("judged") or {}).get("refused")), None)
    return last if last and (last.of("decided") or {}).get("carry") else None


def learned_by(rounds: list[Round], run: str | None) -> Iterator[Round]:
    """Yield the rounds whose rows a version has learned, the newest first: the one that made it, and those it started from."""
    by_run = {each.run.resolve(): each for each in rounds}
    while run and (found := by_run.get(Path(run).resolve())):
        yield found
        run = (found.of("trained") or {}).get("start_run")
