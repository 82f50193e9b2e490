"""Whatever befalls a command, no word in the summary or on the terminal of `holdfast run` is false: the script's own notes decide."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from conftest import ROOT, holdfast
from support.told_truly import OURS, Json, Truth, drawn, false_words, options, words

SCRIPT = str(ROOT / "tests/support/drawn_trainer.py")


def carried_out(place: Path, plan: Json) -> list[str]:
    """Run a plan; the false words."""
    (place / "plan.json").write_text(json.dumps(plan))
    done = holdfast("run", "--run", "run", "--retries", 3, *options(plan), "--", sys.executable, SCRIPT, *words(plan), cwd=place)
    return list(false_words(place, plan, done.returncode, done.stdout + done.stderr))


@pytest.mark.parametrize("seed", [66, 200, 203, 379, 550])
def test_no_word_is_false(seed: int, tmp_path: Path) -> None:
    assert not carried_out(tmp_path, drawn(seed))


@pytest.mark.long
@settings(max_examples=100, suppress_health_check=list(HealthCheck))
@example(seed=66)
@example(seed=183)
@example(seed=379)
@example(seed=550)
@example(seed=17322)
@given(seed=st.integers(0, 1 << 32))
def test_no_word_is_false_whatever_befalls_a_command(seed: int) -> None:
    with TemporaryDirectory() as place:
        assert not carried_out(Path(place), drawn(seed)), drawn(seed)


def test_a_false_word_is_seen(tmp_path: Path) -> None:
    plan = drawn(0) | {"stages": [6], "prints": "bar", "each": 1}
    rows = [{"start": 1, "began": 0, "told": None}, *({"step": n, "call": 1} for n in range(1, 5)), {"saved": "checkpoint-4", "step": 4}]
    rows += [{"start": 2, "began": 2, "told": "out/checkpoint-2"}, *({"step": n, "call": 2} for n in range(3, 7)), {"end": True, "call": 2}]
    (tmp_path / "run").mkdir()
    (tmp_path / "truth.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert Truth(tmp_path, plan).twice == 2
    incident = {
        "attempt": 1,
        "step": 5,
        "lost_steps": 2,
        "evidence": "killed; went on from out/checkpoint-2, at least 2 committed steps computed again",
    }
    true = {"status": "finished", "attempts": 2, "steps": 6, "total_steps": 6, "incomplete": False, "steps_computed_twice": 2}
    true |= {"steps_computed_twice_exact": False, "after_training": None, "nothing_saved": None, "checkpoints_set_aside": [], "doubt": None}
    true |= {"goodput": 0.5, "progress_from": "output", "loss": {"first": None, "last": None}, "incidents": [incident]}
    false = [
        {"attempts": 1}, {"status": "gave_up"}, {"steps": 7}, {"total_steps": 9}, {"incomplete": True}, {"steps_computed_twice": 3},
        {"steps_computed_twice_exact": True, "steps_computed_twice": 1}, {"after_training": {"result": "out/checkpoint-4"}},
        {"nothing_saved": "nothing was saved"}, {"checkpoints_set_aside": ["out/set-aside-checkpoint-4"]}, {"goodput": 1.2},
        {"doubt": "attempt 2 was told to go on from out/checkpoint-2 and began anew"}, {"loss": {"first": 9.0, "last": None}},
        {"incidents": [incident | {"lost_steps": 3}]}, {"incidents": [incident | {"evidence": "went on from out/checkpoint-4, and"}]},
        {"incidents": [incident | {"evidence": "the next started from the beginning, at least 2 committed steps computed again"}]},
    ]  # fmt: skip
    for file, wrong in (("/home/her/holdfast/train.py", False), (f"{OURS}/cli/__init__.py", True)):
        (tmp_path / "run/summary.json").write_text(json.dumps(true))
        assert bool(list(false_words(tmp_path, plan, 0, f'  File "{file}", line 7, in <module>'))) is wrong, file
    for change, wrong in (({}, False), *((one, True) for one in false)):
        (tmp_path / "run/summary.json").write_text(json.dumps(true | change))
        assert bool(list(false_words(tmp_path, plan, 0, "ended well"))) is wrong, change
