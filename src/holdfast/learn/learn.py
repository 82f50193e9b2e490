"""A round as a state machine on disk: collected, judged, trained, gated, decided, acknowledged. Each phase may be killed and done again."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from holdfast.base.errors import BLOCKED, Stop
from holdfast.base.files import Json, append_line, read_exact_lines, read_json, sha256, write_bytes, write_json
from holdfast.base.units import counted
from holdfast.data.collect.outfile import row_key
from holdfast.data.files.raw_row import json_line
from holdfast.export.registry import is_named, name_of, promote, read_registry, record_verdict, registry_file
from holdfast.learn.budget import make_room, refuse_no_room, time_is_up, trained_seconds
from holdfast.learn.gate import are_several, contradicted, decide, drifted, may_carry, measure, own_general
from holdfast.learn.judge_rows import DETAILS, ONE_PERSON, JudgedRows, judge_rows, related, round_config, seen_keys
from holdfast.learn.page import rounds_page
from holdfast.learn.policy import Policy
from holdfast.learn.rounds import (
    PHASES,
    Round,
    as_kept,
    carried_from,
    disliked_by,
    hash_of,
    learned_by,
    people_of,
    refuse_damaged,
    rounds_of,
    taken_by,
    withdrawn_people,
)
from holdfast.learn.sources import LOST, ArrivedRecord, acknowledge, arrived, without_unknown_ratings
from holdfast.learn.training import train
from holdfast.verify.stats import FEWEST

_LEAST_NEW = 8  # rows held out of a round, where it has twice as many


@dataclass(frozen=True)
class Learner:
    """A policy at work. after: told each phase that is done, by its name."""

    policy: Policy
    say: Callable[[str], None]
    after: Callable[[str], None] = lambda _: None

    @property
    def folder(self) -> Path:
        return Path(self.policy.folder or "")

    def next_round(self) -> tuple[Round | None, Json]:
        """Return the round that is not over, or one that begins now; else None, and what is waited for."""
        rounds = rounds_of(self.folder)
        refuse_damaged(rounds)
        if rounds and not rounds[-1].over:
            self.say(f"round {rounds[-1].number} goes on")
            return rounds[-1], {}
        self._refuse_other_list(rounds)
        gone = withdrawn_people(self.folder)
        missing: list[str] = []
        new = arrived(self.policy, taken_by(rounds), missing)
        came = [one.nobodys() if hash_of(one.person) in gone else one for one in new]
        came, unrated = without_unknown_ratings(self.policy, self._without_lost(came))
        judged = judge_rows(self.policy, came, seen_keys(rounds), disliked_by(rounds))
        waiting = {"rows": len(judged.kept), "rejected": judged.rejected, "needed": self.policy.round.rows, "unrated": unrated}
        waiting["one_person"] = judged.by_reason.get(ONE_PERSON, 0)
        if not self._begins(judged, rounds):
            return None, waiting | {"not_there": missing}
        if told := time_is_up(self.policy, rounds) or self._too_few_people(judged, came, rounds):
            return None, waiting | {"why": told}
        refuse_no_room(self.policy, rounds)
        most = self.policy.round.most
        if most and len(judged.kept) > most:
            came = came[: sorted(judged.kept)[most - 1] + 1]
        begun = Round(self.folder / "rounds" / f"{(rounds[-1].number if rounds else 0) + 1:04}")
        shutil.rmtree(begun.path, ignore_errors=True)  # of a round that was killed before it had begun
        begun.path.mkdir(parents=True)
        write_bytes(begun.arrived, b"".join(json_line(one.as_json()) for one in came))
        begun.done(
            "collected",
            {
                "time": round(time.time(), 3),
                "rows": len(came),
                "policy": self.policy.model_dump(),
                "models": str(registry_file(os.environ)),
            },
        )
        self.after("collected")
        return begun, waiting

    @property
    def lost(self) -> Path:
        """Entries that were trimmed from their stream before a round had their rows."""
        return self.folder / "lost.jsonl"

    def _without_lost(self, came: list[ArrivedRecord]) -> list[ArrivedRecord]:
        """Return the arrivals that have a row, or had one; record the others as lost, and say so once."""
        lost = [one for one in came if one.reason == LOST]
        for one in lost:
            append_line(self.lost, {"time": round(time.time(), 3), "place": one.place, "detail": one.detail}, durable=True)
        acknowledge(self.policy, [(one.source, one.entry) for one in lost if one.entry])
        if lost:
            self.say(f"! {counted(len(lost), 'message')} lost, trimmed from a stream before a round had them: {self.lost}")
        return [one for one in came if one.reason != LOST]

    def _too_few_people(self, judged: JudgedRows, came: list[ArrivedRecord], rounds: list[Round]) -> str:
        """Say that a round could never pass, whichever rows were held out, because too few people gave them; empty where it could."""
        known = people_of(rounds)
        carried = carried_from(rounds) if self.policy.replay.carried else None
        people = [came[number].person for number in judged.kept]
        people += [known.get(row_key(row), "") for row in read_exact_lines(carried.new)] if carried else []
        voices = len({*people} - {""}) + people.count("")
        if voices >= FEWEST or self._poisoned(judged) or not are_several(self.policy, {*known.values(), *people}):
            return ""
        told = (
            f"they wait for other people's: those of one person count as one, {voices} in all, and the gate can tell nothing of fewer than"
        )
        return f"{told} {FEWEST}; gate.by_person: false counts each row, and shows nothing of other people"

    def _begins(self, judged: JudgedRows, rounds: list[Round]) -> bool:
        wanted = self.policy.round
        if len(judged.kept) >= wanted.rows or self._poisoned(judged):
            return True
        if wanted.hours is None and wanted.at is None:
            return False
        last, now = self._waits_since(rounds), time.time()
        due = [now - wanted.hours * 3600 >= last] if wanted.hours else []
        due += [last_passed(wanted.at, now) > last] if wanted.at else []
        return len(judged.kept) >= wanted.least and (any(due) or last > now)  # after now: the clock was set back since

    def _waits_since(self, rounds: list[Round]) -> float:
        """Return when the last round began; before the first one, when the policy was looked at first, which is written down then."""
        if rounds:
            return float((rounds[-1].of("collected") or {}).get("time", 0.0))
        told = read_json(self.folder / "waiting.json")
        if told is None:
            write_json(self.folder / "waiting.json", told := {"time": round(time.time(), 3)})
        return float(told["time"])

    def _poisoned(self, judged: JudgedRows) -> bool:
        """True if a round's worth of rows has come of which most are unusable: such a round is refused as it is."""
        bad = judged.flood.total()
        total = bad + len(judged.kept)
        return total >= self.policy.round.rows and bad > self.policy.keep.rejected * total

    def finish(self, one: Round) -> Round:
        """Do the phases that are left."""
        todo = {
            "judged": self._judge,
            "trained": self._train,
            "gated": self._gate,
            "decided": self._decide,
            "acknowledged": self._acknowledge,
        }
        for phase in PHASES[1:]:
            if not one.file(phase).exists():
                one.done(phase, todo[phase](one))
                self.after(phase)
        make_room(self.policy, rounds_of(self.folder))
        self.write_page()
        return one

    @property
    def page(self) -> Path:
        return self.folder / "report.html"

    def write_page(self) -> None:
        """Write the page of all rounds that are over."""
        over = [each.answer() for each in rounds_of(self.folder) if each.over]
        write_bytes(self.page, rounds_page(self.policy.name, over, self.policy.gate.margin).encode())

    def _judge(self, one: Round) -> Json:
        """Judge the rows that came: write each row's fate, and the files that are trained and measured on."""
        came = [ArrivedRecord(**entry) for entry in read_exact_lines(one.arrived)]
        before = [each for each in rounds_of(self.folder) if each.number < one.number]
        known, heard = disliked_by(before), disliked_by([one])
        judged = judge_rows(self.policy, came, seen_keys(before), known)
        held = _held_out(judged.kept, judged.together, self.policy.gate.new)
        fates = []
        for number, entry in enumerate(came):
            fate = "rejected" if judged.reasons[number] else "held_out" if number in held else "trained"
            reason = judged.reasons[number]
            whose: Json = {"place": entry.place, "sha256": entry.sha256, "fate": fate, "domain": entry.domain, "person": entry.person}
            whose["key"] = row_key(judged.kept[number]) if number in judged.kept else None
            fates.append(whose | ({"reason": reason, "detail": entry.detail or DETAILS.get(reason, "")} if reason else {}))
        write_bytes(one.fates, b"".join(map(json_line, fates)))
        rows = [row for number, row in judged.kept.items() if number not in held]
        new = [judged.kept[number] for number in sorted(held)]
        carried = carried_from(before) if self.policy.replay.carried else None
        bad = as_kept(known | heard, before)
        tried = self._apart_from(new, _liked(carried.rows, bad) if carried else [], "carried")
        new += self._apart_from(rows, _liked(carried.new, bad) if carried else [], "carried held-out")
        rows += tried
        write_bytes(one.rows, b"".join(map(json_line, rows)))
        write_bytes(one.new, b"".join(map(json_line, new)))
        start = self._promoted_run()
        old, general = self._replayed(one, before, start, len(rows), bad)
        old = self._apart_from(new, old, "replayed")
        write_bytes(one.train, b"".join(map(json_line, rows + old)) + b"".join(line.encode() + b"\n" for line in general))
        counts = {"in": len(came), "kept": len(judged.kept), "rejected": judged.rejected, "replayed": len(old) + len(general) + len(tried)}
        replayed = {"old": len(old), "general": len(general), "carried": len(tried)}
        facts: Json = {"rows": counts, "held_out": len(held), "replayed": replayed, "start_run": start}
        facts |= {"carried": carried.number if carried else None}
        facts |= {"disliked_since": self._disliked_since(learned_by(before, start), as_kept(heard, before))}
        facts |= {"by_reason": judged.by_reason, "data_sha256": sha256(one.train), "refused": None}
        if self._poisoned(judged):
            bad_rows, (worst, count) = judged.flood.total(), judged.flood.most_common(1)[0]
            of = bad_rows + len(judged.kept)
            facts["refused"] = f"{bad_rows} of {of} rows are rejected, {count} of them as {worst}: nothing was trained on the rest"
        return facts

    def _apart_from(self, others: list[Json], rows: list[Json], what: str) -> list[Json]:
        """Return the rows that hang together with none of the others, so that none is measured on what is trained; say how many do not."""
        out = related(self.policy, rows, others)
        if out:
            self.say(f"{counted(len(out), f'{what} row')} left out: of one conversation, prompt or likeness across training and the gate")
        return [row for number, row in enumerate(rows) if number not in out]

    def _disliked_since(self, learned: Iterable[Round], bad: frozenset[int]) -> Json | None:
        """Count the rows that the version in place has learned and that people have found bad since; say so, None where there are none."""
        found = {each.number: count for each in learned if (count := sum(row_key(row) in bad for row in read_exact_lines(each.rows)))}
        if not found:
            return None
        count, numbers = sum(found.values()), sorted(found)
        what = f"! {counted(count, 'answer')} that round{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))} learned"
        self.say(f"{what} {'were' if count > 1 else 'was'} found bad since: not replayed any more; `holdfast models rollback` goes back")
        return {"rows": count, "rounds": numbers}

    def _replayed(self, one: Round, before: list[Round], start: str | None, new: int, bad: frozenset[int]) -> tuple[list[Json], list[str]]:
        """Draw old rows of the promoted version, and general ones, in their shares of all rows; by a hash, so again the same.

        bad: the keys of answers that people have found bad since; none of those.
        """
        shares = self.policy.replay
        total = new / (1 - shares.old - shares.general)
        pool = [row for each in learned_by(before, start) for row in _liked(each.rows, bad)]
        old = sorted(pool, key=lambda row: _draw(one.number, str(row_key(row))))[: round(shares.old * total)]
        lines = own_general(self.policy)[0]
        general = sorted(lines, key=lambda line: _draw(one.number, line))[: round(shares.general * total)]
        return old, general

    def _promoted_run(self) -> str | None:
        """Return where the version in place was trained, None where there is none. Raises Stop(1) where its run is not known."""
        current = read_registry(registry_file(os.environ)).current(self.policy.name)
        if current and not current.facts["run"]:
            text = f"{self.policy.name} {current.facts['version']} is in place, and no run is known of it to start from"
            raise Stop(BLOCKED, text, "promote a version that a run made, or roll back")
        return current.facts["run"] if current else None

    def _refuse_other_list(self, rounds: list[Round]) -> None:
        """Raise Stop(1) where the list of models knows nothing of what these rounds promoted: the next one would start from the base."""
        self._promoted_run()
        file = registry_file(os.environ)
        last = next((each for each in reversed(rounds) if (each.of("decided") or {}).get("promoted")), None)
        if last and (self.policy.name, (last.of("decided") or {})["version"]) not in read_registry(file).versions:
            told = (last.of("collected") or {}).get("models")
            text = f"{file} does not list what round {last.number} in {self.folder} promoted"
            raise Stop(BLOCKED, text, f"HOLDFAST_MODELS={told}" if told else "give the command in the folder where it was given before")

    def _train(self, one: Round) -> Json:
        judged = one.of("judged") or {}
        start = judged["start_run"]
        if judged["refused"]:
            return {"refused": judged["refused"], "start_run": start}
        _, settings = round_config(self.policy, one.train, Path(start, "adapter") if start else None)
        self.say(f"round {one.number}: training on {counted(judged['rows']['kept'] - judged['held_out'], 'new row')}")
        summary = train(self.policy.config, settings, one.run)
        facts = {"start_run": start, "adapter_sha256": summary.get("artifact_sha256"), "steps": summary.get("steps"), "refused": None}
        facts |= {"seconds": trained_seconds(one.run), "time": round(time.time(), 3)}
        if summary["status"] != "finished":
            facts["refused"] = f"its training was given up: {summary.get('reason')}"
        return facts

    def _gate(self, one: Round) -> Json:
        trained = one.of("trained") or {}
        if trained["refused"]:
            return {"refused": trained["refused"]}
        start = trained["start_run"]
        before = [each for each in rounds_of(self.folder) if each.number < one.number]
        people = people_of([*before, one])
        found = measure(self.policy, one.run, Path(start) if start else None, one.new, people, one.path, self.say)
        past = [each.of("gated") or {} for each in learned_by(before, start)]
        gate = self.policy.gate
        return found | {
            "drifted": drifted(found, past, max(gate.drift, gate.margin)),
            "contradicted": contradicted(found) if gate.contradiction else {},
        }

    def _decide(self, one: Round) -> Json:
        """Promote or refuse. A verdict is written down once for an adapter, and putting it in place twice is noticed."""
        found = one.of("gated") or {}
        if found.get("refused"):
            return {"promoted": False, "verdict": "cannot_tell", "version": None, "why": found["refused"]}
        fit, verdict, why = decide(found, self.policy.gate.margin, self.policy.gate.certain)
        promoted = fit
        file, name, hashes = registry_file(os.environ), self.policy.name, found["hashes"]
        version = record_verdict(file, name, hashes, found["against"], verdict)
        current = read_registry(file).current(name)
        there = bool(current and name_of(hashes) == name_of(current.facts))
        if promoted and not there and (not is_named(current.facts, found["against"]) if current else found["against"] is not None):
            promoted, why = (
                False,
                f"another version was put in place meanwhile ({current and current.facts['version']}); it was not measured against it",
            )
        elif promoted and not there:
            promote(file, name, version, None)
        carry = not promoted and (fit or may_carry(found, self.policy.gate.margin, self.policy.gate.certain))
        facts = {"promoted": promoted, "carry": carry, "verdict": verdict, "version": version, "why": why}
        return facts | {"against": found["against"], "adapter_sha256": hashes["adapter_sha256"]}

    def _acknowledge(self, one: Round) -> Json:
        """Confirm the rows' entries to their streams, only now that every row's fate is on the disk."""
        entries = [(entry["source"], entry["entry"]) for entry in read_exact_lines(one.arrived) if entry["entry"]]
        acknowledge(self.policy, entries)
        return {"entries": len(entries), "time": round(time.time(), 3)}


