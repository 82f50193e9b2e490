"""Verdicts of `check`, `tune` and `compare` say what was measured: causes that are known, planted one at a time, and none where none is."""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import shutil
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from conftest import ROOT
from holdfast.base.files import Json
from holdfast.book import cards_of
from holdfast.cli.commands import compare as compare_command
from holdfast.config.config import Config
from holdfast.data.token_set.token_set import TokenSet
from holdfast.diagnosis.health_signs import first_word
from holdfast.experiments.check import precision as precision_item
from holdfast.experiments.check.bench import Bench
from holdfast.experiments.check.bits import order
from holdfast.experiments.check.first import first
from holdfast.experiments.check.precision import SHAPES, apart, precision
from holdfast.experiments.check.speed import speed
from holdfast.experiments.compare import changed, compare, compared
from holdfast.experiments.run_facts import facts_of
from holdfast.experiments.tune.climb import Climb, Rung, climb
from holdfast.run.fingerprints import Look, compare_fingerprints, in_words
from holdfast.run.folder import RunFolder
from holdfast.run.sampling.step_table import StepTable
from holdfast.run.timeline import read_timeline, settings_of_process
from holdfast.trainer.common.device import forget_peak, peak_since
from holdfast.trainer.jobs.laboratory import rows as rows_of_laboratory


def bench_of(lab: Any, **more: Any) -> Bench:
    config = Config.model_validate({"model": "tiny", "data": {"files": ["rows.jsonl"]}})
    plan: Any = SimpleNamespace(capacity_bytes=None, peak_bytes=1)
    return Bench(lab, config, plan, "a.yaml", {}, **more)


# ---- check


@pytest.mark.parametrize(("batch", "seen"), [(8, 30), (64, 30), (7, 30)])
def test_an_epoch_that_ends_within_a_step_sees_no_row_twice(batch: int, seen: int) -> None:
    table = StepTable(np.arange(30), batch, seed=1)
    settings = SimpleNamespace(steps=20, samples=20 * batch, behind=0)
    training: Any = SimpleNamespace(
        job=SimpleNamespace(settings=lambda _: settings), task=SimpleNamespace(data=SimpleNamespace(table=table))
    )
    facts = rows_of_laboratory.order_facts(training)
    assert (facts["most_often"], facts["rows"], facts["of"], facts["alike"]) == (1, seen, 30, True)


@pytest.mark.parametrize(("objective", "bounded"), [("sft", True), ("kto", False), ("dpo", False), ("orpo", False)])
def test_answers_that_are_compared_do_not_contradict_each_other(monkeypatch: pytest.MonkeyPatch, objective: str, bounded: bool) -> None:
    """A good and a bad answer to one prompt are what `kto` learns from; a loss of 25 per pair (`ipo`) is no guess among tokens."""
    ids, learned = np.array([5, 6, 7]), np.array([0, 0, 1])
    answers = [(ids, learned), (np.array([5, 6, 8]), learned)]
    tokens = SimpleNamespace(row=lambda at: answers[at], length=lambda _: 3, counts_of=lambda _: None)
    data = SimpleNamespace(table=SimpleNamespace(rows=np.arange(2)), sizes=np.array([3, 3]), source=str)
    task = SimpleNamespace(tokens=tokens, data=data, model=SimpleNamespace(get_input_embeddings=lambda: torch.nn.Embedding(9, 2)))
    job = SimpleNamespace(config=SimpleNamespace(train=SimpleNamespace(objective=objective)))
    monkeypatch.setattr(rows_of_laboratory, "order_facts", lambda _: {})
    monkeypatch.setattr(rows_of_laboratory, "expressible_loss", lambda *_: 1.5)
    facts = rows_of_laboratory.label_facts(SimpleNamespace(task=task, job=job))  # type: ignore[arg-type]
    assert (facts["least_loss"] > 0.1, facts["expressible_loss"], facts["vocabulary"]) == (
        bounded,
        *((1.5, 9) if bounded else (None, None)),
    )


