"""`holdfast.ray.trainer` on a real cluster of two nodes on this machine: a worker killed, a node lost; the bits of a run on one machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_cluster import MARK, PREFIX, RAY, no_token, nodes, processes, read  # noqa: F401

from conftest import holdfast, lines, wait_until

pytestmark = [pytest.mark.skipif(not RAY.exists(), reason="Ray is not installed"), pytest.mark.long]
TRAIN = {"steps": 12, "effective_batch": 8, "reduction_parts": 2, "lr": 1e-3, "max_tokens": 96, "threads": 1}
DRIVER = """
    import json, sys
    import ray, ray.train
    import holdfast.ray
    from holdfast.base.errors import Stop
    ray.init(address=sys.argv[1], log_to_driver=True)
    run = sys.argv[3]
    kept = ray.train.RunConfig(name="ours", storage_path=run + "-ray")
    trainer = holdfast.ray.trainer(sys.argv[2], run=run, workers=(1, 2), run_config=kept)
    try:
        result = trainer.fit()
    except Stop as stop:
        print("STOP", stop.code, stop)
        sys.exit(stop.code)
    print("RESULT", json.dumps(result.metrics), result.checkpoint.path if result.checkpoint else None, flush=True)
"""


def driver(address: str, config: Path, run: Path, log: Path) -> subprocess.Popen[bytes]:
    env = os.environ | {"RAY_USAGE_STATS_ENABLED": "0"}
    with log.open("wb") as out:
        return subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(DRIVER), address, str(config), str(run)], stdout=out, stderr=out, env=env
        )


def said(log: Path) -> str:
    return log.read_text(errors="replace")[-6000:]


def config_with(config_of: Callable[..., Path], slow: bool, **more: Any) -> Path:
    faults = [{"name": "slow", "effect": "slow", "seconds": 1.0, "when": {"phase": "optimizer"}}] if slow else []
    return config_of(train=TRAIN, save={"every": 2}, run={"standby": False}, **({"faults": faults} if faults else {}), **more)


def steps_of(run: Path) -> int:
    return read(run / "steps.jsonl").count(b"\n")


def test_a_worker_is_killed_and_a_node_lost_and_the_bits_are_those_of_one_machine(config_of: Callable[..., Path], tmp_path: Path) -> None:
    alone = holdfast("train", config_with(config_of, slow=False), "--run", tmp_path / "alone", "--json")
    assert alone.returncode == 0, alone.stderr
    run, log = tmp_path / "ours", tmp_path / "driver.log"
    with nodes({}, {"HOLDFAST_NODE": "second"}) as address:
        child = driver(address, config_with(config_of, slow=True), run, log)
        try:
            wait_until(lambda: steps_of(run) >= 3, patience_s=400)
            commands = [
                pid for pid, entry in processes() if str(run).encode() in read(entry / "cmdline") and b"\0--json" in read(entry / "cmdline")
            ]
            workers = [int(read(Path(f"/proc/{pid}/stat")).split()[3]) for pid in commands]
            assert len(workers) == 2, "one on each node"
            os.kill(workers[-1], signal.SIGKILL)
            before = steps_of(run)
            wait_until(lambda: steps_of(run) > before + 1, patience_s=400)
            second = [
                pid
                for pid, entry in processes()
                if b"HOLDFAST_NODE=second" in read(entry / "environ") and f"{MARK}={PREFIX}".encode() in read(entry / "environ")
            ]
            for pid in second:
                os.kill(pid, signal.SIGKILL)
            assert child.wait(600) == 0, said(log)
        finally:
            child.kill()
            child.wait()
    summary = json.loads((run / "summary.json").read_text())
    assert summary["artifact_sha256"] == json.loads(alone.stdout)["artifact_sha256"], "whoever was lost"
    assert [row["step"] for row in lines(run / "steps.jsonl")] == list(range(1, 13))
    result = next(line for line in log.read_text().splitlines() if line.startswith("RESULT"))
    assert summary["artifact_sha256"] in result and "checkpoint" in result.rsplit(" ", 1)[1]


def test_a_run_that_is_refused_is_not_started_again(config_of: Callable[..., Path], tmp_path: Path) -> None:
    config, log = config_with(config_of, slow=False, adapter={"targets": ["nothing_of_this_name"]}), tmp_path / "driver.log"
    with nodes({}) as address:
        child = driver(address, config, tmp_path / "refused", log)
        assert child.wait(400) in (1, 3), said(log)
    assert "STOP" in said(log)
