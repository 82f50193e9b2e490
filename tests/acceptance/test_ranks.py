"""Several ranks: the same bits on any number of them, none moves alone, and the death of one costs what the death of a trainer costs."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from conftest import events, holdfast, kill, lines, make_rows, settings_with, start, wait_until, write_rows
from holdfast.base.errors import DONE, INTERRUPTED, Stop
from holdfast.base.files import write_json
from holdfast.config.load import load_config
from holdfast.config.train import Train
from holdfast.planning.ranks import devices_for, parts_per_step
from holdfast.processes.rank_environment import STARTED_BY
from holdfast.processes.rank_info import RankInfo, first_host, rank_info_of
from holdfast.processes.trainers import Trainers
from holdfast.run.attempt import close
from holdfast.run.folder import RunFolder
from holdfast.run.timeline import Entry
from holdfast.supervision.ranks.first import with_ranks
from holdfast.supervision.ranks.join import Follower
from holdfast.trainer.common.refuse import Refusal
from holdfast.trainer.distributed import group
from holdfast.trainer.distributed import rendezvous as meeting
from holdfast.trainer.distributed.group import Group
from holdfast.trainer.distributed.rank import Rank, own_parts, parts_of
from holdfast.trainer.distributed.same_setup import refuse_unlike
from holdfast.trainer.loop.stragglers import SlowRanks, slowest
from support.rounding import but_for_rounding
from support.world import new_run

pytestmark = pytest.mark.usefixtures("no_leftovers")

TRAIN = {"steps": 6, "effective_batch": 12, "reduction_parts": 4, "micro_batch_tokens": 80}
RX7900 = {"vendor": "amd", "arch": "gfx1100", "memory_bytes": 20 << 30, "name": "RX 7900 XT"}
RX7600 = {"vendor": "amd", "arch": "gfx1102", "memory_bytes": 16 << 30, "name": "RX 7600 XT"}
IGPU = {"vendor": "amd", "arch": "gfx1036", "memory_bytes": 1 << 30, "name": "iGPU", "integrated": True}


def trained(config: Path, *more: object) -> dict[str, Any]:
    """The summary of a run that is trained to its end."""
    done = holdfast("train", config, "--json", "--run", config.with_suffix(""), *more)
    assert done.returncode == 0, done.stderr
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary


# -- the same bits


@pytest.fixture(scope="module")
def alone(assets: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A run of one rank whose steps are cut into four parts, evaluated on the way."""
    import yaml

    folder = tmp_path_factory.mktemp("ranks")
    tree = {
        "model": str(assets.model),
        "data": {"files": str(write_rows(folder / "rows.jsonl", make_rows(90))), "held_out": 0.1},
        "adapter": {"r": 4, "dropout": 0.1},
        "train": TRAIN | {"lr": 1e-3, "max_tokens": 96, "threads": 1},
        "evaluate": {"every": 3, "generate": 0},
        "run": {"standby": False},
    }

    def write(name: str, **train: Any) -> Path:
        file = folder / f"{name}.yaml"
        file.write_text(yaml.safe_dump(tree | {"train": tree["train"] | train}))  # type: ignore[operator]
        return file

    return SimpleNamespace(write=write, summary=trained(write("alone")), run=folder / "alone")


def same(name: str, alone: SimpleNamespace) -> None:
    """The bits of the run of one rank: weights, losses, held-out losses."""
    run = alone.run.with_name(name)
    assert json.loads((run / "summary.json").read_text())["artifact_sha256"] == alone.summary["artifact_sha256"]
    for file in ("steps.jsonl", "evaluations.jsonl"):
        ours, theirs = lines(run / file), lines(alone.run / file)
        keys = ("step", "loss", "grad_norm", "tokens", "labels", "samples", "best")
        assert [[row.get(key) for key in keys] for row in ours] == [[row.get(key) for key in keys] for row in theirs]


def fault(effect: str, **when: Any) -> str:
    return json.dumps({"faults": [{"name": effect, "effect": effect, "when": when}]})


def with_one_killed(alone: SimpleNamespace) -> dict[str, Any]:
    """The summary of the run `two`, of two ranks, the second of which is killed in step 4; it has the bits of one rank."""
    config = alone.write("two", ranks=2)
    faults = config.with_suffix(".faults")
    faults.write_text(fault("kill", rank=1, step=4, phase="backward", attempt=1))
    summary = trained(config, "--faults", faults)
    assert summary["attempts"] == 2
    same("two", alone)
    return summary


