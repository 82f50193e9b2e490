"""How long a run takes, and how much memory: from runs that ended here, from the doctor's probe, or unknown; never less than was seen."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.errors import BLOCKED, Stop
from holdfast.base.files import Json, read_lines
from holdfast.base_model.folder import ModelFacts, read_model
from holdfast.config.config import Config
from holdfast.planning import past_runs, tracing
from holdfast.planning.duration import FORWARD, Ahead, PastRun, duration, idle_parameters, remaining
from holdfast.planning.past_runs import correct_from_history, remember, with_duration, work_in
from holdfast.planning.plan import with_more
from holdfast.planning.planning import PlanResult, about_longest
from holdfast.planning.workload import NO_ROW, Workload, checked_tokens, workload
from holdfast.report.words import between, costs
from holdfast.run.folder import RunFolder
from holdfast.run.plan import Params, Plan, RunPlan, Seconds, write_plan
from holdfast.supervision.preparation import run_plan
from holdfast.terminal.run_view import Terminal

HOUR = 3600.0
AHEAD = Ahead(tokens=360_000, checked=0, work=1e9, precision="fp32")  # at 100 tokens a second, an hour


def _past(
    alike: bool = True, work: float = 1e9, rate: float = 100.0, lost: float = 0.0, precision: str = "fp32", cards: int | None = 1
) -> PastRun:
    rates = (rate, 0.8 * rate, 1.1 * rate)
    took = {"begin": 10, "end": 20, "beside": 0.0, "wall": HOUR, "lost": lost, "check": FORWARD}
    return PastRun(alike=alike, precision=precision, work=work, rate=rates, cards=cards, **took)


@pytest.mark.parametrize(
    ("runs", "probed", "expected", "says"),
    [
        ([_past()], None, (15 + HOUR / 1.1, 30 + HOUR, 60 + HOUR / 0.8), "as a run of this shape took here"),
        ([_past(), _past(rate=50.0)], None, (15 + HOUR / 1.1, 30 + HOUR / 0.75, 60 + HOUR / 0.4), "as 2 runs of this shape"),
        ([_past()] * 3, None, (30 + HOUR / 1.1, 30 + HOUR, 30 + HOUR / 0.8), "as 3 runs of this shape"),
        ([_past(alike=False, work=2e9)], None, (7.5 + HOUR / 4, 30 + HOUR / 2, 120 + HOUR), "another shape here, whose speed may"),
        ([], 3e11, (5 + HOUR / 3, 30 + HOUR, 120 + HOUR / 0.3), "loading and evaluating was never timed here, 5 s to 2 min are allowed"),
        ([_past(False, precision="bf16")], 3e11, (15 + HOUR / 3, 30 + HOUR, 60 + HOUR / 0.3), "the doctor measured and a tenth of it"),
        ([_past(alike=False, precision="bf16")], None, None, "is unknown: no run has ended on this machine"),
        ([], None, None, "is unknown: no run has ended on this machine"),
    ],
)
def test_wall_time_rests_on_what_was_measured(runs: list[PastRun], probed: float | None, expected: Any, says: str) -> None:
    seconds, basis = duration(AHEAD, runs, probed)
    assert says in basis
    assert (seconds and (seconds.low, seconds.likely, seconds.high)) == (expected and pytest.approx(expected, abs=0.1))


@pytest.mark.parametrize(
    ("runs", "probed", "cards", "times", "says"),
    [
        ([], 3e11, 4, 4.0, "a tenth of it on each of 4 cards"),
        ([_past(alike=False, cards=1)], None, 4, 4.0, "4 cards taken for 4 times that run's"),
        ([_past(alike=False, cards=8)], None, 4, 0.5, "4 cards taken for 0.5 times that run's"),
        ([_past(alike=False, rate=1e6, work=2e9, cards=1), _past(alike=False, cards=4)], None, 4, 1.0, "twice this one's"),
        ([_past(alike=False, cards=None)], None, 4, 1.0, "twice this one's"),  # kept by an earlier version
        ([_past(cards=4)], None, 4, 1.0, "as a run of this shape took here"),
    ],
)
def test_cards_that_compute_together_are_counted(runs: list[PastRun], probed: float | None, cards: int, times: float, says: str) -> None:
    one, _ = duration(AHEAD, [run.model_copy(update={"cards": None}) for run in runs[-1:]], probed)
    several, basis = duration(dataclasses.replace(AHEAD, cards=cards), runs, probed)
    assert one and several and says in basis
    assert (one.likely - 30) / (several.likely - 30) == pytest.approx(times, rel=0.01), "30 s of loading are nobody's steps"


def test_the_ranks_of_a_config_share_the_work_where_each_has_a_card(cache: Path) -> None:
    gpus = [{"vendor": "nvidia", "arch": "sm_90", "memory_bytes": 80 << 30}] * 4
    machine: Json = {
        "gpus": gpus,
        "torch": {"version": "2.13.0+cu128", "devices": gpus},
        "probes": {"speed": {"flops_per_second": {"float32": 3e11}}},
    }
    took = {}
    for name, ranks, there in (("one", 1, machine), ("all", "auto", machine), ("cores", 4, machine | {"gpus": [], "torch": None})):
        config = Config.model_validate({"model": "m", "data": {"files": "f"}, "train": {"ranks": ranks}})
        seconds = with_duration(config, there, PLAN, tokens=1e12, checked=0).seconds
        assert seconds
        took[name] = seconds.likely - 30
    assert took["one"] == pytest.approx(4 * took["all"], rel=1e-3)
    assert took["one"] == pytest.approx(took["cores"], rel=1e-3), "ranks on a CPU share its cores"


QWEN3_30B = {"num_experts": 128, "num_experts_per_tok": 8}


@pytest.mark.parametrize(
    ("text", "idle"),
    [
        (QWEN3_30B, 27_000_000_000),
        ({"num_local_experts": 8, "num_experts_per_tok": 2}, 21_600_000_000),
        ({"n_routed_experts": 256, "num_experts_per_tok": 8}, 27_900_000_000),
        ({"num_experts": 128}, 0),
        ({"num_experts": 1, "num_experts_per_tok": 1}, 0),
        ({"num_experts": "many", "num_experts_per_tok": 2}, 0),
        ({}, 0),
    ],
)
def test_a_token_goes_through_the_experts_it_is_sent_to(text: Json, idle: int) -> None:
    assert idle_parameters(text, {"experts": 28_800_000_000, "attention": 1_000_000_000}) == idle
    assert idle_parameters(text, {"attention": 1_000_000_000}) == 0, "of a dense model"


def test_a_run_on_experts_is_expected_to_take_what_its_tokens_go_through(cache: Path) -> None:
    params = Params(total=30_500_000_000, trainable=0)
    plan = PLAN.model_copy(update={"params": params, "weights_by_part": {"experts": 28_800_000_000}})
    machine = MACHINE | {"probes": {"speed": {"flops_per_second": {"float32": 1e14}}}}
    took = [with_duration(CONFIG, machine, plan, 1e9, 0, text).seconds for text in (QWEN3_30B, {})]
    assert took[0] and took[1] and (took[1].likely - 30) / (took[0].likely - 30) == pytest.approx(30.5 / 3.5, rel=1e-3)
    dense = Params(total=3_500_000_000, trainable=0)
    of_dense = with_duration(CONFIG, machine, PLAN.model_copy(update={"params": dense}), 1e9, 0).seconds
    assert of_dense == took[0], "as a dense model of what is active"


def test_what_a_run_is_kept_with_counts_the_experts_that_a_token_is_sent_to(monkeypatch: pytest.MonkeyPatch) -> None:
    params, parts = Params(total=30_500_000_000, trainable=0), {"experts": 28_800_000_000}
    plan = PLAN.model_copy(update={"params": params, "weights_by_part": parts})
    monkeypatch.setattr(past_runs, "read_description", lambda name: ModelFacts(Path(name), {"text_config": QWEN3_30B}, {}, 0))
    assert work_in(CONFIG, plan) == 4 * 3.5e9 and work_in(CONFIG, PLAN) == 4 * 100 + 2 * 10

    def gone(name: str) -> ModelFacts:
        raise Stop(BLOCKED, f"{name} is not here", "")

    monkeypatch.setattr(past_runs, "read_description", gone)
    assert work_in(CONFIG, plan) == 4 * 30.5e9


def test_a_run_that_was_kept_with_idle_experts_is_held_against_the_same(cache: Path) -> None:
    """Rows of an earlier version count all experts, and so does what they are held against."""
    ahead = dataclasses.replace(AHEAD, work=1e9, idle=9e9)
    for work, cards in ((10e9, None), (1e9, 1)):
        seconds, _ = duration(ahead, [_past(alike=False, work=work, cards=cards)], None)
        assert seconds and seconds.likely == pytest.approx(30 + HOUR)


def test_failures_are_expected_as_often_as_they_came_where_enough_was_seen_to_tell() -> None:
    calm, _ = duration(AHEAD, [_past()] * 3, None)
    troubled, basis = duration(AHEAD, [_past(lost=360.0)] * 3, None)
    assert calm and troubled and troubled.likely == pytest.approx(1.1 * calm.likely, rel=1e-4)
    assert basis.endswith("in earlier runs here failures took 10% of the time, and as much is counted on")
    assert troubled.high == pytest.approx(1.2 * calm.high, rel=1e-4), "the range allows for twice as many"


@pytest.mark.parametrize("lost", [60.0, 2 * HOUR])
def test_one_bad_run_says_nothing_of_later_ones(lost: float) -> None:
    """What made it fail may have been mended, as a learning rate that was too high."""
    calm, good = _past(), _past(rate=100.0)
    bad = _past(rate=1.0, lost=lost).model_copy(update={"begin": HOUR})
    for alone, beside in (([calm, good], [calm, bad, good]), ([bad.model_copy(update={"lost": 0.0})], [bad])):
        assert duration(AHEAD, beside, None) == duration(AHEAD, alone, None)
    seconds, basis = duration(AHEAD, [bad.model_copy(update={"lost": 2 * HOUR})] * 3, None)
    assert seconds and "failures took 100% of the time" in basis, "no share is above all of it"


def test_a_run_whose_first_starts_failed_took_no_longer_to_load(cache: Path, tmp_path: Path) -> None:
    events = [{"event": "run_created", "seconds": 1.0, "time": 801.0}]
    events += [{"event": "attempt_started", "time": float(time)} for time in (801, 900, 995)]
    _ended(tmp_path / "a", 6000, events, lost=500.0)
    (row,) = read_lines(cache / past_runs._FILE)
    assert (row["begin"], row["lost"]) == (7.0, 49.0 - 38.0 - 7.0), "no more was lost than the run took beside loading and its steps"


def test_a_night_until_a_run_is_started_again_is_no_time_that_failures_take(cache: Path, tmp_path: Path) -> None:
    """Killed in the evening and started again in the morning, three times: the next plan counted on failures all of its time."""
    for name in ("a", "b", "c"):
        events = [{"event": "attempt_started", "time": 995.0}, {"event": "attempt_started", "time": 1020.0 + 10 * HOUR}]
        _ended(tmp_path / name, 6000, events, lost=10 * HOUR, pause=10 * HOUR)
    assert [row["lost"] for row in read_lines(cache / past_runs._FILE)] == [5.0] * 3, "49 s in all, 6 until the first step, 38 in steps"
    plan = with_duration(CONFIG, MACHINE, PLAN, tokens=4000, checked=0)
    assert "failures took 10% of the time" in plan.reasons[-1] and plan.seconds and plan.seconds.likely < 110


@pytest.mark.parametrize(
    ("times", "says"),
    [
        ((26.2, 26.3, 26.4), "about 26 s"),
        ((40.0, 60.0, 300.0), "40 s to 5 min, likely 60 s"),
    ],
)
def test_a_range_is_told_where_there_is_one(times: tuple[float, float, float], says: str) -> None:
    assert between(Seconds(low=times[0], likely=times[1], high=times[2])) == says


@pytest.mark.parametrize(
    ("times", "says"),
    [
        ((1.0, 8.0, 20.0), "less than 0.01"),
        ((1.0, 8.0, 7200.0), "less than 0.01 to 1.00, likely less than 0.01"),
        ((HOUR, 2 * HOUR, 3 * HOUR), "0.50 to 1.50, likely 1.00"),
        ((0.0, 0.0, 0.0), "0.00 to 0.00, likely 0.00"),
    ],
)
def test_a_small_price_is_not_nothing(times: tuple[float, float, float], says: str) -> None:
    assert costs(0.5, Seconds(low=times[0], likely=times[1], high=times[2])) == says


def test_what_is_left_follows_from_how_the_last_steps_went() -> None:
    steady = [(step, 2.0 * step) for step in range(1, 101)]
    left = remaining(steady, 50)
    assert left and (left.low, left.likely, left.high) == (100.0, 100.0, 100.0)
    paused = [(step, 2.0 * step + (300.0 if step > 50 else 0.0)) for step in range(1, 101)]  # a death in the middle
    left = remaining(paused, 50)
    assert left and left.low == 100.0 and 240 < left.likely < 260 < left.high, "it is counted, and makes the range wide"
    for seen in (steady[:4], [(1, 5.0)] * 20, [(step, 5.0) for step in range(20)], []):
        assert remaining(seen, 50) is None, "too little to tell anything"


# -- what is kept of runs

CONFIG = Config.model_validate({"model": "m", "data": {"files": "f"}})
MACHINE: Json = {"memory_bytes": 10_000, "torch": {"version": "2.13.0+cpu"}, "gpus": []}
PLAN = Plan.model_validate(
    {"precision": "fp32", "micro_batch_tokens": 64, "checkpointed_layers": 0, "fits": True, "peak_bytes": 6000, "capacity_bytes": 10_000}
    | {"reserve_bytes": 2000, "bytes": {"context": 5000, "activations": 1000}, "params": {"total": 100, "trainable": 10}, "accumulation": 1}
)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def _ended(folder: Path, peak: int, events: Sequence[Json] = (), lost: float = 0.0, pause: float = 0.0) -> None:
    """A run of 20 steps, 1 s and 100 tokens each, as far as what is kept of it goes. pause: before the last ten, in another attempt."""
    run = RunFolder(folder)
    folder.mkdir()
    whole = {"steps": 20, "samples": 20, "rows": {"train": 20, "held_out": 0, "per_epoch": 20}, "data_sha256": ""}
    write_plan(run.plan_file, RunPlan(**dict(PLAN), **whole))
    run.machine_file.write_text(json.dumps(MACHINE))
    rows = [{"step": step, "tokens": 100, "seconds": 1.0, "time": 1000.0 + 2 * step, "attempt": 1} for step in range(1, 21)]
    rows[10:] = [row | {"time": row["time"] + pause, "attempt": 2} for row in rows[10:]]
    run.steps_file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run.events_file.write_text("".join(json.dumps(event) + "\n" for event in events))
    summary = {"peak_bytes": peak, "wall_seconds": 49.0, "incidents": [{"seconds_to_recover": lost}] if lost else []}
    remember(run, CONFIG, summary, Terminal(to_stderr=True, quiet=True).say)


def test_bytes_that_are_counted_later_are_judged_too() -> None:
    for more, fits in ((2000, True), (2001, False)):
        now = with_more(PLAN, CONFIG.train, "logits", more)
        assert (now.peak_bytes, now.bytes.logits, now.bytes.total(), now.fits) == (6000 + more, more, 6000 + more, fits)
    unknown = PLAN.model_copy(update={"fits": None, "capacity_bytes": None})
    assert with_more(unknown, CONFIG.train, "logits", 1).fits is None
    assert with_more(PLAN.model_copy(update={"reserve_bytes": None}), CONFIG.train, "logits", 2001).fits is False, "a share is left then"


def test_a_plan_never_says_less_than_a_run_of_its_shape_took_here(cache: Path, tmp_path: Path) -> None:
    assert correct_from_history(CONFIG, MACHINE, PLAN) == PLAN
    _ended(tmp_path / "a", 8500)
    _ended(tmp_path / "b", 7000)
    now = correct_from_history(CONFIG, MACHINE, PLAN)
    assert (now.peak_bytes, now.bytes.total(), now.fits) == (8500, 8500, False)
    assert "2 runs of this shape took up to 0.0 MiB on this machine" in now.reasons[-1]
    assert now.micro_batch_tokens == PLAN.micro_batch_tokens, "what is chosen follows from config and capacity alone"
    elsewhere, other = MACHINE | {"memory_bytes": 20_000}, CONFIG.model_copy(update={"adapter": CONFIG.adapter.model_copy(update={"r": 9})})
    assert correct_from_history(CONFIG, elsewhere, PLAN) == correct_from_history(other, MACHINE, PLAN) == PLAN


def test_a_run_that_ended_tells_how_long_the_next_one_takes(cache: Path, tmp_path: Path) -> None:
    _ended(tmp_path / "a", 6000)
    seconds = with_duration(CONFIG, MACHINE, PLAN, tokens=4000, checked=0).seconds
    assert seconds and seconds.likely == pytest.approx(10 + 40 * 39 / 20, abs=1), (
        "10 s before the first step; each second of steps took 1.95"
    )
    with (cache / past_runs._FILE).open("a") as file:
        file.write('{"machine": 1}\n{"rate": "fast"}\n')
    assert with_duration(CONFIG, MACHINE, PLAN, tokens=4000, checked=0).seconds == seconds, "what is no such row is left out"
    assert with_duration(CONFIG, MACHINE | {"torch": None}, PLAN, 4000, 0).seconds is None, "another machine's runs tell nothing"


def test_a_week_before_a_run_is_extended_is_no_pace_of_its_steps(cache: Path, tmp_path: Path) -> None:
    """Whoever extended a run a week after it had ended was told that the next one takes weeks."""
    _ended(tmp_path / "a", 6000, pause=7 * 24 * HOUR)
    (row,) = read_lines(cache / past_runs._FILE)
    assert row["beside"] == pytest.approx(0.9), "two seconds from step to step, of which it computes for one"
    seconds = with_duration(CONFIG, MACHINE, PLAN, tokens=4000, checked=0).seconds
    assert seconds and seconds.likely < 100


@pytest.mark.parametrize("every", [5, None])
def test_a_run_with_evaluations_is_expected_to_take_what_the_same_run_took(cache: Path, tmp_path: Path, every: int | None) -> None:
    """20 steps of a second, each 5th one evaluated for 10, 3 s of saving, loading and a last evaluation: what it took is counted once."""
    config = CONFIG.model_copy(update={"evaluate": CONFIG.evaluate.model_copy(update={"every": every})})
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    whole = {"steps": 20, "samples": 20, "rows": {"train": 20, "held_out": 10, "per_epoch": 20}, "data_sha256": ""}
    write_plan(run.plan_file, RunPlan(**dict(PLAN), **whole))
    run.machine_file.write_text(json.dumps(MACHINE))
    now, rows = 1000.0, []
    for step in range(1, 21):
        now += 1.0
        rows.append({"step": step, "tokens": 100, "samples": [step], "seconds": 1.0, "time": now})
        now += 0.15 + (10.0 if every and step % every == 0 else 0.0)
    evaluated = [{"step": step, "loss": 1.0, "seconds": 10.0} for step in range(5, 21, 5)] if every else []
    run.steps_file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run.evaluations_file.write_text("".join(json.dumps(row) + "\n" for row in evaluated))
    happened = [{"event": "run_created", "seconds": 2.0, "time": 992.0}, {"event": "attempt_started", "time": 995.0}]
    run.events_file.write_text(
        "".join(json.dumps(one) + "\n" for one in [*happened, {"event": "final_evaluation_ended", "seconds": 25.0, "time": now}])
    )
    wall = now - 1000.0 + 7.0 + 25.0
    remember(run, config, {"peak_bytes": 6000, "wall_seconds": wall, "incidents": []}, Terminal(to_stderr=True, quiet=True).say)
    seconds = with_duration(config, MACHINE, PLAN, tokens=2000, checked=checked_tokens(config, 20, 10, 100)).seconds
    assert seconds and seconds.likely == pytest.approx(wall, rel=0.05)


@pytest.mark.parametrize(
    "changes",
    [{"ranks": 2}, {"fsdp": True, "ranks": 2}, {"attention": "eager"}, {"packing": False}, {"threads": 1}, {"parts_at_once": "off"}],
    ids=str,
)
def test_a_run_of_another_course_tells_nothing_as_if_it_were_this_one(cache: Path, tmp_path: Path, changes: Json) -> None:
    _ended(tmp_path / "a", 8500)
    other = CONFIG.model_copy(update={"train": CONFIG.train.model_copy(update=changes)})
    assert correct_from_history(other, MACHINE, PLAN) == PLAN
    assert "of another shape" in with_duration(other, MACHINE, PLAN, 4000, 0).reasons[-1]


def test_a_run_on_fewer_cores_is_another_machines(cache: Path, tmp_path: Path) -> None:
    _ended(tmp_path / "a", 8500)
    assert correct_from_history(CONFIG, MACHINE | {"cpu": {"name": "x", "threads": 2}}, PLAN) == PLAN


def test_a_run_of_an_earlier_version_is_not_asked_for_what_an_evaluation_took() -> None:
    old = _past().model_copy(update={"check": None})
    seconds = [duration(dataclasses.replace(AHEAD, checked=checked), [old], None)[0] for checked in (0, 100_000)]
    assert seconds[0] == seconds[1], "its end and what was beside its steps hold that"


def test_a_probe_that_says_nonsense_tells_nothing() -> None:
    for rate in (None, "fast", -1, True, {}):
        machine = MACHINE | {"probes": {"speed": {"flops_per_second": {"float32": rate}}}}
        assert with_duration(CONFIG, machine, PLAN, 1000, 0).seconds is None
    known = MACHINE | {"probes": {"speed": {"flops_per_second": {"float32": 1e6}}}}
    assert with_duration(CONFIG, known, PLAN, 1000, 0).seconds is not None


# -- when the step is traced before a run

MODEL = ModelFacts(
    Path("m"),
    {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128, "vocab_size": 1000},
    {"model.embed_tokens.weight": (1000, 64), "l.q_proj.weight": (64, 64)},
    0,
)
LENGTHS = {"max": 100, "mean": 50.0, "rows": 1000, "step": 3000}


def _planned(gib: float, monkeypatch: pytest.MonkeyPatch, refuses: str = "") -> tuple[Plan, list[Any]]:
    asked: list[Any] = []

    @contextmanager
    def planner(config: Config, machine: Json, rows: Any, model: ModelFacts) -> Iterator[Any]:
        asked.append(rows)
        if refuses:
            raise Stop(BLOCKED, refuses)

        class Traces:
            def chosen(self) -> PlanResult:
                return PlanResult(PLAN.model_copy(update={"micro_batch_tokens": 77, "reasons": ("traced",)}), None, None, model)  # type: ignore[arg-type]

        yield Traces()

    monkeypatch.setattr(run_plan, "planner", planner)
    machine = {"memory_bytes": int(gib * 2**30)}
    return run_plan.plan_rows(CONFIG, MODEL, machine, LENGTHS, Terminal(to_stderr=True, quiet=True)), asked


def test_the_first_step_waits_for_a_trace_only_where_memory_is_scarce(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    roomy, asked = _planned(32, monkeypatch)
    assert (roomy.micro_batch_tokens, asked) == (2048, [])
    scarce, asked = _planned(1, monkeypatch)
    assert (scarce.micro_batch_tokens, [(rows.longest, rows.step) for rows in asked]) == (77, [(100, 3000)])
    assert "as its step was traced" in scarce.reasons[0] and "traced" in scarce.reasons
    untraced, _ = _planned(1, monkeypatch, refuses="no such step")
    assert untraced.micro_batch_tokens != 77 and "could not be traced: no such step" in untraced.reasons[-1]


def test_a_step_is_traced_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def answered(self: tracing.Tracer, case: Json) -> Json:
        asked.append(case)
        return {"shapes": {"w": [2, 3]}}

    asked: list[Json] = []
    monkeypatch.setattr(tracing.Tracer, "_ask", answered)
    changes = ({}, {"train": {"lr": 1e-3, "epochs": 3}}, {"data": {"files": "other"}}, {"adapter": {"r": 9}})
    for change in changes:
        tree = {"model": "m", "data": {"files": "f"}} | change
        with tracing.tracer() as child:
            assert child.shapes(Config.model_validate(tree), MODEL) == {"w": (2, 3)}
    assert len(asked) == 2, "the rate, the length of the run and the rows change nothing of a step; the rank does"
    next(cache.rglob("traces/*/*.json")).write_text("torn")
    with tracing.tracer() as child:
        child.shapes(CONFIG, MODEL)
        child.shapes(Config.model_validate({"model": "m", "data": {"files": "f"}, "adapter": {"r": 9}}), MODEL)
    assert len(asked) == 3, "what was kept and is damaged is asked again"


def test_a_child_that_crashed_is_told_by_how_and_not_by_its_modules() -> None:
    said = 'Fatal Python error: Segmentation fault\n\n  File "a.py", line 1 in f\n\nExtension modules: numpy, yaml (total: 2)\n'
    for text, told in ((said, "Fatal Python error: Segmentation fault"), ("a\nMemoryError\n", "MemoryError"), ("", "")):
        child = subprocess.Popen([sys.executable, "-c", f"import sys; sys.stderr.write({text!r})"], stdin=-1, stdout=-1, stderr=-1)
        child.wait()
        assert tracing._last(child, b"") == told


def test_a_child_that_crashes_after_other_steps_is_asked_again_anew_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = "for at, line in enumerate(sys.stdin):\n    os.abort() if at >= {} else print(line.strip(), flush=True)"
    for most in (1, 0):
        code = "import os, resource, sys\nresource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n" + answers.format(most)
        monkeypatch.setattr(tracing, "trainer_command", lambda *_, code=code: [sys.executable, "-c", code])
        with tracing.tracer() as child:
            if most:
                assert [child._ask({"at": at})["at"] for at in range(3)] == [0, 1, 2]
            else:
                with pytest.raises(Stop, match="it said nothing"):
                    child._ask({"at": 0})


# -- rows that are not checked yet


def test_the_work_ahead_is_judged_by_the_first_rows(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    row = json.dumps({"prompt": "What lies in /proc?", "completion": "Facts of the kernel, as files."}) + "\n"
    file.write_text(row * 400 + "not a row\n" * 100)
    tree = {"model": "tiny", "data": {"files": str(file), "held_out": 0.5}, "train": {"epochs": 3, "effective_batch": 8}}
    found = workload(Config.model_validate(tree), read_model("tiny"), 512)
    assert not isinstance(found, str) and (found.steps, found.samples, found.held_out) == (75, 600, 200)
    assert 10 < found.row < 60
    file.write_text(row * 100_000)
    longer = workload(Config.model_validate(tree), read_model("tiny"), 512)
    assert not isinstance(longer, str) and longer.samples == pytest.approx(150_000, rel=0.01), "by the file's size"
    pairs = workload(Config.model_validate(tree | {"train": {"objective": "dpo"}}), read_model("tiny"), 512)
    assert isinstance(pairs, str) and pairs.startswith(f"{NO_ROW} ({file}:1: an answer alone is no preference")
    (tmp_path / "empty.jsonl").touch()
    none = workload(Config.model_validate(tree | {"data": {"files": str(tmp_path / "empty.jsonl")}}), read_model("tiny"), 512)
    assert none == f"{NO_ROW}: no row is in {tmp_path / 'empty.jsonl'}"
    lost = workload(Config.model_validate(tree | {"data": {"files": "nowhere.jsonl"}}), read_model("tiny"), 512)
    assert isinstance(lost, str) and "its rows cannot be counted yet" in lost


def test_the_tokens_ahead_are_those_of_the_rows_that_are_drawn_and_judged(tmp_path: Path) -> None:
    """A file that is drawn three times as often counts three times; rows held out in a file of their own have their own length."""

    def rows(name: str, words: int, count: int) -> str:
        row = json.dumps({"prompt": "Say it", "completion": "word " * words}) + "\n"
        (tmp_path / name).write_text(row * count)
        return str(tmp_path / name)

    short, long, judged = rows("short.jsonl", 5, 100), rows("long.jsonl", 60, 50), rows("judged.jsonl", 30, 20)

    def ahead(**data: Any) -> Workload:
        found = workload(Config.model_validate({"model": "tiny", "data": data}), read_model("tiny"), 512)
        assert not isinstance(found, str)
        return found

    of_short, of_long = ahead(files=short).row, ahead(files=long).row
    both: Json = {"files": [short, long]}
    assert ahead(**both).row == pytest.approx((2 * of_short + of_long) / 3)
    assert ahead(**both).longest == of_long, "all rows of a file are alike here"
    often = ahead(**both, weights={long: 4.0})
    assert often.row == pytest.approx((2 * of_short + 4 * of_long) / 6), "half as many rows, each drawn four times as often"
    assert often.judged_row == pytest.approx((2 * of_short + of_long) / 3), "what is held out is drawn by no weight"
    apart = ahead(**both, held_out_files=[judged])
    assert of_short < apart.judged_row < of_long and apart.judged_row == pytest.approx(ahead(files=judged).row)
    config = Config.model_validate({"model": "tiny", "data": both | {"held_out_files": [judged]}})
    assert apart.checked(config) == 2 * 20 * apart.judged_row


def test_a_plan_for_far_longer_rows_than_there_are_says_which_would_be_theirs() -> None:
    (told,) = about_longest(104, 1024)
    assert told.startswith("planned for rows of 1,024 tokens; the longest of the rows looked at has 104: ")
    assert "train.max_tokens=104" in told
    assert about_longest(512, 1024) and not about_longest(513, 1024), "half of it, or less"
    assert not about_longest(0, 1024), "nothing was looked at"
    assert "train.max_tokens=8 " in about_longest(3, 1024)[0], "the least that a config takes"


def test_what_is_kept_free_is_said_as_a_person_would() -> None:
    from holdfast.report.plan.lines import verdict

    plan = Plan.model_construct(fits=True, capacity_bytes=16 << 30, peak_bytes=2 << 30, reserve_bytes=4 << 30)
    assert verdict(plan) == "it fits: 2.00 GiB of 16.00 GiB, 4.00 GiB of it are kept free for other programs (train.memory_reserve)"
    unseen = plan.model_copy(update={"unseen_rows": 2048})
    assert verdict(unseen).startswith("it fits with rows of up to 2,048 tokens (none to train on is known yet): 2.00 GiB of 16.00 GiB")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("print('[ERROR] no docstring', flush=True); input(); input()", "ended ([ERROR] no docstring)"),
        ("import sys; print('a.\\nValueError: b', file=sys.stderr)", "ended (ValueError: b)"),
        ("raise SystemExit(4)", "ended (it said nothing)"),
    ],
)
def test_a_child_that_gives_no_answer_is_told_by_what_it_said(code: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a library printed before the answer was told as "no answer within 300 s", within a second."""
    monkeypatch.setattr(tracing, "trainer_command", lambda job: [sys.executable, "-c", code])
    child = tracing.Tracer(None)
    with pytest.raises(Stop) as failed:
        child._ask({})
    assert words in str(failed.value)
