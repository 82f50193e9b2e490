"""The lab reaches the same verdict on a card as on the CPU, whatever fails and wherever, and counts its processes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from conftest import holdfast, lines
from holdfast.base.files import read_json, write_json
from holdfast.book import cards_of
from holdfast.experiments.hosts import Hosts
from holdfast.experiments.investigate import investigate
from holdfast.experiments.trials import Lab
from holdfast.run.folder import RunFolder
from holdfast.run.timeline import read_timeline, settings_at
from holdfast.supervision.launch import child_environment, trainer_launch
from simulated import card

pytestmark = card.needed
Prepared = Callable[[str], RunFolder]
STEP = 4  # whose state before it lies in a checkpoint
TRIED = ("smaller-micro-batch", "eager-attention", "launch-blocking")
REMEDIES = [cards_of("remedies")[name] for name in TRIED]


@pytest.fixture(scope="module")
def prepared(assets: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """A finished run of five steps with all its states, made on the CPU or on the card when it is first asked for."""
    folder, made = tmp_path_factory.mktemp("lab"), {}

    def run_on(device: str) -> RunFolder:
        if device not in made:
            tree = {
                "model": str(assets.model),
                "data": {"files": [str(assets.rows)], "held_out": 0.0},
                "adapter": {"r": 4, "dropout": 0.1},
                "train": {"steps": 5, "effective_batch": 8, "micro_batch_tokens": 120, "threads": 1},
                "save": {"every": 1, "keep": 100},
                "run": {"device_s": 1},
            }
            (folder / "config.yaml").write_text(json.dumps(tree))
            done = holdfast("train", folder / "config.yaml", "--run", folder / device, env=on(device))
            assert done.returncode == 0, done.stderr
            made[device] = RunFolder(folder / device)
        return made[device]

    return run_on


def on(device: str, **options: Any) -> dict[str, str]:
    return card.environment(**options) if device == "card" else {}


@contextmanager
def lab_of(run: RunFolder, fault: dict[str, Any] | None, environment: dict[str, str]) -> Iterator[Lab]:
    """A lab for a step of a prepared run; `fault` meets its trials as it would have met the run."""
    shutil.rmtree(run.trials, ignore_errors=True)
    launch = run.attempt(run.attempts()[-1]) / "launch.json"
    faults = run.path / "faults.yaml"
    faults.write_text(json.dumps([fault] if fault else []))
    write_json(launch, (read_json(launch) or {}) | {"faults": str(faults) if fault else None})
    settings = settings_at(read_timeline(run.timeline_file), STEP)
    all_of_it = child_environment(trainer_launch(run).env) | environment
    with Hosts(run, STEP, all_of_it, 60.0, print, lambda: False) as hosts:
        yield Lab(run, STEP, settings, hosts.replay, 60)


def poisoned(run: RunFolder) -> tuple[int, dict[str, Any]]:
    """(a row of the step, the condition that it is in the micro-batch)"""
    row = lines(run.steps_file)[STEP - 1]["samples"][3]
    return row, {"sample": f"rows.jsonl:{row + 1}"}


BLOCKING = {"CUDA_LAUNCH_BLOCKING": "1", "HIP_LAUNCH_BLOCKING": "1"}
PLACES: dict[str, dict[str, Any]] = {
    "setting": {"setting": {"attention": "sdpa"}},
    "environment": {"env": {"CUDA_LAUNCH_BLOCKING": None}},
    "transient": {"attempt": 1},
}


def expected(run: RunFolder, place: str) -> tuple[Any, ...]:
    row = poisoned(run)[0]
    return {
        "row": ("rows", "quarantine", (row,), {}, {}),
        "setting": ("setting", "eager-attention", (), {"attention": "eager"}, {}),
        "environment": ("setting", "launch-blocking", (), {}, BLOCKING),
        "transient": ("transient", "none", (), {}, {}),
    }[place]


def processes(run: RunFolder) -> int:
    """How many the trials needed: another one after each that died or left the card, and for each other environment."""
    trials = [read_json(file) or {} for file in sorted(run.trials.glob("*/trial.json"))]
    over = [one["ending"].startswith("killed") or one.get("leaving", False) for one in trials]
    other = [one["changed"]["env"] != after["changed"]["env"] for one, after in pairwise(trials)]
    return 1 + sum(gone or changed for gone, changed in zip(over, other, strict=False))


LONG = pytest.mark.long
KINDS = {"raise": "raise", "abort": "abort", "nan": "nan_loss"}
HERE = ["cpu", "card", "late"]  # late: the card tells of an error when it is next waited for
IN_CI = {("nan", "row", "card"), ("raise", "setting", "late")}
PLACES_OF_FAULTS = ("row", "setting", "environment", "transient")
ALL = [one for one in product(KINDS, PLACES_OF_FAULTS, HERE) if one[2] != "late" or one[0] == "raise"]


CASES = [pytest.param(*one, marks=[] if one in IN_CI else LONG) for one in ALL]


@pytest.mark.parametrize(("kind", "place", "here"), CASES)
def test_the_verdict_is_the_same_everywhere(prepared: Prepared, kind: str, place: str, here: str) -> None:
    device = "cpu" if here == "cpu" else "card"
    run = prepared(device)
    when = {"step": STEP} | (poisoned(run)[1] if place == "row" else PLACES[place])
    fault = {"name": "hidden", "when": when, "effect": KINDS[kind]}
    with lab_of(run, fault, on(device, late=here == "late")) as lab:
        verdict = investigate(lab, (), 2, REMEDIES)
    told = verdict.kind, verdict.remedy, verdict.rows, verdict.settings, verdict.env
    assert told == expected(run, place), verdict.evidence
    assert verdict.processes == processes(run)
    assert verdict.processes == 1 or kind != "nan" or place == "environment", "what is not finite breaks no context"


def test_one_model_is_on_the_card_and_too_little_memory_is_an_outcome(prepared: Prepared) -> None:
    run = prepared("card")
    with lab_of(run, None, {}):
        done = card.run(Path(__file__).parent / "on_card_trials.py", run.path)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "all of it" in done.stdout


def test_a_trial_that_finds_no_card_is_no_answer(prepared: Prepared) -> None:
    """On the CPU it would go through, and a broken kernel would count as a passing trouble."""
    run = prepared("card")
    with lab_of(run, None, on("card", gone_after=0)) as lab:
        verdict = investigate(lab, (), 2, REMEDIES)
    assert (verdict.kind, verdict.odds) == ("uncertain", None)
    assert verdict.evidence == "a trial could not be begun: the GPU is gone"
    assert verdict.processes > 1, "it was looked for again"
