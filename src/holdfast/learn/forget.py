"""Withdraw a person's rows: what that costs, then the rounds that learned them trained again from the last state before, without them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from holdfast.base.errors import BLOCKED, Stop
from holdfast.base.files import Json, read_exact_lines, write_bytes, write_json
from holdfast.base_model.folder import read_model
from holdfast.data.collect.outfile import row_key
from holdfast.data.files.raw_row import json_line
from holdfast.export.registry import name_of, promote, read_registry, record_verdict, registry_file, withdraw
from holdfast.export.subject import read_subject
from holdfast.learn.judge_rows import round_config
from holdfast.learn.learn import Learner
from holdfast.learn.rounds import (
    WITHDRAWN,
    Round,
    hash_of,
    learned_by,
    refuse_damaged,
    rounds_of,
    taken_by,
    withdraw_person,
    written,
)
from holdfast.learn.sources import arrived
from holdfast.learn.training import train
from holdfast.run.folder import RunFolder
from holdfast.serve.experts import experts_folder
from holdfast.supervision.preparation.rows import token_cache_of


def price(learner: Learner, person: str) -> Json:
    """Compute the price: how many rows, which rounds train again, and the time they first took. Raises Stop(1) in the middle of a round."""
    rounds = rounds_of(learner.folder)
    refuse_damaged(rounds)
    if rounds and not rounds[-1].over:
        raise Stop(BLOCKED, f"round {rounds[-1].number} is not over", "finish it first with the same command without --forget")
    rows = sum(fate["person"] == person and fate["fate"] != WITHDRAWN for each in rounds for fate in read_exact_lines(each.fates))
    again = _again(learner, rounds, person)
    steps = [row for each in again for row in RunFolder(each.run).steps()]
    seconds = sum(float(row.get("seconds") or 0.0) for row in steps)
    waiting = sum(one.person == person for one in arrived(learner.policy, taken_by(rounds)))
    answer: Json = {"person": person, "rows": rows, "waiting": waiting, "rounds_again": [each.number for each in again]}
    old = [*again, *_others(rounds, again, _keys(rounds, person))]
    exports = [{"path": one["path"], "kind": one["kind"]} for one in _exports(learner, {str(each.run) for each in old})]
    return answer | {"steps": len(steps), "seconds": seconds, "exports": exports}


def forget(learner: Learner, person: str) -> int | None:
    """Do it; the version that is in place now, None where no promoted one had learned them. Killed in the middle, it is given again."""
    rounds = rounds_of(learner.folder)
    work = learner.folder / WITHDRAWN / hash_of(person)
    withdraw_person(learner.folder, person)
    plan = _plan(learner, rounds, person, work / "plan.json")
    keys, start = set(plan["keys"]), plan["start_run"]
    again = [each for each in rounds if each.number in plan["rounds"]]
    version, done = None, []
    for each in again:
        if all(row_key(row) in keys for row in read_exact_lines(each.rows)):
            nothing = {"start_run": start, "run": None, "adapter_sha256": None, "refused": "every row of it was withdrawn"}
            done.append((each, nothing))
            continue
        folder = work / each.path.name
        folder.mkdir(parents=True, exist_ok=True)
        rows = folder / "train.jsonl"
        write_bytes(rows, b"".join(json_line(row) for row in read_exact_lines(each.train) if row_key(row) not in keys))
        run = folder / "run"
        _, settings = round_config(learner.policy, rows, Path(start, "adapter") if start else None)
        learner.say(f"round {each.number}: training again without them")
        summary = train(learner.policy.config, settings, run)
        if summary["status"] != "finished":
            raise Stop(
                BLOCKED, f"round {each.number} cannot be trained again: {summary.get('reason')}", f"read {run}; nothing was promoted"
            )
        done.append((each, {"start_run": start, "run": str(run), "adapter_sha256": summary["artifact_sha256"], "refused": None}))
        start = str(run)
    if again and start:
        version = _put_in_place(learner, Path(start))
    withdraw(registry_file(os.environ), learner.policy.name, plan["old_runs"])
    for each, facts in done:
        each.done("trained", (each.of("trained") or {}) | facts)
    for old in map(Path, plan["old_runs"]):
        trained_again = old.is_relative_to(learner.folder / WITHDRAWN)  # for somebody else: the rows it learned lie beside it
        shutil.rmtree(old.parent if trained_again else old, ignore_errors=True)
    if plan["keys"]:
        for old in [*(experts_folder(Path(run)) for run in plan["old_runs"]), *(each.experts for each in rounds)]:
            shutil.rmtree(old, ignore_errors=True)  # each has learned rows of every round before it; the next command makes them again
    _remove(rounds, person, keys, {str(facts["run"]) for _, facts in done})
    _forget_tokens(learner)
    learner.write_page()
    (work / "plan.json").unlink()
    return version


def _exports(learner: Learner, runs: set[str]) -> list[Json]:
    """List the exports of versions that have learned the rows: each stays where it is."""
    listed = read_registry(registry_file(os.environ)).listed()
    return [export for one in listed if one["name"] == learner.policy.name and one["run"] in runs for export in one["exports"]]


def _plan(learner: Learner, rounds: list[Round], person: str, file: Path) -> Json:
    """Return the plan, written down before anything is done: a kill in the middle changes none of it."""
    plan = written(file)
    if plan is None:
        again = _again(learner, rounds, person)
        start = (again[0].of("trained") or {}).get("start_run") if again else None
        plan = {"rounds": [each.number for each in again], "start_run": start}
        plan["old_runs"] = [str(each.run) for each in [*again, *_others(rounds, again, _keys(rounds, person))]]
        plan["keys"] = sorted(_keys(rounds, person))
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, plan)
    return plan


def _again(learner: Learner, rounds: list[Round], person: str) -> list[Round]:
    """Return the promoted version's rounds from the first one that had a row of theirs, in order."""
    current = read_registry(registry_file(os.environ)).current(learner.policy.name)
    line = [*learned_by(rounds, current.facts["run"] if current else None)][::-1]
    keys = _keys(rounds, person)
    first = next((at for at, each in enumerate(line) if _holds(each, keys)), len(line))
    return line[first:]


