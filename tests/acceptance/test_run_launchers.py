"""`holdfast run -- torchrun ...` and `-- accelerate launch ...` of a script that saves with accelerate: one process fails, all go on."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import ROOT, holdfast

pytestmark = pytest.mark.usefixtures("no_leftovers")

SCRIPT = str(ROOT / "tests/support/accelerate_loop.py")
LAUNCHERS = {
    "torchrun": [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", SCRIPT],
    "accelerate": [sys.executable, "-m", "accelerate.commands.launch", "--cpu", SCRIPT],
}
ENDINGS = {"kill": "killed by SIGKILL", "term": "killed by SIGTERM", "hang": "gave no sign of life"}


@pytest.mark.long
@pytest.mark.parametrize(("launcher", "rank"), [("torchrun", 1), ("accelerate", 0)])
@pytest.mark.parametrize("fault", ENDINGS)
def test_a_process_of_a_launcher_that_fails_costs_the_steps_since_the_last_save(
    launcher: str, rank: int, fault: str, tmp_path: Path
) -> None:
    words = LAUNCHERS[launcher]
    (tmp_path / "alone").mkdir()
    alone = subprocess.run([*words, "--output_dir", "out"], cwd=tmp_path / "alone", capture_output=True, text=True, check=True)
    held = ["--hang-s", 8, "--", *words, "--output_dir", "out", "--fault", f"{fault}:8:{rank}"]
    done = holdfast("run", "--run", "run", *held, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    weights = [re.findall(r"weights \w+", text)[-1] for text in (alone.stdout, done.stdout)]
    assert weights[0] == weights[1], done.stderr
    assert (tmp_path / "computed.0").read_text().split() == [*map(str, range(1, 8)), *map(str, range(7, 13))], "only step 7 twice"
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert (summary["status"], summary["attempts"], summary["steps"], summary["doubt"]) == ("finished", 2, 12, None)
    assert summary["steps_computed_twice"] <= 1 and not summary["steps_computed_twice_exact"]
    incident = summary["incidents"][0]
    assert ENDINGS[fault] in incident["evidence"] and "went on from out/step_6, " in incident["evidence"]
    assert "batch system" not in done.stderr


@pytest.mark.long
def test_one_of_two_data_parallel_trainers_that_stops_is_found_with_the_callback_and_both_go_on_from_their_save(tmp_path: Path) -> None:
    launch = [*LAUNCHERS["torchrun"][:-1], str(ROOT / "tests/support/small_trainer.py"), "--output_dir", "out"]
    options = ["--max_steps", "8", "--save_steps", "3", "--per_device_train_batch_size", "2", "--report_to", "none", "--use_cpu", "True"]
    words = [*launch, *options, "--ddp_backend", "gloo", "--seed", "3"]
    (tmp_path / "alone").mkdir()
    alone = subprocess.run(words, cwd=tmp_path / "alone", capture_output=True, text=True, check=True)
    done = holdfast("run", "--run", "run", "--callback", "--hang-s", 8, "--", *words, "--faults", "hang1:6:1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert set(re.findall(r"weights \w+", alone.stdout)) == set(re.findall(r"weights \w+", done.stdout)), done.stderr
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert (summary["status"], summary["attempts"], summary["steps"], summary["doubt"]) == ("finished", 2, 8, None), summary
    assert (summary["progress_from"], summary["steps_computed_twice"], summary["steps_computed_twice_exact"]) == ("callback", 2, True)
    incident = summary["incidents"][0]
    assert ENDINGS["hang"] in incident["evidence"] and "went on from out/checkpoint-3, 2 committed steps" in incident["evidence"]