def test_two_ranks_give_the_bits_of_one_although_one_of_them_is_killed(alone: SimpleNamespace) -> None:
    with_one_killed(alone)
    failure_report = json.loads((alone.run.with_name("two") / "attempts/001/wreck.json").read_text())
    assert failure_report["words"] == "rank 1 killed by SIGKILL"
    rows = lines(alone.run.with_name("two") / "steps.jsonl")
    assert all(len(row["rank_seconds"]) == 2 for row in rows), "who is slow can be seen"
    own = json.loads((alone.run.with_name("two") / "run.json").read_text())["id"][:12]
    assert not list(Path("/dev/shm").glob(f"holdfast-{own}*")), "no rank leaves a file"


@pytest.mark.long
def test_ranks_in_fp16_share_one_loss_scale_and_skip_a_step_of_which_one_of_them_overflowed(alone: SimpleNamespace) -> None:
    everywhere = {"name": "spike", "effect": "spike", "factor": 30000, "when": {"step": 2, "phase": "forward"}}
    at_one = everywhere | {"name": "spike at one", "when": {"step": 5, "phase": "forward", "rank": 1}}
    death = {"name": "kill", "effect": "kill", "when": {"rank": 1, "step": 4, "phase": "backward", "attempt": 1}}
    found = []
    for name, ranks, faults in (("fp16", 1, [everywhere]), ("fp16-two", 2, [everywhere, at_one, death])):
        config = alone.write(name, precision="fp16", ranks=ranks, schedule="constant", warmup=0)
        config.with_suffix(".faults").write_text(json.dumps({"faults": faults}))
        summary = trained(config, "--faults", config.with_suffix(".faults"))
        assert summary["attempts"] == ranks
        found.append(lines(config.with_suffix("") / "steps.jsonl"))
    keys = ("loss", "grad_norm", "skipped", "loss_scale", "samples")
    ours, theirs = ([[row[key] for key in keys] for row in rows] for rows in found)
    assert ours[:4] == theirs[:4]
    assert [row["skipped"] for row in found[1]] == [False, True, False, False, True, False]
    assert found[1][5]["loss_scale"] == found[1][0]["loss_scale"] / 4


@pytest.mark.long
@pytest.mark.parametrize("rank", range(4))
@pytest.mark.parametrize("phase", ["start", "forward", "optimizer"])
def test_four_ranks_then_two_give_the_bits_of_one_whichever_is_killed(alone: SimpleNamespace, rank: int, phase: str) -> None:
    name = f"four-{rank}-{phase}"
    config = alone.write(name, ranks=4)
    faults = config.with_suffix(".faults")
    when = {"rank": rank, "attempt": 1} if phase == "start" else {"rank": rank, "step": 3, "attempt": 1}
    halt = {"name": "stop", "effect": "raise", "when": {"step": 5, "rank": 0}}
    faults.write_text(json.dumps({"faults": [{"effect": "kill", "when": when | {"phase": phase}}, halt]}))
    stopped = holdfast("train", config, "--run", config.with_suffix(""), "run.trials=0", "--faults", faults)
    assert stopped.returncode == 3
    summary = trained(config, "train.ranks=2")
    assert summary["status"] == "finished"
    same(name, alone)


def test_the_rank_that_hangs_is_named_and_not_those_that_wait_for_it(alone: SimpleNamespace) -> None:
    config = alone.write("hang", ranks=2)
    faults = config.with_suffix(".faults")
    faults.write_text(fault("hang", rank=1, step=5, attempt=1))
    summary = trained(config, "--faults", faults, "run.hang_s=10")
    assert summary["attempts"] == 2
    same("hang", alone)
    run = alone.run.with_name("hang")
    hang = json.loads((run / "attempts/001/hang.json").read_text())
    assert hang["rank"] == 1 and hang["ranks"] == {"0": "waits for the others", "1": "step"} and hang["step"] == 5
    assert "rank 1 of 2 hangs, the others wait" in hang["reason"]
    log = (run / "attempts/001/output.log").read_text()
    assert log.count("Current thread") + log.count("most recent call first") >= 2, "the stacks of both"


def test_without_shards_two_ranks_come_close(alone: SimpleNamespace) -> None:
    summary = trained(alone.write("off", ranks=2, reduction_parts="off"))
    assert summary["loss"]["last"] == but_for_rounding(alone.summary["loss"]["last"], 10_000, condition=summary["steps"])
    assert summary["artifact_sha256"] != alone.summary["artifact_sha256"]


def test_a_rank_that_runs_out_of_memory_makes_all_micro_batches_smaller(alone: SimpleNamespace) -> None:
    config = alone.write("full", ranks=2, steps=2)
    faults = config.with_suffix(".faults")
    faults.write_text(json.dumps({"faults": [{"effect": "oom", "when": {"rank": 1, "tokens": [50, 10_000]}}]}))
    summary = trained(config, "--faults", faults)
    assert (summary["status"], summary["attempts"]) == ("finished", 1)
    changed = events(alone.run.with_name("full"), "setting_changed")
    assert changed and all("(rank 1)" in event["reason"] for event in changed)