@pytest.mark.parametrize(("weights", "least"), [((1.0, 1.0), math.log(2) / 2), ((1000.0, 1.0), 0.004), (None, math.log(2) / 2)])
def test_rows_that_count_for_little_contradict_little(weights: tuple[float, float] | None, least: float) -> None:
    """Two answers of two tokens to one prompt, which part in the first: of the first token nothing is sure, of the second all."""
    ids, learned = np.array([5, 6, 8, 9, 5, 7, 8, 9], np.int32), np.array([0, 1, 0, 1] * 2, np.uint8)
    places = np.zeros(2, np.int32)
    weight = None if weights is None else np.array(weights, np.float32)
    tokens = TokenSet(ids, learned, np.array([0, 4, 8]), places, places.astype(np.int64), ("rows.jsonl",), 0, 0, weight)
    training: Any = SimpleNamespace(task=SimpleNamespace(tokens=tokens))
    assert rows_of_laboratory.least_loss(training, [0, 1]) == pytest.approx(least, abs=5e-4)


class Steps:
    """A laboratory of `order`: how many micro-batches a step takes as it is, and split."""

    def __init__(self, *micro_batches: int) -> None:
        self.micro_batches = micro_batches

    def ask(self, _: str, **request: Any) -> Json:
        split = "micro_batch_tokens" in request["settings"]
        row = {"tokens": 40, "gradients_sha256": "a", "gradient_gap": 0.0, "micro_batches": self.micro_batches[split]}
        return {"ending": "finished", "finite": True, "rows": [row], "weights_sha256": "b", "folder": "f"}


@pytest.mark.parametrize(("micro_batches", "split"), [((1, 2), True), ((1, 1), False)])
@pytest.mark.parametrize("deterministic", [True, False])
def test_only_what_was_split_is_said_to_be_the_same(micro_batches: tuple[int, int], split: bool, deterministic: bool) -> None:
    drawn = {"rows": 8, "of": 30, "most_often": 1, "alike": True, "mixed": False}
    facts = {"rows": {"order": drawn}, "settings": {"dtype": "fp32", "deterministic": deterministic}}
    found = order(bench_of(Steps(*micro_batches), facts=facts))
    assert found.verdict == "passed"
    assert ("split otherwise: its gradient within" in found.why) is split and ("cannot be split" in found.why) is not split
    assert "sees each row once" not in found.why and "8 of 30" in found.why
    assert ("the run's own promise no bits" in found.why) is not deterministic


