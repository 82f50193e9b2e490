"""When a round begins, and what is replayed in it."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from holdfast.base.errors import Stop
from holdfast.base.files import write_json
from holdfast.base.locks import hold
from holdfast.cli.commands import status
from holdfast.cli.main import main
from holdfast.export import registry
from holdfast.learn import forget, learn, training
from holdfast.learn.gate import general_lines
from holdfast.learn.judge_rows import JudgedRows
from holdfast.learn.learn import Learner
from holdfast.learn.policy import Policy
from holdfast.learn.rounds import PHASES, Round, rounds_of
from holdfast.run.attempt import close
from holdfast.run.folder import RunFolder


def learner(folder: Path, **wanted: Any) -> Learner:
    tree = {"name": "n", "config": "c.yaml", "sources": [{"files": "x"}], "gate": {"rows": "x"}, "round": wanted, "folder": str(folder)}
    return Learner(Policy.model_validate(tree), print)


def judged(kept: int, rejected: int = 0, reason: str = "near_duplicate") -> JudgedRows:
    return JudgedRows([""] * kept + [reason] * rejected, {number: {} for number in range(kept)}, {})


@pytest.mark.parametrize(
    ("what", "begins"),
    [
        (judged(19), False),
        (judged(20), True),
        (judged(5, 14), False),
        (judged(5, 15), True),  # a round's worth, most of it none: refused as it is, so that its rows do not come up for ever
        (judged(0, 100, "seen_before"), False),
    ],
)
def test_a_round_begins_with_enough_rows_or_with_a_flood(tmp_path: Path, what: JudgedRows, begins: bool) -> None:
    assert learner(tmp_path, rows=20)._begins(what, []) is begins


@pytest.mark.parametrize(
    ("ago_hours", "kept", "begins"),
    [(1, 10, False), (3, 10, True), (3, 9, False), (-100, 10, True)],
    ids=["too soon", "time is up", "of so few rows nothing could be told", "the clock was set back"],
)
def test_a_round_begins_when_its_time_is_up(tmp_path: Path, ago_hours: float, kept: int, begins: bool) -> None:
    last = Round(tmp_path / "rounds" / "0001")
    last.path.mkdir(parents=True)
    last.done("collected", {"time": time.time() - ago_hours * 3600})
    assert learner(tmp_path, rows=20, hours=2)._begins(judged(kept), [last]) is begins


@pytest.mark.parametrize("when", [{"hours": 2}, {"at": "03:00"}], ids=["hours", "at"])
def test_the_first_round_waits_from_the_first_look_on_and_not_for_one_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, berlin: None, when: dict[str, Any]
) -> None:
    """The first row that came began a round, which nothing could be told of."""
    began = datetime(2026, 6, 2, 1, 0, tzinfo=BERLIN).timestamp()
    for seconds, kept, begins in ((0, 12, False), (7100, 12, False), (7300, 1, False), (7300, 12, True)):
        monkeypatch.setattr(time, "time", lambda now=began + seconds: now)
        assert learner(tmp_path, rows=20, **when)._begins(judged(kept), []) is begins


BERLIN = ZoneInfo("Europe/Berlin")


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("last", "now", "kept", "begins"),
    [
        ("2026-06-01 12:00", "2026-06-02 02:59", 10, False),
        ("2026-06-01 12:00", "2026-06-02 03:00", 10, True),
        ("2026-06-01 12:00", "2026-06-02 03:00", 0, False),
        ("2026-06-02 03:00", "2026-06-02 23:59", 10, False),
        ("2026-06-02 02:58", "2026-06-04 01:00", 10, True),  # the machine was off
        ("2026-10-24 12:00", "2026-10-25 02:59", 10, False),  # the night with an hour more
        ("2026-10-24 12:00", "2026-10-25 03:00", 10, True),
        ("2026-03-28 12:00", "2026-03-29 01:59", 10, False),  # the night with an hour less
        ("2026-03-28 12:00", "2026-03-29 03:00", 10, True),
        ("2026-06-03 12:00", "2026-06-02 02:00", 10, True),  # the clock was set back
        (None, "2026-06-02 12:00", 10, False),  # it was looked at first then
    ],
)
def test_a_round_begins_at_its_time_of_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, berlin: None, last: str | None, now: str, kept: int, begins: bool
) -> None:
    def seconds(text: str) -> float:
        return datetime.fromisoformat(text).replace(tzinfo=BERLIN).timestamp()

    monkeypatch.setattr(time, "time", lambda: seconds(now))
    before = Round(tmp_path / "rounds" / "0001")
    before.path.mkdir(parents=True)
    if last:
        before.done("collected", {"time": seconds(last)})
    assert learner(tmp_path, rows=20, at="03:00")._begins(judged(kept), [before] if last else []) is begins


@pytest.mark.parametrize("at", [780, 3, "3:00", "24:00", "03:60", "soon"])
def test_what_is_no_time_of_day_is_refused(tmp_path: Path, at: Any) -> None:
    with pytest.raises(ValueError, match="a time of day from"):
        learner(tmp_path, at=at)


def test_status_tells_the_newest_round_its_phase_the_last_verdict_and_what_was_promoted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "runs" / "learn" / "helper"
    told: dict[str, Any] = {"why": "new rows are better", "carry": False}
    for number, phases in ((1, len(PHASES)), (2, len(PHASES)), (3, 2)):
        one = Round(place / "rounds" / f"{number:04}")
        one.path.mkdir(parents=True)
        decided = {1: {"promoted": True, "verdict": "better", "version": 1, "adapter_sha256": "a" * 64}}
        refused = {"promoted": False, "verdict": "cannot_tell", "version": None, "why": "119 of 120 rows are rejected"}
        facts = {"collected": {"policy": {"name": "helper"}}, "decided": told | decided.get(number, refused)}
        for phase in PHASES[:phases]:
            one.done(phase, facts.get(phase, {}))
    for where in (tmp_path / "runs", place, place.parent):
        code, answer = status.run(argparse.Namespace(place=where, json=False))
        [now] = answer["learn"]
        assert (code, now["name"], now["round"], now["phase"]) == (0, "helper", 3, "trained")
        assert now["last"] == {"round": 2, "promoted": False, "verdict": "cannot_tell", "why": refused["why"]}
        assert now["promoted"] == {"round": 1, "version": 1, "adapter_sha256": "a" * 64}
        said = capsys.readouterr().out
        assert "learn helper: round 3, until it is trained" in said and "cannot tell, not promoted: 119 of 120 rows" in said
        assert "version 1 of round 1, adapter aaaaaaaaaaaa" in said
    with pytest.raises(Stop):
        status.run(argparse.Namespace(place=tmp_path / "nothing", json=False))
    damaged = Round(place / "rounds" / "0001").file("decided")
    damaged.write_bytes(b"")
    _, answer = status.run(argparse.Namespace(place=place, json=False))
    told = f"{damaged} is damaged: it holds no JSON object"
    assert (answer["learn"][0]["problem"], answer["learn"][0]["promoted"]) == (told, None) and told in capsys.readouterr().out
    with pytest.raises(Stop, match="is damaged"):
        learner(place)._refuse_other_list(rounds_of(place))


def test_a_plan_of_what_is_forgotten_that_is_damaged_is_not_made_anew(tmp_path: Path) -> None:
    """Part of it may be done already: a new one would no longer know which runs had learned the rows."""
    plan = tmp_path / "plan.json"
    plan.write_text("{")
    with pytest.raises(Stop, match="is damaged"):
        forget._plan(learner(tmp_path), [], "somebody", plan)


def test_a_round_whose_beginning_was_lost_costs_no_later_round_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (1, 3):  # 0002/1-collected.json is gone
        one = Round(tmp_path / "rounds" / f"{number:04}")
        one.path.mkdir(parents=True)
        for phase in PHASES:
            one.done(phase, {})
    monkeypatch.setattr(learn, "arrived", lambda policy, taken, missing: [])
    monkeypatch.setattr(Learner, "_begins", lambda *_: True)
    monkeypatch.setattr(learn, "judge_rows", lambda *_: judged(0))
    monkeypatch.setattr(learn, "refuse_no_room", lambda *_: None)
    begun, _ = learner(tmp_path).next_round()
    assert begun and begun.number == 4 and [one.number for one in rounds_of(tmp_path)] == [1, 3, 4]


def in_place(file: Path, run: str | None) -> None:
    hashes = {"run": run, "base": "b", "adapter_sha256": "a" * 64, "behaviour_sha256": "b" * 64}
    registry.promote(file, "n", registry.record_verdict(file, "n", hashes, None, "better"), None)


def test_rounds_whose_versions_the_list_of_models_does_not_know_are_not_begun_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_MODELS", str(tmp_path / "here.jsonl"))
    in_place(tmp_path / "here.jsonl", "/runs/1")
    last = Round(tmp_path / "rounds" / "0001")
    last.path.mkdir(parents=True)
    last.done("collected", {"time": 0.0, "models": str(tmp_path / "here.jsonl")})
    last.done("decided", {"promoted": True, "version": 1})
    learner(tmp_path)._refuse_other_list([last])
    monkeypatch.setenv("HOLDFAST_MODELS", str(tmp_path / "there.jsonl"))
    with pytest.raises(Stop, match=r"there\.jsonl does not list what round 1 .* promoted") as stop:
        learner(tmp_path)._refuse_other_list([last])
    assert stop.value.hint == f"HOLDFAST_MODELS={tmp_path / 'here.jsonl'}"


def test_a_version_in_place_without_a_run_gives_no_round_to_start_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_MODELS", str(tmp_path / "here.jsonl"))
    in_place(tmp_path / "here.jsonl", None)
    with pytest.raises(Stop, match="no run is known of it"):
        learner(tmp_path).next_round()


def test_a_training_that_was_being_started_when_its_command_was_killed_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its supervisor takes the lock only now: the round is no failure, and no service ends for it."""
    calls, holding = [], ExitStack()
    (tmp_path / "run").mkdir()

    def run(*_: object) -> tuple[int, bytes]:
        calls.append(1)
        if len(calls) == 1:
            holding.enter_context(hold(RunFolder(tmp_path / "run").supervisor_lock, wait=False))
            return 1, b'{"error": "is held by process 9"}'
        return 0, b'{"status": "finished"}'

    monkeypatch.setattr(training, "_run", run)
    monkeypatch.setattr(time, "sleep", lambda _: holding.close())
    assert training.train("c.yaml", [], tmp_path / "run") == {"status": "finished"}
    assert len(calls) == 2


