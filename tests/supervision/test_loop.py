"""The loop above the trainer, told as sentences: how attempts end, what the lab says, what is done then. No process starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.files import Json, read_json, read_lines
from holdfast.diagnosis.divergence import FROM_THE_START, PATIENCE
from holdfast.run.folder import RunFolder
from holdfast.run.timeline import Entry, read_timeline
from holdfast.run.types import Verdict
from support.world import STEP_S, USUAL, Ends, FakeWorld, Point, Told, commit, left_behind, new_run, play, relaunch, verdict

# ---- how an attempt ends


def finishes(*losses: float) -> Ends:
    return Ends("finished", 0, losses)


def ends_before_it_is_asked(*losses: float) -> Ends:
    return Ends("finished", 0, losses, deaf=True)


def killed(*losses: float, **more: Any) -> Ends:
    """From outside."""
    return Ends("killed", -9, losses, **more)


def crashes(*losses: float, **more: Any) -> Ends:
    return Ends("killed", -6, losses, **more)


def raises(*losses: float, **more: Any) -> Ends:
    return Ends("error", 1, losses, **more)


def stops(*losses: float) -> Ends:
    return Ends("interrupted", 130, losses)


def damaged(sound: int) -> Ends:
    facts = {"step": 5, "sound": sound, "damaged": ["the checkpoint of step 5 is damaged: t holds nan"]}
    return Ends("damaged", 69, facts=facts)


FIVE = [USUAL] * 5
GONE = Ends("device_gone", 71, step=0, facts={"reason": "torch finds no GPU"})
REFUSES = Ends("refused", 68, facts={"cause": "no_learning_signal", "reason": "nothing to learn", "hint": "other rows"})
FULL = Ends("disk_full", 66, failure_report={"disk_free_bytes": 0})
SPIKE = [*[USUAL] * 60, *[9.0] * (PATIENCE + 5)]
LATE_SPIKE = [*[USUAL] * (FROM_THE_START + 20), *[9.0] * (PATIENCE + 5)]

# ---- what the lab says

EAGER = verdict("setting", remedy="eager-attention", settings={"attention": "eager"})
SDMA_OFF = verdict("setting", remedy="sdma-off", env={"HSA_ENABLE_SDMA": "0"})
ROW = verdict("rows", remedy="quarantine", rows=(7,), sources=("rows.jsonl:8",))
TRANSIENT = verdict("transient", odds=(0, 3))
UNCERTAIN = verdict("uncertain", odds=(3, 3))
STATE = verdict("state", remedy="rollback", to=0, cause="hardware_fault")
WEIGHTS = verdict("weights", cause="nonfinite_numerics")
STUCK = verdict("stuck")
RATE = verdict("setting", remedy="rollback", settings={"lr_factor": 0.05})


@dataclass(frozen=True)
class Story:
    """`remedies`: what was decided after each death, in order."""

    says: str
    script: Sequence[Ends]
    end: str
    remedies: Sequence[str | None] = ()
    lab: Sequence[Verdict] = ()
    run: Json | None = None  # keys of the config's `run`


NO_LAB = {"trials": 0}
STORIES = [
    Story("an attempt that trains to its last step is the end", [finishes(*FIVE)], "finished"),
    Story("a death after progress is a resume", [killed(*FIVE), finishes(USUAL)], "finished", ["resume"]),
    Story(
        "a hundred kills that each made progress stop no run",
        [*[killed(USUAL)] * 100, finishes(USUAL)],
        "finished",
        ["resume"] * 100,
    ),
    Story("the same crash three times in a row ends a run", [crashes()] * 3, "gave up", ["resume", "resume", "none"], run=NO_LAB),
    Story("a kill from outside is met with more patience", [killed()] * 8, "gave up", [*["resume"] * 7, "none"], run=NO_LAB),
    Story(
        "causes that alternate without progress end it after twenty",
        [killed(), raises()] * 10,
        "gave up",
        [*["resume"] * 19, "none"],
        run=NO_LAB,
    ),
    Story(
        "progress in between starts both ledgers anew",
        [*[crashes()] * 2, crashes(USUAL), *[crashes()] * 3],
        "gave up",
        [*["resume"] * 4, "resume", "none"],
        run=NO_LAB,
    ),
    Story(
        "deaths before the first step are no case for the lab",
        [crashes(step=0)] * 3,
        "gave up",
        ["resume", "resume", "none"],
    ),
    Story(
        "the second crash in a step is tried in the lab, and its remedy goes on",
        [crashes(), crashes(), finishes(USUAL)],
        "finished",
        ["resume", "eager-attention"],
        lab=[EAGER],
    ),
    Story(
        "of kills from outside it is the third",
        [killed(), killed(), killed(), finishes(USUAL)],
        "finished",
        ["resume", "resume", "eager-attention"],
        lab=[EAGER],
    ),
    Story(
        "a remedy of the environment goes on, too",
        [crashes(), crashes(), finishes(USUAL)],
        "finished",
        ["resume", "sdma-off"],
        lab=[SDMA_OFF],
    ),
    Story(
        "a row that is to blame is left out",
        [crashes(), crashes(), finishes(USUAL)],
        "finished",
        ["resume", "quarantine"],
        lab=[ROW],
    ),
    Story(
        "what went through in the lab is started again, up to eight times, with one more look before the end",
        [crashes()] * 8,
        "gave up",
        [*["resume"] * 7, "none"],
        lab=[TRANSIENT, UNCERTAIN],
    ),
    Story(
        "what the lab cannot tell runs into the ledger",
        [crashes()] * 3,
        "gave up",
        ["resume", "resume", "none"],
        lab=[UNCERTAIN],
    ),
    Story(
        "a damaged state is left for an older one",
        [crashes(), crashes(), finishes(USUAL)],
        "finished",
        ["resume", "rollback"],
        lab=[STATE],
    ),
    Story("weights that fail from every state end a run", [crashes()] * 2, "gave up", ["resume", "none"], lab=[WEIGHTS]),
    Story("a trial that cannot be ended ends the run", [crashes()] * 2, "gave up", ["resume", "none"], lab=[STUCK]),
    Story("what the trainer refuses is not tried again", [REFUSES], "gave up", ["none"]),
    Story("a disk that takes no bytes ends a run", [killed(USUAL), FULL], "gave up", ["resume", "none"]),
    Story(
        "committed steps without a state are computed again",
        [killed(*FIVE), Ends("no_state", 65, facts={"step": 5, "reason": "no state"}), finishes(USUAL)],
        "finished",
        ["resume", "rollback"],
    ),
    Story("they end a run where the beginning is far", [Ends("no_state", 65, facts={"step": 241, "reason": "none"})], "gave up", ["none"]),
    Story("a trainer that cannot be killed ends a run", [Ends("stuck", facts={"reason": "stuck"})], "gave up", ["none"]),
    Story("a hang is the program's own doing", [Ends("hang", -9)] * 3, "gave up", ["resume", "resume", "none"], run=NO_LAB),
    Story(
        "an attempt that never started is somebody else's doing",
        [*[Ends("never_started", step=0)] * 7, finishes(USUAL)],
        "finished",
        ["resume"] * 7,
    ),
    Story(
        "a state that training cannot have made is rolled back",
        [killed(*FIVE), damaged(3), finishes(USUAL)],
        "finished",
        ["resume", "rollback"],
    ),
    Story(
        "damage that comes again after three rollbacks ends a run",
        [killed(*FIVE), *[damaged(4)] * 4],
        "gave up",
        ["resume", *["rollback"] * 3, "none"],
    ),
    Story(
        "a GPU that is away is waited for",
        [killed(USUAL), GONE, GONE, finishes(USUAL)],
        "finished",
        ["resume", "wait", "wait"],
    ),
    Story(
        "a GPU that stays away ends a run",
        [GONE] * 7,
        "gave up",
        [*["wait"] * 6, "none"],
        run={"device_s": 60},
    ),
    Story(
        "or the run goes on on the CPU, where that is allowed",
        [GONE, GONE, finishes(USUAL)],
        "finished",
        ["wait", "cpu"],
        run={"device_s": 1, "allow_cpu": True},
    ),
    Story(
        "a GPU that was away explains no other death",
        [crashes(), *[GONE] * 4, crashes(), crashes()],
        "gave up",
        ["resume", *["wait"] * 4, "resume", "none"],
        run=NO_LAB,
    ),
    Story(
        "a loss that left its level for good is taken back, with rows left out where the lab accuses them",
        [stops(*SPIKE), finishes(USUAL)],
        "finished",
        ["rollback"],
        lab=[verdict("rows", remedy="rollback", rows=(7,), sources=("rows.jsonl:8",))],
    ),
    Story(
        "without trials it is taken back at half the rate",
        [stops(*SPIKE), finishes(USUAL)],
        "finished",
        ["rollback"],
        run=NO_LAB,
    ),
    Story(
        "a run that ends in such trouble is not over",
        [ends_before_it_is_asked(*SPIKE), finishes(USUAL)],
        "finished",
        ["rollback"],
        lab=[RATE],
    ),
    Story(
        "three rollbacks that cured nothing end a run",
        [*[stops(*SPIKE)] * 4],
        "gave up",
        [*["rollback"] * 3, "none"],
        lab=[RATE] * 4,
    ),
    Story(
        "a run that was at its end by then is finished as it is",
        [*[stops(*SPIKE)] * 3, ends_before_it_is_asked(*SPIKE)],
        "finished",
        [*["rollback"] * 3, "none"],
        lab=[RATE] * 4,
    ),
    Story(
        "where no state from before is left the run goes on as it is, and is not stopped for it again",
        [stops(*LATE_SPIKE), killed(9.0), finishes(9.0)],
        "finished",
        ["none", "resume"],
    ),
    Story("at its end it is finished as it is", [ends_before_it_is_asked(*LATE_SPIKE)], "finished", ["none"]),
    Story(
        "trials of the course that cannot be ended end the run",
        [stops(*SPIKE)],
        "gave up",
        ["none"],
        lab=[STUCK],
    ),
    Story(
        "a run that may not go back is not looked at for that",
        [finishes(*SPIKE)],
        "finished",
        run={"rollback": False},
    ),
    Story("somebody else's wish that the trainer stop is a wish, too", [stops(*FIVE)], "stopped", [None]),
]


def told(tmp_path: Path, story: Story, stop_at: Point | None = None) -> Told:
    return play(new_run(tmp_path / "run", **(story.run or {})), FakeWorld(story.script, story.lab, stop_at))


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.says)
def test_story(tmp_path: Path, story: Story) -> None:
    seen = told(tmp_path, story)
    assert (seen.end, seen.remedies) == (story.end, list(story.remedies)), seen.said
    assert not list(seen.world.script) and not list(seen.world.verdicts), "the story has more to tell"


# ---- what a decision does to the run


def test_a_setting_that_helped_holds_from_the_failing_step_on(tmp_path: Path) -> None:
    script = [crashes(*FIVE), crashes(), finishes(USUAL)]
    seen = told(tmp_path, Story("", script, "finished", lab=[EAGER]))
    assert read_timeline(seen.run.timeline_file)[1:] == [
        Entry(6, {"attention": "eager"}, "step 6 goes through with attention = eager; continuing with that")
    ]
    assert [launch.settings.attention for launch in seen.world.launches] == ["sdpa", "sdpa", "eager"]
    (applied,) = seen.events("remedy_applied")
    assert (applied["step"], applied["remedy"], applied["cause"], applied["evidence"]) == (6, "eager-attention", "native_crash", "seen")


def test_a_variable_that_helped_is_in_the_environment_of_the_next_attempt(tmp_path: Path) -> None:
    seen = told(tmp_path, Story("", [crashes(), crashes(), finishes()], "finished", lab=[SDMA_OFF]))
    assert [launch.env for launch in seen.world.launches] == [{}, {}, {"HSA_ENABLE_SDMA": "0"}]


def test_a_row_that_is_left_out_is_on_record_with_the_evidence(tmp_path: Path) -> None:
    seen = told(tmp_path, Story("", [crashes(*FIVE), crashes(), finishes()], "finished", lab=[ROW]))
    assert read_timeline(seen.run.timeline_file)[-1].settings == {"quarantine": [7]}
    assert list(read_lines(seen.run.quarantine_file)) == [
        {"file": "rows.jsonl", "line": 8, "reason": "killed by SIGABRT", "evidence": "seen", "step": 6}
    ]


def test_a_remedy_whose_cause_comes_back_is_refuted(tmp_path: Path) -> None:
    script = [crashes(), crashes(), crashes(USUAL), finishes()]
    seen = told(tmp_path, Story("", script, "finished", lab=[EAGER]))
    assert [event["remedy"] for event in seen.events("remedy_refuted")] == ["eager-attention"]


def test_a_rollback_takes_committed_steps_back_under_the_settings_that_helped(tmp_path: Path) -> None:
    seen = told(tmp_path, Story("", [stops(*SPIKE), finishes(*FIVE)], "finished", lab=[RATE]))
    (back,) = seen.events("rolled_back")
    assert (back["step"], back["to"], back["settings"]) == (len(SPIKE), 0, {"lr_factor": 0.05})
    assert seen.run.committed() == 5
    assert seen.world.trials == ["the course since step 61, from step 0"]
    assert seen.world.launches[-1].settings.lr_factor == 0.05
    failure_report = read_json(seen.run.attempt(1) / "wreck.json") or {}
    assert failure_report["diagnosis"]["cause"] == "divergence" and failure_report["verdict"]["kind"] == "setting"


@pytest.mark.parametrize("then", [killed(), Ends("vanished"), Ends("never_started")])
def test_a_gpu_is_not_said_to_be_back_by_a_start_that_came_to_nothing(tmp_path: Path, then: Ends) -> None:
    seen = told(tmp_path, Story("", [GONE, GONE, then, finishes(USUAL)], "finished"))
    (back,) = seen.events("device_back")
    assert back["after_seconds"] == pytest.approx(1 + 2 + 4 + STEP_S, abs=0.1), "the one after it has trained"


def test_nor_by_its_user_who_waits_no_longer(tmp_path: Path) -> None:
    seen = told(tmp_path, Story("", [GONE, GONE, stops()], "stopped"))
    assert not seen.events("device_back") and not any("is back" in text for text in seen.said)


def test_a_gpu_that_comes_back_is_told_once_and_its_absence_is_timed(tmp_path: Path) -> None:
    seen = told(tmp_path, Story("", [GONE, GONE, GONE, finishes(USUAL)], "finished"))
    assert [event["event"] for event in seen.run.events() if event["event"].startswith("device")] == ["device_gone", "device_back"]
    assert seen.events("device_back")[0]["after_seconds"] == pytest.approx(1 + 2 + 4 + STEP_S, abs=0.1)
    assert [line for line in seen.said if "GPU" in line] == [
        "attempt 1: torch finds no GPU; the run was planned for one: looking for it again for 300 s (run.device_s)",
        "the GPU is back after 17 s; continuing",
    ]


def test_on_the_cpu_the_run_has_the_cpus_settings_from_the_next_step_on(tmp_path: Path) -> None:
    script = [killed(*FIVE), GONE, finishes()]
    seen = told(tmp_path, Story("", script, "finished", run={"device_s": 0, "allow_cpu": True}))
    entry = read_timeline(seen.run.timeline_file)[-1]
    assert (entry.from_step, entry.settings["device"]) == (6, "cpu")
    assert [launch.settings.device for launch in seen.world.launches] == ["cuda", "cuda", "cpu"]
    assert "device cuda -> cpu from step 6 on" in seen.events("setting_changed")[0]["what"]


def test_an_attempt_is_told_how_often_the_run_has_failed(tmp_path: Path) -> None:
    seen = told(tmp_path, Story("", [killed(*FIVE), GONE, finishes()], "finished"))
    assert [(orders["failures"], orders["running_s"], orders["committed_before"]) for orders in seen.world.orders] == [
        (0, 0.0, 0),
        (1, 1.0, 5),
        (1, 2.0, 5),
    ]


def test_starts_that_come_to_nothing_are_further_and_further_apart(tmp_path: Path) -> None:
    seen = told(tmp_path, Story("", [killed()] * 8, "gave up", run=NO_LAB))
    assert seen.world.clock.slept == pytest.approx(0.1 + 0.2 + 0.4 + 0.8 + 1.6 + 3.2 + 5.0, abs=0.2)
    (tmp_path / "other").mkdir()
    assert told(tmp_path / "other", Story("", [*[killed(USUAL)] * 8, finishes()], "finished")).world.clock.slept == 0


# ---- a wish to stop


def test_a_wish_from_before_the_start_lets_nothing_be_computed(tmp_path: Path) -> None:
    seen = told(tmp_path, Story("", [finishes()], "stopped"), stop_at="before the start")
    assert (seen.end, seen.remedies) == ("stopped", [None])


@pytest.mark.parametrize(
    ("point", "script", "remedies"),
    [
        ("while it trains", [killed()], [None]),
        ("at its wreck", [killed()], [None]),
        ("in the pause", [killed()], ["resume"]),
        ("in the lab", [crashes(), crashes()], ["resume", None]),
        ("in the lab", [stops(*SPIKE)], [None]),
    ],
    ids=["while it trains", "at its wreck", "in the pause", "in the lab", "in the lab, about the course"],
)
def test_a_wish_to_stop_is_met(tmp_path: Path, point: Point, script: list[Ends], remedies: list[str | None]) -> None:
    seen = told(tmp_path, Story("", script, "stopped", lab=[EAGER]), stop_at=point)
    assert (seen.end, seen.remedies) == ("stopped", remedies)
    assert len(seen.world.launches) == len(script), "nothing is started for it"
    assert not seen.events("remedy_applied") and not seen.events("rolled_back"), "nothing is changed either"
    assert seen.outcome.ending.kind in ("interrupted", "killed")


def test_a_trainer_that_dies_in_place_of_stopping_was_stopped_all_the_same(tmp_path: Path) -> None:
    seen = told(tmp_path, Story("", [killed(USUAL, deaf=True)], "stopped"), stop_at="while it trains")
    assert (seen.end, seen.remedies, seen.outcome.ending.kind) == ("stopped", [None], "killed")


@pytest.mark.parametrize("losses", [FIVE, SPIKE], ids=["well", "in trouble"])
def test_a_run_that_finishes_in_place_of_stopping_is_finished(tmp_path: Path, losses: list[float]) -> None:
    script = [ends_before_it_is_asked(*losses)]
    seen = told(tmp_path, Story("", script, "finished"), stop_at="while it trains")
    assert seen.end == "finished" and not seen.events("rolled_back")


def test_a_run_that_was_given_up_or_stopped_begins_with_clean_ledgers(tmp_path: Path) -> None:
    run = new_run(tmp_path / "run", **NO_LAB)
    assert play(run, FakeWorld([crashes()] * 3)).end == "gave up"
    assert play(run, FakeWorld([crashes()] * 3)).remedies == ["resume", "resume", "none"] * 2


# ---- attempts of an earlier command


def an_earlier_attempt(tmp_path: Path) -> RunFolder:
    run = new_run(tmp_path / "run")
    left_behind(run, {"committed_before": 0}, relaunch(run).settings)
    commit(run, 1)
    return run


def test_a_living_attempt_is_adopted(tmp_path: Path) -> None:
    run, world = an_earlier_attempt(tmp_path), FakeWorld([finishes(USUAL)])
    world.alive = {1}
    seen = play(run, world)
    assert (seen.end, run.attempts(), world.launches) == ("finished", [1], [])
    assert "adopted the living attempt 1 (trainer in process 4711)" in seen.said
    assert [event["attempt"] for event in seen.events("attempt_adopted")] == [1]


def test_a_dead_one_is_dealt_with_and_the_run_goes_on(tmp_path: Path) -> None:
    run, world = an_earlier_attempt(tmp_path), FakeWorld([killed(), finishes(USUAL)])
    seen = play(run, world)
    assert (seen.end, run.attempts(), seen.remedies) == ("finished", [1, 2], ["resume"])
    assert not seen.events("attempt_adopted")


def test_one_that_an_earlier_command_stopped_is_closed_and_the_run_goes_on(tmp_path: Path) -> None:
    run, world = an_earlier_attempt(tmp_path), FakeWorld([stops(), finishes(USUAL)])
    seen = play(run, world)
    assert (seen.end, run.attempts(), seen.remedies) == ("finished", [1, 2], [None])


def test_unless_this_one_is_to_stop_as_well(tmp_path: Path) -> None:
    run, world = an_earlier_attempt(tmp_path), FakeWorld([stops()], stop_at="before the start")
    seen = play(run, world)
    assert (seen.end, run.attempts(), seen.remedies) == ("stopped", [1], [None])


def test_a_wish_to_stop_starts_nothing_after_the_first_attempt(tmp_path: Path) -> None:
    run = new_run(tmp_path / "run")
    assert play(run, FakeWorld([stops(*FIVE)])).end == "stopped"
    seen = play(run, FakeWorld([], stop_at="before the start"))
    assert (seen.end, run.attempts(), seen.outcome.failure_report) == ("stopped", [1], None)