class Slow:
    """A laboratory in which each step takes so many seconds; what is asked for longer than `most_s` is killed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
        self.now, self.seconds = 0.0, seconds
        monkeypatch.setattr(precision_item, "time", SimpleNamespace(monotonic=lambda: self.now))

    def ask(self, _: str, **request: Any) -> Json:
        began, rows = self.now, 0
        while rows < request["steps"]:
            if self.now + self.seconds - began > request["most_s"]:
                self.now = began + request["most_s"]
                return {"ending": f"no end after {request['most_s']:.0f} s", "log": ["Some layer is loaded"]}
            self.now += self.seconds
            rows += 1
            if self.now - began > request["most_seconds"]:
                break
        one = {"step": 1, "finite": True, "loss": 2.0, "gradient_gap": 0.0, "scale": 1.0, "layers": []}
        return {"ending": "finished", "finite": True, "rows": [one] * rows, "folder": "/nowhere"}


@pytest.mark.parametrize("own", ["bf16", "fp32"])
@pytest.mark.parametrize("seconds", [0.1, 5.0, 11.0, 30.0, 70.0, 500.0])
def test_precision_ends_in_time_and_passes_only_what_it_computed(monkeypatch: pytest.MonkeyPatch, seconds: float, own: str) -> None:
    lab = Slow(monkeypatch, seconds)
    found = precision(bench_of(lab, facts={"settings": {"dtype": own}}))
    assert lab.now <= 240
    whole = seconds <= 11.0
    assert found.verdict == ("passed" if whole else "unknown"), found
    assert whole or ("no answer within 240 s" in found.why and "max_tokens" in found.next)
    assert not whole or found.numbers["shapes"] == len(SHAPES)


@pytest.mark.parametrize(
    ("dtype", "labels", "loss", "holds"),
    [
        ("bf16", 20, 2.0 * 1.0054, True),  # SmolLM2's shortest row; its other numbers are those of a healthy bf16 run
        ("bf16", 20, 2.0 * 1.05, False),
        ("bf16", 2, 2.0 * 1.05, False),
        ("bf16", 2000, 2.0 * 1.0054, False),
        ("fp32", 20, 2.0 * 1.0054, False),
    ],
)
def test_sixteen_bits_are_not_accused_of_rounding_a_few_labels(dtype: str, labels: int, loss: float, holds: bool) -> None:
    row = {"step": 1, "finite": True, "loss": 2.0, "labels": labels}
    mine = row | {"loss": loss, "gradient_gap": 0.0, "scale": 1.0, "layers": [], "worst": "lora_B"}
    found = apart(dtype, {"rows": [row]}, {"ending": "finished", "rows": [mine]})
    assert found["holds"] is holds, found


class Fullest:
    """A laboratory that takes 10 tokens/s at the fullest step, of 1 TFLOPS at its best where other work let it."""

    def ask(self, kind: str, **_: Any) -> Json:
        if kind == "products":
            return {"tflops": {"1 x 1 x 1": 1.0}, "square_tflops": 0.01}
        return {"ending": "finished", "rows": [{"tokens": 10, "seconds": 1.0}] * 2, "peak_bytes": None}


@pytest.mark.parametrize(("alike", "verdict"), [(True, "failed"), (False, "passed")])
def test_a_run_of_another_config_accuses_no_machine_of_being_slow(alike: bool, verdict: str) -> None:
    last = {"run": "a", "tokens_per_second": 100.0, "alike": alike}
    found = speed(bench_of(Fullest(), last_run=last, work=1e10))
    assert found.verdict == verdict and ("of another config" in found.why) is not alike
    assert "10% of what this device multiplies at its best" in found.why


OF_RATE_30 = (
    [5.97, 5.949, 5.891, 5.973, 5.957, 5.961, 5.972, 5.941, 5.955, 5.983],
    [0.28, 1.6, 13.7, 3.6, 21.3, 36.7, 94.1, 77.2, 83.6, 181.6],
)
COURSES: dict[str, tuple[list[float], list[float], bool]] = {
    "a rate of 30": (*OF_RATE_30, False),
    "a loss that climbs and stays up": ([2.0, 2.4, 2.9, 3.5, *[4.0] * 6], [1.0, 1.2] * 5, False),
    "the same norms, and it learns": ([5.97 - 0.1 * at for at in range(10)], OF_RATE_30[1], True),
    "one odd row, whose gradient is clipped": (OF_RATE_30[0], [0.28] * 9 + [20.0], True),
    "a hard batch now and then": ([2.0, 2.6, 1.9, 2.0, 2.7, 2.0, 1.9, 2.1, 2.0, 2.0], [1.0, 1.2] * 5, True),
}


@pytest.mark.parametrize("name", COURSES)
def test_a_rate_that_makes_gradients_swell_is_not_healthy(name: str) -> None:
    losses, norms, healthy = COURSES[name]
    rows = [
        {"step": at + 1, "loss": loss, "grad_norm": norm, "finite": True} for at, (loss, norm) in enumerate(zip(losses, norms, strict=True))
    ]
    lab: Any = SimpleNamespace(ask=lambda *_, **__: {"ending": "finished", "rows": rows})
    found = first(bench_of(lab, facts={"steps": 10, "rows": {"vocabulary": 400}}))
    assert (found.verdict == "passed") is healthy and found.why.startswith("healthy") is healthy, found
    assert found.verdict == ("passed" if healthy else "unknown" if "higher than it began" in found.why else "failed")
    assert first_word(rows, {}).startswith("healthy") is healthy


# ---- tune


GAINS = {("attention", "sdpa"): 1.3, ("packing", True): 1.5, ("dtype", "bf16"): 0.6, ("threads", 2): 0.95, ("checkpointed_layers", 0): 1.25}
BASE: Json = {"steps": 10, "samples": 8, "device": "cpu", "threads": 4, "micro_batch_tokens": 512, "checkpointed_layers": 8}


def climbed(noise: float, wrong: Any, chance: random.Random) -> dict[str, str]:
    """The verdicts of a climb on a machine whose gains are known; wrong: the setting that computes other gradients."""

    def ask(_: str, settings: Json, env: Json, most_s: float, **request: Any) -> Json:
        now = {"frozen": "half"} | BASE | settings
        speed = 1000.0 * math.prod(gain for (name, value), gain in GAINS.items() if now.get(name) == value)
        row: Json = {"loss": 2.0, "finite": True, "scale": 1.0, "layers": [], "worst": "q", "tokens": 500, "labels": 300}
        row["gradient_gap"] = 1.0 if wrong in now.items() else 0.0
        rows = [row | {"step": at, "seconds": 500 / speed * math.exp(chance.gauss(0, noise))} for at in range(request["steps"])]
        return {"ending": "finished", "finite": True, "rows": rows, "peak_bytes": 1, "folder": "x", "seconds_in_all": 1.0}

    way = climb(bench_of(SimpleNamespace(ask=ask)), BASE, cards_of("rungs").values(), "cpu", lambda _: None)
    return {rung.id: rung.verdict for rung in way.rungs}


def test_a_climb_finds_what_is_faster_where_the_truth_is_known() -> None:
    chance = random.Random(1)
    quiet = climbed(0.0, None, chance)
    assert [name for name, verdict in quiet.items() if verdict == "kept"] == ["reference", "sdpa", "packing", "no-recomputation"]
    assert [quiet[name] for name in ("bf16", "fewer-threads", "larger-micro-batch")] == ["slower", "slower", "no difference told"]
    without = climbed(0.0, ("packing", True), chance)
    assert without == quiet | {"packing": "refused"}, "what computes something else is left out, and nothing above it"
    kept = Counter(name for _ in range(60) for name, verdict in climbed(0.1, None, chance).items() if verdict == "kept")
    assert min(kept[name] for name in ("sdpa", "packing", "no-recomputation")) >= 40
    assert max(kept[name] for name in ("bf16", "fewer-threads", "larger-micro-batch")) <= 3


def test_the_figures_of_a_climb_are_those_of_its_rows() -> None:
    """The best of three steps is a speed, two speeds of one alternation a ratio; recomputed here from all that a laboratory answered."""
    chance, answers, told = random.Random(4), list[Json](), dict[str, list[Json]]()

    def ask(_: str, settings: Json, env: Json, most_s: float, **request: Any) -> Json:
        gain = math.prod(gain for (name, value), gain in GAINS.items() if ({"frozen": "half"} | BASE | settings).get(name) == value)
        row: Json = {"loss": 2.0, "finite": True, "scale": 1.0, "layers": [], "worst": "q", "labels": 300}
        rows = [
            row | {"step": at, "tokens": chance.randrange(300, 900), "gradient_gap": 1e-7 * chance.random()}
            for at in range(request["steps"])
        ]
        rows = [one | {"seconds": one["tokens"] / gain / chance.uniform(900, 1100)} for one in rows]
        peak = chance.randrange(1 << 30)
        answers.append({"ending": "finished", "finite": True, "rows": rows, "peak_bytes": peak, "folder": "x", "asked": request})
        return answers[-1]

    def tell(rung: Rung) -> None:
        told[rung.id] = [*answers]
        answers.clear()

    way = climb(bench_of(SimpleNamespace(ask=ask)), BASE, cards_of("rungs").values(), "cpu", tell)
    tried = [rung for rung in way.rungs if rung.tokens_per_second]
    assert {"reference", "sdpa", "packing", "bf16"} <= {rung.id for rung in tried}
    for rung in tried:
        timed = [one for one in told[rung.id] if one["asked"].get("rows") == "fullest"]
        speeds = [max(row["tokens"] / row["seconds"] for row in one["rows"]) for one in timed]
        if rung.id == "reference":
            assert (rung.tokens_per_second, rung.peak_bytes) == (speeds[0], timed[0]["peak_bytes"])
            continue
        shapes = next(one for one in told[rung.id] if one["asked"].get("rows") == "shapes")
        assert rung.within == max(row["gradient_gap"] for row in shapes["rows"])
        ratios = sorted(mine / theirs for mine, theirs in zip(speeds[1::2], speeds[::2], strict=True))
        assert rung.tokens_per_second == round(max(speeds[1::2]), 1)
        assert rung.peak_bytes == max(one["peak_bytes"] for one in timed[1::2]) and len(ratios) in (3, 5)
        assert rung.why == f"{ratios[0]:.2f} to {ratios[-1]:.2f} times the speed below, in {len(ratios)} alternations"
        assert (rung.verdict == "kept") is (ratios[0] > 1.03) and (rung.verdict == "slower") is (1 / ratios[-1] > 1.03)
    assert way.rate == next(rung.tokens_per_second for rung in tried[::-1] if rung.verdict == "kept")


def test_a_speed_is_that_of_the_runs_own_kernels() -> None:
    asked: list[Json] = []

    def ask(kind: str, **request: Any) -> Json:
        asked.append(request)
        row = {"step": 1, "loss": 2.0, "tokens": 10, "seconds": 1.0}
        return {"ending": "finished", "finite": True, "rows": [row], "peak_bytes": 1, "tflops": {}, "folder": "x"}

    bench = bench_of(SimpleNamespace(ask=ask))
    speed(bench)
    way = Climb(bench, {"micro_batch_tokens": 64}, lambda _: None)
    way._speed({}, {})
    assert [one["deterministic"] for one in asked if one.get("rows") == "fullest"] == [False, False]
    way.begin()
    assert {one["deterministic"] for one in asked if one.get("rows") != "fullest" and "deterministic" in one} == {True}


def test_the_peak_of_an_experiment_is_not_that_of_the_one_before() -> None:
    cpu = torch.device("cpu")
    forgotten = forget_peak()
    large = torch.ones(64 << 20)  # 256 MiB
    first = peak_since(cpu, forgotten)
    del large
    forgotten = forget_peak()
    second = peak_since(cpu, forgotten)
    assert peak_since(cpu, False) is None
    if forgotten:
        assert first is not None and second is not None and first - second > 128 << 20


@pytest.mark.parametrize(("gain", "kept", "least"), [(1.0, 20, 0), (1.8, 400, 380)])
def test_a_rung_is_kept_by_its_speed_and_not_by_other_work(monkeypatch: pytest.MonkeyPatch, gain: float, kept: int, least: int) -> None:
    """Four hundred races on a machine where speeds scatter by a fifth: of equals at most one in twenty is called faster."""
    chance = random.Random(3)

    def speed_of(_: Climb, settings: Json, __: Json) -> tuple[float, int]:
        return 100.0 * settings.get("gain", 1.0) * math.exp(chance.gauss(0, 0.14)), 1

    monkeypatch.setattr(Climb, "_speed", speed_of)
    verdicts = []
    for _ in range(400):
        rung = Rung("sdpa")
        Climb(bench_of(None), {}, lambda _: None)._race(rung, {"gain": gain}, {})
        verdicts.append(rung.verdict)
    assert least <= verdicts.count("kept") <= kept


# ---- compare


def run_of(losses: list[float], status: str = "finished", sha: str | None = None, **config: Any) -> Json:
    facts: Json = {"config": config, "settings": {"micro_batch_tokens": 64}, "machine": {}, "model": None, "data": {"sha256": "a"}}
    facts |= {"losses": losses, "loss_steps": [*range(1, len(losses) + 1)], "order": None, "steps": len(losses), "status": status}
    facts |= {"loss": {"eval_tuned": None}, "peak_bytes": 1, "artifact_sha256": sha, "row_keys": np.array([1])}
    return facts | {"quarantined": 0, "incidents": [], "tokens_per_second": None}


LONG, SHORT = [5.0 - 0.01 * at for at in range(60)], [5.0 - 0.01 * at for at in range(30)]
HIGH = [loss + 1 for loss in LONG]
PAIRS: dict[str, tuple[Json, Json, str]] = {
    "another batch, so fewer steps of the same epochs": (
        run_of(LONG, **{"train.effective_batch": 8}),
        run_of(SHORT, **{"train.effective_batch": 16}),
        "train.effective_batch",
    ),
    "fewer rows, so fewer steps": (
        run_of(LONG),
        run_of(SHORT) | {"data": {"sha256": "b"}, "row_keys": np.array([2])},
        "data: rows that the other does not have (1 of 1, 1 of 1)",
    ),
    "one was stopped": (run_of(LONG), run_of(SHORT, "interrupted"), "one of them did not run to its end"),
    "a goal in hours": (run_of(LONG), run_of(SHORT), "how long they were trained"),
    "nothing": (run_of(LONG, "gave_up"), run_of(LONG, "gave_up"), "none"),
    "nothing that is known": (run_of(LONG, sha="a"), run_of([loss + 1e-6 for loss in LONG], sha="b"), "noise"),
    "checkpoints, which no loss follows from": (run_of(LONG), run_of(HIGH, **{"save.every": 3}), "cannot be told"),
    "prompts that are answered, in runs of as many steps": (run_of(LONG), run_of(HIGH, **{"evaluate.generate": 3}), "cannot be told"),
    "a remedy's setting beside checkpoints": (
        run_of(LONG),
        run_of(HIGH, **{"save.every": 3}) | {"settings": {"micro_batch_tokens": 64, "dtype": "fp32"}},
        "settings.dtype",
    ),
    "patience, and so the end": (run_of(LONG), run_of(SHORT, **{"evaluate.patience": 3}), "evaluate.patience"),
    "checkpoints beside a rate": (run_of(LONG), run_of(HIGH, **{"save.every": 3, "train.lr": 1.0}), "train.lr"),
    "one was extended": (
        run_of(LONG) | {"rates": dict.fromkeys(range(1, 61), 0.1)},
        run_of(HIGH) | {"rates": {at: 0.1 if at < 9 else 0.2 for at in range(1, 61)}},
        "the learning rate from step 9 on",
    ),
    "a rate that follows from the rows": (
        run_of(LONG) | {"rates": {1: 0.1}},
        run_of(SHORT) | {"rates": {1: 0.2}, "data": {"sha256": "b"}, "row_keys": np.array([2])},
        "data: rows that the other does not have (1 of 1, 1 of 1)",
    ),
    "the same model in another folder": (
        run_of(LONG, model="a") | {"model": {"x": "1"}},
        run_of(HIGH, model="b") | {"model": {"x": "1"}},
        "cannot be told",
    ),
    "another model": (run_of(LONG, model="a") | {"model": {"x": "1"}}, run_of(HIGH, model="b") | {"model": {"x": "2"}}, "model"),
    "rows beside another share that is held out": (
        run_of(LONG, **{"data.held_out": 0.1}),
        run_of(HIGH, **{"data.held_out": 0.2}) | {"data": {"sha256": "b"}, "row_keys": np.array([2])},
        "cannot be told between data.held_out, data: rows that the other does not have (1 of 1, 1 of 1)",
    ),
    "other rows that were left out, as many": (
        run_of(LONG) | {"quarantined": 1, "left_out": ["a:1"]},
        run_of(HIGH) | {"quarantined": 1, "left_out": ["a:2"]},
        "incidents",
    ),
    "libraries that one began with": (
        run_of(LONG) | {"was": {"torch up to step 9": "2.9"}},
        run_of(HIGH),
        "machine.packages.torch up to step 9",
    ),
    "not one step that both have": (run_of(LONG) | {"loss_steps": [*range(61, 121)]}, run_of(LONG), "cannot be told"),
}


@pytest.mark.parametrize("name", PAIRS)
def test_the_one_thing_that_differs_is_named_and_nothing_else(name: str) -> None:
    one, other, cause = PAIRS[name]
    assert [likely["cause"] for likely in compare([("one", one), ("other", other)])["likely"]] == [cause]


def test_the_held_out_losses_and_what_a_seed_alone_does_are_told_in_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line of losses was cut off before the tuned model's, and the band stood in the JSON alone."""
    losses = {"first": 3.92189555, "last": 3.50310940, "eval_base": 3.31906526, "eval_tuned": 2.67748612}
    one = run_of(LONG, sha="a", **{"train.seed": 0}) | {"loss": losses}
    other = run_of([loss + 0.25 for loss in LONG], sha="b", **{"train.seed": 1}) | {"loss": losses | {"eval_tuned": 2.65513316}}
    monkeypatch.setattr(compare_command, "compared", lambda _: compare([("one", one), ("other", other)]))
    compare_command.run(argparse.Namespace(runs=[Path("one"), Path("other")], json=False, html=None))
    said = capsys.readouterr().out
    assert "eval_tuned: 2.6775 |" in said and "eval_tuned: 2.6551\n" in said
    assert "by the seed alone: end losses up to 0.2500 apart (1 pair of runs that differ by train.seed alone)" in said