@pytest.mark.parametrize(
    ("told", "written", "ended", "of_its_steps"),
    [
        ("loss is NaN", "loss is NaN", {"kind": "nonfinite"}, True),
        ("the disk is full", "the disk is full", {"kind": "disk_full"}, False),
        ("a signal", "a signal", {"kind": "killed", "disk_free_bytes": 0}, False),
        ("no GPU", "no GPU", {"kind": "device_gone"}, False),
        ("the disk of RUN is full after step 3", None, None, False),
        ("the disk of RUN is full after step 3", "loss is NaN", {"kind": "nonfinite"}, False),  # of an earlier command
    ],
)
def test_a_round_is_not_refused_for_a_full_disk_or_a_lost_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str, written: str | None, ended: dict[str, Any] | None, of_its_steps: bool
) -> None:
    """Its rows are kept for the same command; a run that was given up for its own steps refuses them."""
    (tmp_path / "run").mkdir()
    if written:
        write_json(tmp_path / "run" / "summary.json", {"status": "gave_up", "reason": written})
    if ended:
        (tmp_path / "run" / "attempts" / "001").mkdir(parents=True)
        facts = {"attempt": 1, "ending": {"kind": ended["kind"]}, "disk_free_bytes": ended.get("disk_free_bytes")}
        close(tmp_path / "run" / "attempts" / "001", facts)
    answer = {"status": "gave_up", "reason": told}
    monkeypatch.setattr(training, "_run", lambda command, log: (3, json.dumps(answer).encode()))
    if of_its_steps:
        assert training.train("c.yaml", [], tmp_path / "run") == answer
    else:
        with pytest.raises(Stop, match="the round goes on") as stopped:
            training.train("c.yaml", [], tmp_path / "run")
        assert stopped.value.code == 3 and told in stopped.value.message


