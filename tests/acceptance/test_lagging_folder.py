"""A shared folder that lags, as a mount of its own on each machine: late operations, names and sizes seen some seconds after they changed.

Needs fusepy (pip install fusepy), libfuse 2 and the right to mount; skipped where they are not there.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import ROOT, events, holdfast, lines, start, wait_until, write_config
from holdfast.base.errors import Stop
from holdfast.supervision.remote.lease import lease_at
from holdfast.supervision.remote.state import fetch, states_at
from holdfast.supervision.remote.targets import target_of

LAG_S, LATE_S = 0.02, 3
TRAIN = {"steps": 10, "effective_batch": 8, "reduction_parts": 2, "threads": 1, "max_tokens": 96}
pytestmark = [
    pytest.mark.long,
    pytest.mark.usefixtures("no_leftovers"),
    pytest.mark.skipif(not importlib.util.find_spec("fuse") or not Path("/dev/fuse").exists(), reason="no fusepy, or nothing to mount"),
]


@pytest.fixture
def mounts(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """One folder as two machines see it, each through a mount of its own."""
    (tmp_path / "disk").mkdir()
    places, serving = (tmp_path / "here", tmp_path / "there"), []
    late = [f"{name}_timeout={LATE_S}" for name in ("entry", "negative", "attr")]
    try:
        for place in places:
            place.mkdir()
            command = [sys.executable, ROOT / "tests/support/lagging.py", tmp_path / "disk", place, str(LAG_S), *late]
            serving.append(subprocess.Popen(command))
            wait_until(place.is_mount)
        yield places
    finally:
        for place, server in zip(places, serving, strict=False):
            subprocess.run(["umount", "-l", place], check=False)
            server.terminate()
            server.wait()


def summary_of(run: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((run / "summary.json").read_text())
    return summary


def fault(file: Path, **about: Any) -> Path:
    file.write_text(json.dumps({"faults": [about]}))
    return file


def test_ranks_whose_run_folder_lags_end_with_the_same_bits_and_are_not_taken_for_dead(
    config_of: Callable[..., Path], tmp_path: Path, mounts: tuple[Path, Path]
) -> None:
    config = config_of(train=TRAIN, run={"standby": False})
    assert holdfast("train", config, "--run", tmp_path / "alone").returncode == 0
    faults = fault(tmp_path / "faults.json", effect="kill", when={"rank": 1, "step": 5, "phase": "backward", "attempt": 1})
    with socket.create_server(("127.0.0.1", 0)) as free:
        meet = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    commands = [
        start("train", config, "--run", mounts[rank] / "run", "--faults", faults, env=meet | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in (1, 0)
    ]
    said = [command.communicate()[0] for command in commands]
    assert [command.returncode for command in commands] == [0, 0], said
    run = tmp_path / "disk" / "run"
    assert summary_of(run)["artifact_sha256"] == summary_of(tmp_path / "alone")["artifact_sha256"]
    assert [row["step"] for row in lines(run / "steps.jsonl")] == list(range(1, 11))
    assert json.loads((run / "attempts/001/wreck.json").read_text())["words"] == "rank 1 killed by SIGKILL"
    assert len(events(run, "attempt_ended")) == 1, "the other one finished"
    assert not events(run, "rank_slow") and summary_of(run)["attempts"] == 2


def test_a_second_place_that_lags_shows_states_whole_or_not_and_one_machine_trains(
    assets: Any, tmp_path: Path, mounts: tuple[Path, Path]
) -> None:
    here, there = (target_of(str(place / "away")) for place in mounts)
    same: dict[str, Any] = {"train": TRAIN | {"steps": 160}, "run": {"standby": False}}
    one = write_config(assets, tmp_path / "one.yaml", **same, save={"to": here.address, "every": 2})
    other = write_config(assets, tmp_path / "other.yaml", **same, save={"to": there.address, "every": 2})
    slow = fault(tmp_path / "slow.json", effect="slow", seconds=0.5, when={"every": 1})
    first = start("train", one, "--faults", slow, "--run", tmp_path / "one")
    wait_until(lambda: bool(states_at(here)))
    tries, seen = 0, set[int]()
    while lease_at(there) is None or len(seen) < 3:
        tries += 1
        place = tmp_path / f"fetched-{tries}"
        with contextlib.suppress(Stop):  # none yet, as it is seen from there
            seen.add(fetch(there, place)[0])
    refused = holdfast("train", other, "--run", tmp_path / "other")
    assert refused.returncode == 1 and "is being trained by" in refused.stderr, refused.stderr
    assert first.poll() is None and not events(tmp_path / "one", "lease_lost")
    stopped = holdfast("stop", tmp_path / "one")
    first.communicate()
    assert (stopped.returncode, first.returncode) == (0, 130)
    done = holdfast("train", other, "--run", tmp_path / "other", "--json")
    assert done.returncode == 0 and "fetched the state after step" in done.stderr, done.stderr
    alone = holdfast("train", write_config(assets, tmp_path / "alone.yaml", **same), "--run", tmp_path / "alone", "--json")
    assert json.loads(done.stdout)["artifact_sha256"] == json.loads(alone.stdout)["artifact_sha256"]
    for run in ("one", "other"):
        assert not events(tmp_path / run, "hang")
