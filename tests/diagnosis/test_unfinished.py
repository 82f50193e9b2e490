"""Nothing that is not at its own end is called healthy: logs that stop before it, run folders nobody finished."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import holdfast, kill, processes_of, start, wait_until
from holdfast.book import cards_of
from holdfast.diagnosis.diagnose import diagnose
from holdfast.diagnosis.explain import answer
from holdfast.diagnosis.health_signs import at_the_end
from holdfast.diagnosis.logs.text import Evidence, clean_lines
from holdfast.run.types import Diagnosis

BOOK = cards_of("failures")
WELL = "\n".join(f"{{'loss': {1.9 - at / 10:.2f}, 'grad_norm': 0.5, 'learning_rate': 0.0001, 'epoch': 0.{at}1}}" for at in range(1, 5))
DONE = "{'train_runtime': 812.3, 'train_loss': 1.12, 'epoch': 3.0}"


def of(log: str, code: int | None = None) -> Diagnosis:
    return diagnose(Evidence(tuple(clean_lines(log)), code), BOOK)


@pytest.mark.parametrize(
    "progress",
    [
        "  0%|          | 7/2000 [00:21<1:39:12,  3.01s/it]",
        " 35%|###5      | 700/2000 [00:21<1:39:12,  3.01s/it]\nMap: 100%|##| 500/500 [00:01<00:00, 9.1s/it]",
        "step 7/2000",
        "Step [7/2000]",
        "iteration        7/    2000 | consumed samples: 1792 |",
        "step 7 of 2,000",
        "Epoch 1/3",
        "Epoch: [1/3]",
        "[7/2000] saved a checkpoint",
        "***** Running training *****\n  Num Epochs = 3\n" + WELL,
    ],
)
def test_a_log_that_ends_before_its_own_end_is_asked_how_the_program_ended(progress: str) -> None:
    log = f"{WELL}\n{progress}"
    found = of(log)
    assert (found.cause, found.confidence) == ("unknown", 0.0)
    assert "the log ends at" in found.words()[0]
    told = answer(found, BOOK)["explanation"]
    assert "cut short" in told and "--exit-code" in told
    assert of(log, 0).cause == "unknown", "a code does not bring the missing steps"
    assert of(log, 137).cause not in ("healthy", "unknown") or of(log, 137).words()
    assert of(f"{log}\n{DONE}").cause == "healthy", "it came to its end"
    stopped = "! stopped after step 12; rerun the same command to resume"
    assert of(f"{log}\n{stopped}").cause == "healthy", "it was asked to stop, and saved"


@pytest.mark.parametrize(
    "log",
    [
        WELL,
        f"{WELL}\n100%|##########| 2000/2000 [00:21<00:00,  3.01s/it]",
        f"{WELL}\nstep 2000/2000",
        f"Loading checkpoint shards: 100%|##| 2/2 [00:01<00:00]\n{WELL}",
        f"{WELL}\n  7/2000 [00:21<1:39:12]\nTraining completed.",
        f"{WELL}\nread /data/2024/11/rows.jsonl",
    ],
)
def test_a_log_that_says_no_such_thing_is_left_alone(log: str) -> None:
    assert of(log).cause == "healthy"


def test_a_failure_is_told_however_the_log_ends() -> None:
    assert of(f"{WELL}\nstep 7/2000\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB").cause == "gpu_out_of_memory"


@pytest.mark.usefixtures("no_leftovers")
def test_a_run_that_is_not_finished_is_never_healthy(config_of: Callable[..., Path], tmp_path: Path) -> None:
    run = tmp_path / "run"
    config = config_of(train={"steps": 4000})
    child = start("train", config, "--run", run)
    wait_until(lambda: (run / "steps.jsonl").exists() and len((run / "steps.jsonl").read_text().splitlines()) > 2)

    def told() -> dict[str, Any]:
        done = holdfast("diagnose", run, "--json")
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    living = told()
    assert (living["cause"], living["confidence"]) == ("unknown", 0.0) and "of 4,000" in living["explanation"]
    child.kill()
    for _ in range(3):
        for pid in processes_of(run).values():
            kill(pid)
    child.communicate()
    wait_until(lambda: json.loads(holdfast("status", run, "--json").stdout)["runs"][0]["state"] == "dead")
    dead = told()
    assert dead["cause"] == "unknown" and "dead at step" in dead["clues"][0]["text"] and "resumes the run" in dead["explanation"]


ROW = {"loss": 6.0, "grad_norm": 1.0, "lr": 1.0, "tokens": 100, "labels": 50, "token_accuracy": 0.5, "seconds": 1.0, "peak_bytes": 1}


def test_what_was_odd_at_the_end_of_a_run_reaches_summary_report_terminal_and_diagnose(tmp_path: Path) -> None:
    signs = cards_of("signs").values()
    still = [ROW | {"step": at, "grad_norm": 0.0, "loss": 5.0 + at / 100} for at in range(1, 31)]
    told = [{"sign": "first", "step": 10, "says": "odd"}, {"sign": "spike", "step": 12, "says": "the loss jumped"}]
    found = at_the_end(still, told, signs)
    assert [(one["sign"], one["cause"], one["lasts"]) for one in found] == [
        ("spike", None, False),
        ("still", "no_learning_signal", True),
    ]
    assert at_the_end(still[:3], [], signs) == []


def test_a_run_that_learned_nothing_is_finished_and_not_healthy(config_of: Callable[..., Path], tmp_path: Path) -> None:
    run = tmp_path / "run"
    config = config_of(train={"steps": 24, "lr": 50.0, "warmup": 0}, data={"held_out": 0.1}, run={"rollback": False})
    done = holdfast("train", config, "--run", run)
    assert done.returncode == 0, done.stderr
    summary = json.loads((run / "summary.json").read_text())
    wrong = [one["says"] for one in summary["health"] if one["cause"] and one["lasts"]]
    assert summary["status"] == "finished" and wrong
    report = (run / "report.html").read_text()
    assert "finished, but not healthy" in done.stdout and wrong[0] in done.stdout
    assert "not healthy" in report and "better" not in done.stdout
    answered = json.loads(holdfast("diagnose", run, "--json").stdout)
    assert answered["cause"] not in ("healthy", "unknown") and answered["clues"][0]["text"] == wrong[0]