def _others(rounds: list[Round], again: list[Round], keys: set[int]) -> list[Round]:
    """Return the other rounds whose adapters have learned a row of theirs: those of versions that were rolled back must not come back."""
    learned = {each.number for each in rounds if any(_holds(one, keys) for one in learned_by(rounds, str(each.run)))}
    return [each for each in rounds if each.number in learned - {one.number for one in again} and each.run.exists()]


def _holds(one: Round, keys: set[int]) -> bool:
    """True if a row was trained or measured on: its own, or one carried over from a round before."""
    return any(row_key(row) in keys for file in (one.train, one.new) if file.exists() for row in read_exact_lines(file))


def _had(each: Round, person: str) -> bool:
    return any(fate["person"] == person and fate["fate"] in ("trained", "held_out") for fate in read_exact_lines(each.fates))


def _keys(rounds: list[Round], person: str) -> set[int]:
    """Return the hashes of their rows: as they came, and as they were trained and measured on, which the checks may have mended."""
    found = {row_key(one["row"]) for each in rounds for one in read_exact_lines(each.arrived) if one["person"] == person and one["row"]}
    fates = (one for each in rounds for one in read_exact_lines(each.fates))
    found |= {one["key"] for one in fates if one["person"] == person and one["key"] is not None}
    return found


def _put_in_place(learner: Learner, run: Path) -> int:
    file, name, hashes = registry_file(os.environ), learner.policy.name, read_subject(run).hashes()
    version = record_verdict(file, name, hashes, None, "cannot_tell")
    current = read_registry(file).current(name)
    if not current or name_of(current.facts) != name_of(hashes):
        promote(file, name, version, "rows were withdrawn")
    return version


def _remove(rounds: list[Round], person: str, keys: set[int], kept: set[str]) -> None:
    """Take what they said out of every file of the rounds; that something stood there, and its hash, stays: it is not taken again.

    kept: runs that were trained again without it, also those of refused rounds that somebody has put in place by hand.
    """
    for each in rounds:
        if not _had(each, person) and not any(one["person"] == person for one in read_exact_lines(each.arrived)):
            if _holds(each, keys):
                _strip(each, keys)
            continue
        came = [one | _NOTHING if one["person"] == person else one for one in read_exact_lines(each.arrived)]
        gone: Json = {"fate": WITHDRAWN, "person": "", "key": None}
        fates = [one | gone if one["person"] == person else one for one in read_exact_lines(each.fates)]
        _strip(each, keys)
        if not (each.of("decided") or {}).get("promoted") and str(each.run) not in kept:
            shutil.rmtree(each.run, ignore_errors=True)
        write_bytes(each.fates, b"".join(map(json_line, fates)))
        write_bytes(each.arrived, b"".join(map(json_line, came)))


def _forget_tokens(learner: Learner) -> None:
    """Clear the cache of what was tokenised as the rounds are: its shards hold rows as tokens, and are made again where they are needed."""
    config, _ = round_config(learner.policy, Path("train.jsonl"))
    if cache := token_cache_of(config, read_model(config.model)):
        shutil.rmtree(cache, ignore_errors=True)


_NOTHING: Json = {"row": None, "reason": WITHDRAWN, "detail": "", "person": "", "disliked": None}


def _strip(one: Round, keys: set[int]) -> None:
    """Take rows out of what a round trained and was measured on."""
    for file in (one.train, one.rows, one.new):
        if file.exists():
            write_bytes(file, b"".join(json_line(row) for row in read_exact_lines(file) if row_key(row) not in keys))
    for name in ("gate.jsonl", "training.log"):
        (one.path / name).unlink(missing_ok=True)