def test_a_run_goes_on_with_the_devices_that_are_left_and_takes_one_that_is_back(alone: SimpleNamespace) -> None:
    """Its layers are cut between two ranks, whole on one, and cut again; the bits are those of a run that never cut any."""
    config, run = alone.write("lost", ranks=2, fsdp=True), alone.run.with_name("lost")
    faults = config.with_suffix(".faults")
    gone = {"effect": "device_gone", "when": {"rank": 0, "step": 3, "attempt": 1}, "message": "torch finds no GPU"}
    faults.write_text(json.dumps({"faults": [gone, {"effect": "kill", "when": {"step": 5, "attempt": 2}}]}))
    summary = trained(config, "--faults", faults)
    assert summary["attempts"] == 3
    same("lost", alone)
    launches = [json.loads((run / f"attempts/{number:03d}/launch.json").read_text())["devices"] for number in (1, 2, 3)]
    assert launches == [[0, 1], [1], [0, 1]]
    said = [event["decision"]["reason"] for event in events(run, "attempt_ended")]
    assert said[0] == "rank 0: torch finds no GPU; going on with 1 of the ranks"
    held = [event.get("frozen_bytes_held") for event in events(run, "restored")]
    assert held[1] is None and held[0] == held[2], "a piece of each layer"


@pytest.mark.parametrize(
    ("seconds", "slow"),
    [
        ([1.0, 1.1], None),
        ([1.0, 1.6], 1),
        ([3.0, 1.0, 1.0, 1.2], 0),
        ([0.001, 0.004], None),
        ([1.0, 1.0, 2.0, 2.0], 2),
    ],
)
def test_a_slow_rank_is_named_by_what_the_others_take(seconds: list[float], slow: int | None) -> None:
    assert slowest(seconds) == slow
    told: list[Any] = []
    watch = SlowRanks(lambda kind, **facts: told.append((kind, facts["rank"])))
    for step in range(40):
        watch.look(step, seconds)
    assert told == ([("rank_slow", slow)] if slow is not None else []), "once"
    for step in range(40, 80):
        watch.look(step, [1.0] * len(seconds))
    assert told == ([("rank_slow", slow), ("rank_slow", None)] if slow is not None else [])


# -- the sum