def test_the_figures_of_a_comparison_are_those_of_the_rows_of_its_runs(tmp_path: Path) -> None:
    """Recomputed from steps.jsonl alone. The first two see the same rows in each step, the third others."""
    chance, names, rows = random.Random(6), dict[Path, str](), dict[str, list[Json]]()
    for seed, (name, higher) in enumerate({"one": 0.0, "other": 0.4, "third": 2.0}.items()):
        folder = Path(shutil.copytree(ROOT / "tests/fixtures/runs/text", tmp_path / name))
        names[folder] = name
        (folder / "quarantine.jsonl").write_text("")
        config = (folder / "config.yaml").read_text()
        assert "  seed: 0\n" in config
        (folder / "config.yaml").write_text(config.replace("  seed: 0\n", f"  seed: {seed}\n"))
        summary = json.loads((folder / "summary.json").read_text())
        (folder / "summary.json").write_text(json.dumps(summary | {"artifact_sha256": f"{seed}" * 64, "incidents": []}))
        rows[name] = [
            {
                "step": step,
                "loss": 2.0 + higher + math.sin(step) + chance.gauss(0, 0.05),
                "tokens": chance.randrange(50, 400),
                "seconds": round(chance.uniform(0.1, 0.9), 6),
                "peak_bytes": chance.randrange(1 << 30),
                "samples": [step + 100 * (seed == 2)],
            }
            for step in range(1, 41)
        ]
        (folder / "steps.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows[name]))
    answer = compared(names)
    told = {one["what"]: one["values"] for one in answer["differences"]}
    ends = {name: np.array([row["loss"] for row in own[-20:]]) for name, own in rows.items()}
    for name, own in rows.items():
        assert told["tokens_per_second"][name] == round(sum(row["tokens"] for row in own) / sum(row["seconds"] for row in own), 1)
        assert told["peak_bytes"][name] == max(row["peak_bytes"] for row in own)
        assert (told["loss"][name]["first"], told["loss"][name]["last"]) == (own[0]["loss"], own[-1]["loss"])
    pairs = list(itertools.combinations(ends, 2))
    band = max(abs(ends[one].mean() - ends[other].mean()) for one, other in pairs)
    assert answer["band"] == {"pairs": 3, "loss": round(band, 6)}
    for pair in pairs:
        said = next(one["evidence"] for one in answer["likely"] if one["evidence"].startswith(" and ".join(pair)))
        one, other = (ends[name] for name in pair)
        paired = "third" not in pair
        noise = (one - other).std(ddof=1) if paired else math.hypot(one.std(ddof=1), other.std(ddof=1))
        of = "of the same steps, one by one" if paired else "of a run's own steps"
        gap = f"end loss {one.mean():.4f} and {other.mean():.4f}, {abs(one.mean() - other.mean()):.4f} apart"
        assert f"{gap} (noise {of}: {noise / math.sqrt(20):.4f})" in said


AS_FAR: dict[str, tuple[Json, bool]] = {
    "to the end, both": (run_of(SHORT, **{"train.seed": 1}), True),
    "one was stopped half way": (run_of(SHORT, "interrupted", **{"train.seed": 1}), False),
    "both gave up at one step": (run_of(HIGH, "gave_up", **{"train.seed": 1}), True),
    "one made no step": (run_of([], "gave_up", **{"train.seed": 1}), False),
    "a row was left out of one": (run_of(HIGH, **{"train.seed": 1}) | {"quarantined": 1, "left_out": ["a:1"]}, False),
}


@pytest.mark.parametrize("name", AS_FAR)
def test_what_a_seed_alone_does_is_told_of_runs_that_went_as_far_as_each_other(name: str) -> None:
    """The gap between an end and a loss half way was told as the seed's doing."""
    other, told = AS_FAR[name]
    answer = compare([("one", run_of(LONG, **{"train.seed": 0})), ("other", other)])
    assert (answer["band"] is not None) is told
    assert any("train.seed and went as far as each other" in one for one in answer["unknown"]) is not told


def test_runs_that_a_clock_ended_say_nothing_of_the_seed() -> None:
    runs = [run_of(losses, **{"train.seed": at, "train.until.hours": 1.0}) for at, losses in enumerate((LONG, SHORT))]
    assert compare([("one", runs[0]), ("other", runs[1])])["band"] is None


def test_a_mark_of_runs_that_begin_now_is_no_cause_but_where_it_was_told_what_it_left_out(tmp_path: Path) -> None:
    runs = [RunFolder(Path(shutil.copytree(ROOT / "tests/fixtures/runs/text", tmp_path / name))) for name in ("before", "now")]
    marked = runs[1].timeline_file.read_text().replace('"own_head":false', '"own_head":false,"all_learn":true,"own_dropout":false')
    runs[1].timeline_file.write_text(marked)
    assert settings_of_process(read_timeline(runs[1].timeline_file)).all_learn
    assert changed(*map(facts_of, runs)) == []
    runs[1].event("setting_changed", what="residual_dropout 0.1 -> 0.0: the model's own code draws it, otherwise in every layout of a step")
    assert changed(*map(facts_of, runs)) == ["settings.own_dropout"]


@pytest.mark.parametrize("looked", [True, False])
def test_weights_are_said_to_be_the_same_where_they_were_looked_at(looked: bool) -> None:
    found = {"rows": "a", "lr": [0.1], "random": "b"} | ({"weights": "c"} if looked else {})
    looks = [Look(1, step, False, found) for step in (1, 2)]
    told = in_words(compare_fingerprints(looks, looks), "other")
    assert ("random states and weights" in told) is looked and ("as far as they were looked at" in told) is not looked


SPEEDS: dict[str, tuple[Json, str]] = {
    "ranks": ({"config": {"train.ranks": 2}}, "train.ranks"),
    "the learning rate": ({"config": {"train.lr": 1.0}}, "other work on the machine, or cannot be told"),
    "micro-batches that followed from something else": (
        {"config": {"train.lr": 1.0}, "settings": {"micro_batch_tokens": 128}},
        "settings.micro_batch_tokens",
    ),
    "micro-batches that are nearly as large": (
        {"config": {"train.seed": 1}, "settings": {"micro_batch_tokens": 63}},
        "other work on the machine, or cannot be told",
    ),
}


@pytest.mark.parametrize("name", SPEEDS)
def test_a_speed_is_laid_to_what_bears_on_speed(name: str) -> None:
    changes, cause = SPEEDS[name]
    one, other = run_of(LONG) | {"tokens_per_second": 100.0}, run_of(LONG) | changes | {"tokens_per_second": 20.0}
    of_loss, of_speed = compare([("one", one), ("other", other)])["likely"]
    assert of_loss["cause"] == "noise" and of_speed["cause"] == cause
    assert cause.startswith("other work") or "other work on the machine is not ruled out" in of_speed["evidence"]