def last_passed(at: str, now: float) -> float:
    """Return the last moment up to `now` at which the local clock showed HH:MM. Both in seconds since 1970."""
    today = datetime.fromtimestamp(now).replace(hour=int(at[:2]), minute=int(at[3:]), second=0, microsecond=0)
    return max(one for one in (today.timestamp(), (today - timedelta(days=1)).timestamp()) if one <= now)


def untold(folder: Path) -> list[Round]:
    """Return rounds that are over and stood in no answer yet."""
    return [each for each in rounds_of(folder) if each.over and read_json(each.path / "told.json") is None]


def mark_told(rounds: list[Round]) -> None:
    for each in rounds:
        write_json(each.path / "told.json", {"time": round(time.time(), 3)})


def _held_out(kept: dict[int, Json], together: dict[int, int], share: float) -> set[int]:
    """Return the numbers of the rows that are held out, drawn by a hash of their content; rows that hang together stay together."""
    most = len(kept) // 2
    count = min(most, max(_LEAST_NEW, round(share * len(kept))))
    groups: dict[int, list[int]] = {}
    for number in sorted(kept, key=lambda number: _draw(0, str(row_key(kept[number])))):
        groups.setdefault(together.get(number, number), []).append(number)
    held: set[int] = set()
    for group in groups.values():
        if len(held) < count and len(held) + len(group) <= most:
            held.update(group)
    return held


def _liked(file: Path, bad: frozenset[int]) -> list[Json]:
    """Return the rows of a file whose answers nobody has found bad."""
    return [row for row in read_exact_lines(file) if row_key(row) not in bad]


def _draw(number: int, text: str) -> str:
    return hashlib.sha256(f"{number}:{text}".encode()).hexdigest()