def summed(blocks: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """What each rank holds after the sum; ranks are threads, and what they send each other goes through queues."""
    ways: dict[tuple[int, int], queue.Queue[torch.Tensor]] = {}
    own = threading.local()

    def swap(other: int, outgoing: torch.Tensor, incoming: torch.Tensor) -> None:
        ways.setdefault((own.rank, other), queue.Queue()).put(outgoing.clone())
        incoming.copy_(ways.setdefault((other, own.rank), queue.Queue()).get(timeout=120))

    monkeypatch.setattr(group, "_swap", swap)
    copies = [block.clone() for block in blocks]

    def work(rank: int) -> None:
        own.rank = rank
        one = Group.__new__(Group)
        one.number, one.size, one._scratch = rank, len(blocks), {}
        one._add_in_tree(copies[rank])

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(len(blocks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return copies


def tree_sum(blocks: list[torch.Tensor]) -> torch.Tensor:
    if len(blocks) == 1:
        return blocks[0]
    half = len(blocks) // 2
    return tree_sum(blocks[:half]) + tree_sum(blocks[half:])


@pytest.mark.parametrize("size", [2, 4, 8, 16])
@pytest.mark.parametrize("elements", [1, 2, 7, 1000])
def test_all_ranks_hold_the_bits_of_one_binary_tree(size: int, elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = [torch.randn(elements, generator=torch.Generator().manual_seed(rank)) * 10.0 ** (rank % 5) for rank in range(size)]
    wanted = tree_sum(blocks)
    found = summed(blocks, monkeypatch)
    assert all(torch.equal(one, wanted) for one in found)
    if elements == 1000 and size > 2:
        assert not torch.equal(sum(blocks[1:], start=blocks[0]), wanted), "another order gives other bits"


def test_parts_are_even_in_tokens_and_follow_from_lengths_alone() -> None:
    lengths = [100, 1, 50, 50, 99, 2, 3, 4]
    parts = parts_of([7, 0, 4, 2, 3, 1], lambda: lengths, 4)
    assert parts == parts_of([0, 1, 2, 3, 4, 7], lambda: lengths, 4), "in whatever order they come"
    assert sorted(number for part in parts for number in part) == [0, 1, 2, 3, 4, 7]
    assert max(sum(lengths[number] for number in part) for part in parts) == 100
    for size in (1, 2, 4):
        dealt = [own_parts(SimpleNamespace(number=rank, size=size), parts) for rank in range(size)]  # type: ignore[arg-type]
        assert [part for own in dealt for part in own] == parts
    assert parts_of([1, 0], lambda: 1 / 0, 1) == [[1, 0]], "undivided, nobody asks for lengths"
    assert len(parts_of([1, 0], lambda: lengths, 8)) == 8, "some have nothing to do"


# -- processes that end together


def group_of(*scripts: str) -> Trainers:
    """Shell scripts as the ranks of a group."""
    script = 'case "$RANK" in ' + " ".join(f"{rank}) {text};;" for rank, text in enumerate(scripts)) + " esac"
    return Trainers(["sh", "-c", script], range(len(scripts)), {"PATH": "/bin:/usr/bin"}, ())


def exit_code(trainers: Trainers, within_s: float = 120.0) -> tuple[int, int]:
    """(exit code of the attempt, the rank it is of)."""
    deadline = time.monotonic() + within_s
    try:
        while (code := trainers.poll()) is None:
            assert time.monotonic() < deadline, "some rank goes on without the others"
            time.sleep(0.01)
        return code, trainers.guilty
    finally:
        trainers.kill()
        for process in trainers.processes:
            process.wait()


ENDS = [
    (("exec sleep 60", "kill -9 $$", "exec sleep 60"), (-9, 1), "who was killed takes the others along"),
    (("exit 72", "sleep 0.2; exit 1"), (1, 1), "who lost another is not the cause"),
    (("exit 0", "sleep 0.3; exit 0"), (0, 0), "done; the other may finish what it does"),
    (("exit 130", "sleep 0.3; exit 130"), (130, 0), "asked to stop"),
    (("sleep 0.3; exit 67", "exit 67"), (67, 1), "ended alike, by their own decision"),
    (("sleep 0.2; exit 72", "exit 68", "sleep 0.1; exit 72"), (68, 1), "one refused, the others lost it"),
    (("exit 72", "exit 72"), (72, 0), "the connection between them was cut"),
]


@pytest.mark.parametrize(("scripts", "wanted", "why"), ENDS, ids=[why for *_, why in ENDS])
def test_ranks_end_together_and_the_cause_is_named(scripts: tuple[str, ...], wanted: tuple[int, int], why: str) -> None:
    ended = exit_code(group_of(*scripts))
    assert ended == wanted or (wanted == (72, 0) and ended[0] == 72), why


def test_the_death_of_a_rank_ends_the_others_at_once() -> None:
    trainers = group_of("exec sleep 600", "sleep 0.3; kill -9 $$")
    exit_code(trainers)
    assert trainers.processes[0].returncode == -signal.SIGKILL and trainers.killed == {0}


def test_ranks_hear_who_they_are_and_the_port_is_taken_before_they_start() -> None:
    script = "import os; print(*map(os.environ.get, ('RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'MASTER_PORT')), flush=True)"
    trainers = Trainers([sys.executable, "-c", script], [0, 3], {"GLOO_SOCKET_IFNAME": "eth7"}, (), stdout=subprocess.PIPE)
    told = sorted(process.communicate()[0].decode().split() for process in trainers.processes)
    assert [one[:3] for one in told] == [["0", "2", "0"], ["1", "2", "3"]] and told[0][3] == told[1][3]


# -- what is asked for


REFUSED = [
    ({"reduction_parts": 6}, "reduction_parts is 6, which is no power of two: 4 or 8"),
    ({"ranks": 3}, "ranks is 3, which is no power of two: 2 or 4 with reduction_parts, any number with reduction_parts: off"),
    ({"ranks": 8, "reduction_parts": 4}, "ranks is 8 and reduction_parts 4"),
    ({"ranks": 2, "ranks_min": 4}, "ranks_min is 4, ranks 2"),
    ({"ranks": 0}, "greater than or equal to 1"),
    ({"ranks": "all"}, "ranks"),
]


@pytest.mark.parametrize(("train", "sentence"), REFUSED, ids=[sentence for _, sentence in REFUSED])
def test_what_cannot_be_is_refused_with_a_sentence(config_of: Callable[..., Path], train: dict[str, Any], sentence: str) -> None:
    with pytest.raises(Stop) as stop:
        load_config(config_of(train=train), [])
    assert stop.value.code == 2 and sentence in str(stop.value)


@pytest.mark.parametrize(
    ("train", "gpus", "known", "devices"),
    [
        ({}, [RX7900, RX7900], None, (0,)),
        ({"ranks": "auto"}, [RX7900, RX7900], None, (0, 1)),
        ({"ranks": "auto"}, [RX7900, IGPU], None, (0,)),
        ({"ranks": "auto"}, [], None, (0,)),
        ({"ranks": 4}, [], None, (0, 1, 2, 3)),
        ({"ranks": "auto"}, [RX7900] * 3, None, (0, 1)),
        ({"ranks": "auto", "reduction_parts": "off"}, [RX7900] * 3, None, (0, 1, 2)),
        ({"ranks": 4}, [RX7900] * 4, [0, 2, 3], (0, 2)),
        ({"ranks": 4, "reduction_parts": "off"}, [RX7900] * 4, [0, 2, 3], (0, 2, 3)),
        ({"ranks": 4, "ranks_min": 4}, [RX7900] * 4, [0, 2, 3], (0, 1, 2, 3)),
        ({"ranks": 2}, [RX7900] * 2, [1], (1,)),
        ({"ranks": "auto"}, [RX7900, RX7600, RX7900], None, (0, 2)),
        ({"ranks": 2, "reduction_parts": "off"}, [RX7900, RX7600, RX7900], [2], (2,)),
        ({"ranks": 4}, [RX7900, RX7600, RX7900], None, "train.ranks is 4, and this machine has 2 GPUs of one kind"),
        ({"ranks": 4}, [RX7900, RX7900], None, "train.ranks is 4, and this machine has 2 GPUs of one kind"),
    ],
)
def test_ranks_are_those_of_like_devices_that_are_there(
    train: dict[str, Any], gpus: list[Any], known: list[int] | None, devices: tuple[int, ...] | str
) -> None:
    machine = {"gpus": gpus, "torch": {"version": "2.13.0", "hip": "6.4"}}
    if isinstance(devices, str):
        with pytest.raises(Stop, match=devices):
            devices_for(Train(**train), machine, known)
    else:
        assert devices_for(Train(**train), machine, known) == devices


@pytest.mark.parametrize(
    ("train", "ranks", "parts"),
    [
        ({}, 1, 1),
        ({}, 2, 8),
        ({}, 16, 16),
        ({"reduction_parts": "off"}, 4, 1),
        ({"reduction_parts": False}, 4, 1),
        ({"reduction_parts": 4}, 1, 4),
    ],
)
def test_steps_are_cut_where_there_are_several_ranks(train: dict[str, Any], ranks: int, parts: int) -> None:
    assert parts_per_step(Train(**train), ranks) == parts


# -- started by others


LAUNCHED = [
    ({}, None),
    ({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}, None),
    ({"RANK": "0"}, None),
    ({"WORLD_SIZE": "4"}, None),
    (
        {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "none"},
        RankInfo("torchrun", 3, 4, 1, "a", 29500),
    ),
    (
        {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456", "KUBERNETES_SERVICE_HOST": "10.0.0.1"},
        RankInfo("Kubernetes", 1, 2, 0, "job-master-0", 23456),
    ),
    ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "7"}, None),  # in the batch script itself, beside srun
    (
        {
            "SLURM_PROCID": "5",
            "SLURM_STEP_NUM_TASKS": "8",
            "SLURM_LOCALID": "1",
            "SLURM_JOB_ID": "3",
            "SLURM_STEP_ID": "2",
            "SLURM_STEP_NODELIST": "gpu[07-10,12],cpu1",
        },
        RankInfo("Slurm", 5, 8, 1, "gpu07", 20_095),
    ),
    (
        {
            "SKYPILOT_NODE_RANK": "1",
            "SKYPILOT_NUM_NODES": "2",
            "SKYPILOT_NUM_GPUS_PER_NODE": "1",
            "SKYPILOT_NODE_IPS": "10.0.0.4\n10.0.0.5\n",
        },
        RankInfo("SkyPilot", 1, 2, 0, "10.0.0.4", 8008),
    ),
    (
        {
            "SKYPILOT_NODE_RANK": "0",
            "SKYPILOT_NUM_NODES": "2",
            "SKYPILOT_NUM_GPUS_PER_NODE": "8",
            "SKYPILOT_NODE_IPS": "10.0.0.4\n10.0.0.5",
        },
        "one process on each of 2 nodes with 8 GPUs",
    ),
    ({"PET_NNODES": "2", "PET_NODE_RANK": "0"}, "torchrun, which reads these variables, did not start it"),
    (
        {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.4", "MASTER_PORT": "3", "HOLDFAST_RAY": "1", "SLURM_JOB_ID": "3"},
        RankInfo("Ray", 1, 2, 0, "10.0.0.4", 3),
    ),
    ({"RANK": "0", "WORLD_SIZE": "2"}, "RANK and WORLD_SIZE are set, MASTER_ADDR and MASTER_PORT are not"),
    ({"RANK": "x", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, "RANK is 'x', not a number"),
    ({"RANK": "2", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, "RANK is 2, WORLD_SIZE 2: ranks count from 0"),
    ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "0"}, "Slurm names no hosts of this step"),
]


@pytest.mark.parametrize(("environment", "rank_info"), LAUNCHED)
def test_a_rank_is_known_by_its_variables(environment: dict[str, str], rank_info: RankInfo | str | None) -> None:
    if isinstance(rank_info, str):
        with pytest.raises(Stop, match=rank_info) as stop:
            rank_info_of(environment)
        assert stop.value.code == 2
    else:
        assert rank_info_of(environment) == rank_info


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("a", "a"), ("a,b", "a"), ("n[3,5]", "n3"), ("n[03-07]", "n03"), ("rack1-n[1-2].site,b", "rack1-n1.site"), ("n[1-4],m[2-3]", "n1")],
)
def test_the_first_host_is_where_ranks_meet(nodes: str, first: str) -> None:
    assert first_host(nodes) == first


@pytest.mark.parametrize(
    ("train", "size", "sentence"),
    [
        ({"ranks": 4}, 2, "train.ranks is 4, and torchrun started 2 processes"),
        ({}, 3, "torchrun started 3 processes: ranks is 3, which is no power of two"),
        ({"reduction_parts": 2}, 4, "a rank without a part has nothing to do"),
        ({"ranks_min": 2, "ranks": "auto"}, 1, "train.ranks_min is 2"),
    ],
)
def test_what_a_launcher_started_must_fit_the_config(
    config_of: Callable[..., Path], train: dict[str, Any], size: int, sentence: str
) -> None:
    with pytest.raises(Stop, match=sentence) as stop:
        with_ranks(load_config(config_of(train=train), []), RankInfo("torchrun", 0, size, 0, "a", 1))
    assert stop.value.code == 2


def as_rank(config: Path, run: Path, rank: int, size: int, port: int, *more: object) -> subprocess.Popen[str]:
    environment = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return start("train", config, "--run", run, *more, env={name: str(value) for name, value in environment.items()})


def test_ranks_of_another_launcher_start_again_in_place(alone: SimpleNamespace) -> None:
    """As torchrun, srun or a pod starts them: one command a rank, all the same. One rank's trainer dies on the way."""
    config, run = alone.write("launched"), alone.run.with_name("launched")
    faults = config.with_suffix(".faults")
    faults.write_text(fault("kill", rank=1, step=4, phase="backward", attempt=1))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    commands = [as_rank(config, run, rank, 2, port, "--faults", faults) for rank in (1, 0)]
    said = [command.communicate(timeout=300)[0] for command in commands]
    assert [command.returncode for command in commands] == [0, 0], said
    same("launched", alone)
    failure_report = json.loads((run / "attempts/001/wreck.json").read_text())
    assert failure_report["words"] == "rank 1 killed by SIGKILL"
    late = as_rank(config, run, 1, 2, port)
    assert late.communicate(timeout=300) and late.returncode == 0, "a run that is finished needs nobody"


@pytest.mark.parametrize("ends", [INTERRUPTED, DONE])
def test_ranks_of_another_launcher_stay_for_a_run_whose_steps_are_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: int
) -> None:
    """Their trainers end as after a stop, or a last step, and the first rank goes on: they had left, and the launcher ended the group."""
    run = new_run(tmp_path / "run")
    follower, seen = Follower(run, RankInfo("torchrun", 1, 2, 1, "a", 1), lambda: False, lambda _: None), list[int]()

    def begins(number: int) -> None:
        run.attempt(number).mkdir(parents=True)
        write_json(run.attempt(number) / "launch.json", {"ranks": 2})

    def ended(number: int) -> int:
        seen.append(number)
        goes_on = number == 1
        close(run.attempt(number), {"ending": {"kind": "finished"}} | ({"decision": {"go_on": True}} if goes_on else {}))
        if goes_on:
            begins(2)
        return ends if goes_on else DONE

    monkeypatch.setattr(follower, "_train", ended)
    begins(1)
    assert follower.to_end() == DONE and seen == [1, 2]


def test_a_port_that_another_program_has_is_named_and_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for name, value in {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}.items():
            monkeypatch.setenv(name, str(value))
        monkeypatch.delenv(STARTED_BY, raising=False)
        monkeypatch.setattr(meeting, "_TAKEN_S", 0.3)
        with pytest.raises(Refusal, match=rf"port {port}, where the launcher has the ranks meet .* is taken on this machine") as refused:
            meeting.store_of(0, 3)
        assert refused.value.cause == "launch_misconfigured" and f":{port}'" in refused.value.hint
        monkeypatch.setattr(meeting, "_TAKEN_S", 60.0)
        threading.Timer(0.3, taken.close).start()
        meeting.store_of(0, 3)
        assert meeting.announced(0) == 3
    meeting._launchers_store.cache_clear()


@pytest.mark.long
@pytest.mark.usefixtures("exec_only")
def test_torchrun_starts_a_group_whose_commands_are_killed(alone: SimpleNamespace) -> None:
    """Real torchrun: the command of a rank, the supervisor and a trainer are killed, each after some steps."""
    config, run = alone.write("torchrun", steps=40), alone.run.with_name("torchrun")
    wanted = trained(alone.write("forty", steps=40))
    command = ["torchrun", "--standalone", "--nproc-per-node", "2", "--max-restarts", "3", "-m", "--", "holdfast", "train", config]
    begun = subprocess.Popen([Path(sys.executable).with_name("torchrun"), *map(str, command[1:]), "--run", str(run)])
    step = 3
    for rank, module in ((1, "holdfast"), (0, "holdfast"), (1, "holdfast.trainer")):
        wait_until(lambda step=step: len(lines(run / "steps.jsonl")) >= step if (run / "steps.jsonl").exists() else False)  # type: ignore[misc]
        kill(of_rank(run, rank, module))
        step = len(lines(run / "steps.jsonl")) + 5
    assert begun.wait(600) == 0
    assert json.loads((run / "summary.json").read_text())["artifact_sha256"] == wanted["artifact_sha256"]


def all_of_rank(run: Path, rank: int) -> dict[int, list[str]]:
    """The processes of a rank, with their command lines."""
    found = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            command = (entry / "cmdline").read_bytes().decode().split("\0")
            own = f"RANK={rank}" in (entry / "environ").read_bytes().decode().split("\0")
            if own and any(part == str(run) or part.startswith(f"{run}/") for part in command):
                found[int(entry.name)] = command
    return found


def of_rank(run: Path, rank: int, module: str) -> int:
    """The process of a rank that runs a module."""
    for pid, command in all_of_rank(run, rank).items():
        if str(run) in command and (module in command or any(part.endswith(f"/{module}/__main__.py") for part in command)):
            return pid
    raise AssertionError(f"rank {rank} has no {module}")


@pytest.fixture
def two_nodes() -> Iterator[Callable[[str], None]]:
    """Network namespaces hfa (10.77.0.1) and hfb (10.77.0.2) with a cable between them; what runs `ip` with some words."""

    def ip(words: str) -> None:
        subprocess.run(["ip", *words.split()], check=True, capture_output=True)

    try:
        for name in ("hfa", "hfb"):
            ip(f"netns add {name}")
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("network namespaces need root and iproute2")
    try:
        ip("link add va netns hfa type veth peer name vb netns hfb")
        for name, number in (("a", 1), ("b", 2)):
            ip(f"-n hf{name} addr add 10.77.0.{number}/24 dev v{name}")
            ip(f"-n hf{name} link set v{name} up")
            ip(f"-n hf{name} link set lo up")
        yield ip
    finally:
        for name in ("hfa", "hfb"):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def on_both(config: Path, run: Path, *more: str) -> list[subprocess.Popen[bytes]]:
    """A torchrun on each of two nodes, which share a disk."""
    torchrun = [str(Path(sys.executable).with_name("torchrun")), "--nnodes", "2", "--nproc-per-node", "1", "--max-restarts", "5"]
    begun = []
    for rank, name in enumerate("ab"):
        where = ["--node-rank", str(rank), "--local-addr", f"10.77.0.{rank + 1}", "--rdzv-conf", f"is_host={1 - rank}"]
        meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "10.77.0.1:29400", "--rdzv-id", "nodes"]
        ours = ["-m", "--", "holdfast", "train", str(config), *more, "--run", str(run)]
        command = ["ip", "netns", "exec", f"hf{name}", *torchrun, *where, *meeting, *ours]
        begun.append(subprocess.Popen(command, env=os.environ | {"GLOO_SOCKET_IFNAME": f"v{name}"}))
    return begun


