"""Sixty SIGKILLs at calls drawn by a seed, of a supervised command, its shim and `holdfast run` itself: always the script's own result.

What the script's own optimizer counted decides whether what is told is true.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import ROOT, holdfast, lines

pytestmark = pytest.mark.usefixtures("no_leftovers")

STEPS, KILLS = 24, 10  # kills of a script in one run; its shim and `holdfast run` are killed besides
STRUCK = [sys.executable, str(ROOT / "tests/support/struck.py")]
TOLD = {"output_dir": "out", "max_steps": STEPS, "save_steps": 2, "per_device_train_batch_size": 2, "learning_rate": 0.01, "seed": 3}
TRAINER = [*STRUCK, "small_trainer", *(word for name, value in TOLD.items() for word in (f"--{name}", str(value)))]
TRAINER += ["--report_to", "none", "--use_cpu", "True"]
COMMANDS = {
    "loop": (["--checkpoints", "ckpt"], [*STRUCK, "plain_loop", "--resume", "none", "--steps", str(STEPS)]),
    "trainer": ([], TRAINER),
    "callback": (["--callback"], TRAINER),
}


def undisturbed(kind: str, place: Path) -> tuple[str, int, int]:
    """What a script prints last when nobody disturbs it, its calls up to its first step, and all of them."""
    place.mkdir()
    (place / "plan.json").write_text("[]")
    environment = os.environ | {"STRIKES": str(place / "plan.json")}
    done = subprocess.run(COMMANDS[kind][1], cwd=place, capture_output=True, text=True, check=True, env=environment)
    first, calls = json.loads((place / "calls.json").read_text())
    return done.stdout.splitlines()[-1], first, calls


def drawn(seed: str, first: int, calls: int) -> list[list[tuple[str, int]]]:
    """By start: what is killed, and at which of the script's calls."""
    draw, plan = random.Random(seed), []
    for _ in range(KILLS):
        at = draw.randrange(first // 2, first + (calls - first) // 3)
        others = [(victim, draw.randrange(at)) for victim in ("shim", "run") if draw.random() < 0.3]
        plan.append([("script", at), *others])
    return plan


@pytest.mark.long
@pytest.mark.parametrize("kind", COMMANDS)
@pytest.mark.parametrize("seed", [0, 1])
def test_whatever_is_killed_at_whichever_call_the_script_ends_with_its_own_result(kind: str, seed: int, tmp_path: Path) -> None:
    weights, first, calls = undisturbed(kind, tmp_path / "alone")
    (tmp_path / "plan.json").write_text(json.dumps(drawn(f"{kind} {seed}", first, calls)))
    options, words = COMMANDS[kind]
    told, code = "", 1
    while code and told.count("\n---") <= KILLS:  # typed again where `run` itself was killed, or gave up because nothing was gained
        strikes = {"STRIKES": str(tmp_path / "plan.json"), "HOLDFAST_SNAPSHOT_SHARE": "1e9"}
        done = holdfast("run", "--run", "run", *options, "--", *words, cwd=tmp_path, env=strikes)
        code = done.returncode
        told += f"{done.stdout}{done.stderr}\n--- {code}\n"
    printed = "\n".join(file.read_text() for file in (tmp_path / "run/attempts").glob("*/output.log"))
    assert code == 0 and set(re.findall(r"^weights \w+$", printed, re.MULTILINE)) <= {weights}, told
    if kind == "loop":  # two files of torch.save with equal tensors may differ
        ours, theirs = (torch.load(place / f"ckpt/step-{STEPS}.pt")["model"] for place in (tmp_path, tmp_path / "alone"))
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs), told
    else:
        last = f"out/checkpoint-{STEPS}/adapter_model.safetensors"
        assert (tmp_path / last).read_bytes() == (tmp_path / "alone" / last).read_bytes(), told
    told_truly(json.loads((tmp_path / "run/summary.json").read_text()), lines(tmp_path / "starts.jsonl"), told)


def told_truly(summary: dict[str, Any], rows: list[dict[str, int]], told: str) -> None:
    """Hold a summary against the steps that the script's own optimizer counted; a start's last may be untold."""
    starts: list[list[int]] = []
    for row in rows:
        starts.append([]) if "start" in row else starts[-1].append(row["step"])
    twice, about = sum(map(len, starts)) - STEPS, f"{json.dumps(summary, indent=1)}\n{starts}\n{told}"
    assert (summary["status"], summary["steps"], summary["attempts"]) == ("finished", STEPS, len(starts)), about
    assert (summary["doubt"] is None or summary["after_training"]) and summary["incomplete"] is False, about
    assert summary["goodput"] is None or 0 < summary["goodput"] <= 1, about
    least = twice - len(starts) if summary["steps_computed_twice_exact"] else 0
    assert least <= summary["steps_computed_twice"] <= twice, about
    for incident in summary["incidents"]:
        ended, following = starts[incident["attempt"] - 1 : incident["attempt"] + 1]
        story, begin = incident["evidence"], following[0] - 1 if following else None
        if went_on := re.search(r"went on from \S*?(\d+)(?:\.pt)?, ", story):
            assert begin == int(went_on[1]), about
        if "started from the beginning" in story or "began anew" in story:
            assert begin in (0, None), about
        lost = sum(step > begin for step in ended) if begin is not None else None
        if "no committed step computed again" in story:
            assert lost in (0, 1, None), about
        assert lost is None or (incident["lost_steps"] or 0) <= lost, about
        assert incident["step"] <= STEPS, about


def test_a_summary_that_says_more_than_was_computed_is_seen() -> None:
    rows = [{"start": 1}, *({"step": step} for step in range(1, 7)), {"start": 2}, *({"step": step} for step in range(5, STEPS + 1))]
    incident = {
        "attempt": 1,
        "evidence": "went on from out/checkpoint-4, at least 1 committed step computed again",
        "lost_steps": 1,
        "step": 6,
    }
    summary = {
        "status": "finished",
        "steps": STEPS,
        "attempts": 2,
        "doubt": None,
        "after_training": None,
        "incomplete": False,
        "goodput": 0.5,
    }
    summary |= {"steps_computed_twice": 2, "steps_computed_twice_exact": True, "incidents": [incident]}
    told_truly(summary, rows, "")
    for false in (
        {"steps_computed_twice": 3},
        {"goodput": 1.2},
        {"incidents": [incident | {"evidence": "went on from out/checkpoint-6, no committed step computed again"}]},
        {"incidents": [incident | {"evidence": "the next started from the beginning, no step was seen to be computed again"}]},
        {"incidents": [incident | {"step": STEPS + 1}]},
    ):
        with pytest.raises(AssertionError):
            told_truly(summary | false, rows, "")