def test_a_rounds_hours_are_written_down_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = Round(tmp_path / "rounds" / "0001")
    one.run.mkdir(parents=True)
    one.done("judged", {"refused": None, "start_run": None, "rows": {"kept": 9}, "held_out": 1})

    def trains(*_: Any) -> dict[str, Any]:
        (one.run / "steps.jsonl").write_text("".join(json.dumps({"step": step, "seconds": 2.5}) + "\n" for step in (1, 2)))
        return {"status": "finished", "steps": 2}

    monkeypatch.setattr(learn, "train", trains)
    monkeypatch.setattr(learn, "round_config", lambda *_: (None, []))
    assert learner(tmp_path)._train(one)["seconds"] == 5.0


def test_nobody_is_nobody_to_forget(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--forget "$WHO"` without that variable would take every row that names no person, now and later."""
    assert main(["learn", str(tmp_path / "policy.yaml"), "--forget", "", "--yes"]) == 2
    assert "names nobody" in capsys.readouterr().err


def test_a_general_row_is_one_line_whatever_unicode_parts_lines_by(tmp_path: Path) -> None:
    rows = [{"prompt": "one\u2028two", "completion": "a\x85b\x0cc"}, {"prompt": "x", "completion": "y"}]
    text = "\n\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\r\n"
    (tmp_path / "general.jsonl").write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert [json.loads(line) for line in general_lines(str(tmp_path / "general.jsonl"))] == rows