def has_steps(run: Path, count: int) -> bool:
    return (run / "steps.jsonl").exists() and len(lines(run / "steps.jsonl")) >= count


@pytest.mark.long
@pytest.mark.usefixtures("exec_only")
def test_a_cable_that_is_cut_between_two_nodes_costs_one_start(alone: SimpleNamespace, two_nodes: Callable[[str], None]) -> None:
    """torchrun on two nodes that share a disk; nothing arrives for 12 s, and no error says so."""
    config, run = alone.write("nodes", steps=40), alone.run.with_name("nodes")
    wanted = trained(alone.write("forty-alone", steps=40))
    begun = on_both(config, run, "run.hang_s=5")
    wait_until(lambda: has_steps(run, 5))
    two_nodes("-n hfb link set vb down")
    time.sleep(12)
    two_nodes("-n hfb link set vb up")
    assert [one.wait(400) for one in begun] == [0, 0]
    summary = json.loads((run / "summary.json").read_text())
    assert summary["artifact_sha256"] == wanted["artifact_sha256"]
    assert any("so it is the connection between them" in incident["evidence"] for incident in summary["incidents"])


@pytest.mark.long
@pytest.mark.usefixtures("exec_only")
def test_a_cable_that_loses_packets_costs_time_alone(alone: SimpleNamespace, two_nodes: Callable[[str], None]) -> None:
    """Three in a hundred that arrive at the second node are thrown away there."""
    config, run = alone.write("lossy", steps=40), alone.run.with_name("lossy")
    wanted = trained(alone.write("forty-before", steps=40))
    for words in ("add table inet loss", "add chain inet loss on { type filter hook input priority 0 ; }"):
        nft(words)
    nft("add rule inet loss on iifname vb numgen random mod 100 < 3 counter drop")
    assert [one.wait(400) for one in on_both(config, run)] == [0, 0]
    dropped = re.search(r"counter packets (\d+)", nft("list table inet loss"))
    assert dropped and int(dropped[1]) > 0
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["artifact_sha256"], summary["attempts"]) == (wanted["artifact_sha256"], 1)


def nft(words: str) -> str:
    """What a rule for the second node's packets answers."""
    try:
        return subprocess.run(["ip", "netns", "exec", "hfb", "nft", words], check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("losing packets needs nft and its numgen")


@pytest.mark.long
@pytest.mark.usefixtures("exec_only")
def test_a_rank_that_stands_still_with_its_supervisor_is_waited_for(alone: SimpleNamespace) -> None:
    """All of one rank's processes are stopped for a while, as a machine that swaps or a suspended container is."""
    config, run = alone.write("still", steps=40), alone.run.with_name("still")
    wanted = trained(alone.write("forty-moving", steps=40))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    commands = [as_rank(config, run, rank, 2, port, "run.hang_s=3") for rank in (1, 0)]
    wait_until(lambda: has_steps(run, 5))
    still = all_of_rank(run, 1)
    assert len(still) == 2, "its command and its trainer"
    for number, pause in ((signal.SIGSTOP, 12.0), (signal.SIGCONT, 0.0)):
        for pid in still:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        time.sleep(pause)
    said = [command.communicate(timeout=300)[0] for command in commands]
    assert [command.returncode for command in commands] == [0, 0], said
    summary = json.loads((run / "summary.json").read_text())
    assert summary["artifact_sha256"] == wanted["artifact_sha256"]
    assert any("rank 1 of 2 hangs" in incident["evidence"] for incident in summary["incidents"])


@pytest.mark.parametrize(
    ("differs", "sentence"),
    [
        ({"torch": "2.5.1"}, "the version of torch differs between ranks"),
        ({"holdfast": "0.0.1"}, "the version of holdfast differs between ranks"),
        ({"device": "NVIDIA A100"}, "the kind of device differs between ranks: CPU"),
        ({"rows": "0" * 64, "file": ["node2", 1, 2]}, r"the file of tokenised rows \(data.safetensors\) differs between ranks"),
        ({"timeline": []}, r"the timeline of settings \(timeline.jsonl\) differs between ranks \(node2\)"),
        ({"file": ["node2", 1, 2]}, None),
        ({}, None),
    ],
)
def test_ranks_that_are_unlike_are_refused_with_the_difference(tmp_path: Path, differs: dict[str, Any], sentence: str | None) -> None:
    run = RunFolder(tmp_path)
    run.data_file.write_bytes(b"rows")
    job: Any = SimpleNamespace(run=run, timeline=[Entry(1, {"threads": 1})], config=SimpleNamespace(cuts_trained=False))

    class Two(Rank):
        size = 2

        def exchange(self, facts: dict[str, Any]) -> list[dict[str, Any]]:
            return [facts, facts | {"host": "node2"} | {key: differs[key] for key in facts.keys() & differs.keys()}]

    if sentence is None:
        refuse_unlike(Two(), job, settings_with())
    else:
        with pytest.raises(Refusal, match=sentence) as refused:
            refuse_unlike(Two(), job, settings_with())
        assert refused.value.cause == "launch_misconfigured"
