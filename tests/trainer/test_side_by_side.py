"""Parts of a step at the same time: the bits of one by one, with kills too; left out on record where they differ or do not fit."""

from __future__ import annotations

import itertools
import json
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from conftest import events, holdfast, lines, write_config
from holdfast.config.config import Config
from holdfast.config.settings import Settings
from holdfast.planning.ranks import processes_for
from holdfast.planning.side_by_side import StepSize, more_logits, parts_ahead, side_by_side
from holdfast.run.attempt import close
from holdfast.run.folder import RunFolder
from holdfast.run.timeline import read_timeline, settings_at
from holdfast.run.types import LOGITS_AT_ONCE, Launch
from holdfast.supervision import launch
from holdfast.supervision.launch import trainer_launch
from holdfast.trainer.model.layers.dropout import StepContext
from support.architectures import ARCHITECTURES, LENGTHS, gradients, task_of
from support.pairs import pairs_of
from support.selection import part_of
from support.stand import Stand, model_folder

_HEAVY = StepSize(longest=300, largest=700, mean=480.0, parameters=134_000_000)


def _settings(**more: Any) -> Settings:
    return Settings.model_validate({"device": "cpu", "micro_batch_tokens": 700, "threads": 2, "steps": 1, "samples": 8} | more)


def _config(**train: Any) -> Config:
    tree = {"model": "m", "data": {"files": ["x"]}, "train": {"effective_batch": 8} | train}
    return Config.model_validate(tree)


def _trained(assets: SimpleNamespace, folder: Path, *faults: dict[str, Any], **train: Any) -> tuple[str, list[dict[str, Any]]]:
    """SHA-256 of what a run left, and its rows without times: steps, evaluations, and the loss at the end."""
    train = {"threads": 2, "parts_at_once": 2, "parts_in": "threads"} | train
    folder.mkdir()
    measured = {"data": {"held_out": 0.2}, "evaluate": {"every": 4, "generate": 0}}
    config = write_config(assets, folder / "config.yaml", train=train, faults=list(faults), **measured)
    done = holdfast("train", config, "--run", folder / "run", "--json")
    assert done.returncode == 0, done.stderr
    rows = [
        {key: row[key] for key in ("step", "loss", "grad_norm", "samples", "tokens", "labels")} for row in lines(folder / "run/steps.jsonl")
    ]
    summary = json.loads(done.stdout)
    rows += [{"step": row["step"], "loss": row["loss"], "best": row["best"]} for row in lines(folder / "run/evaluations.jsonl")]
    return summary["artifact_sha256"], [*rows, summary["loss"]]


@pytest.fixture
def threads() -> Iterator[None]:
    """Afterwards, the process computes in as many threads as before."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def undisturbed(assets: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    folder = tmp_path_factory.mktemp("side") / "undisturbed"
    sha256, rows = _trained(assets, folder)
    return SimpleNamespace(sha256=sha256, rows=rows, run=folder / "run")


def test_a_run_says_which_parts_it_computes_at_once_and_its_start_held_them_against_one_by_one(undisturbed: SimpleNamespace) -> None:
    timeline = read_timeline(undisturbed.run / "timeline.jsonl")
    now = settings_at(timeline, 8)
    assert (now.shards, now.at_once, now.part_threads) == (2, 2, 1)
    assert "2 parts of each step at the same time, each in 1 thread of 2" in timeline[1].reason


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_a_run_that_is_killed_while_two_passes_go_on_ends_with_the_same_bits(
    undisturbed: SimpleNamespace, assets: SimpleNamespace, tmp_path: Path, phase: str
) -> None:
    sha256, rows = _trained(assets, tmp_path / "killed", {"when": {"step": 5, "attempt": 1, "phase": phase}, "effect": "kill"})
    assert (sha256, rows) == (undisturbed.sha256, undisturbed.rows)
    assert len(events(tmp_path / "killed/run", "attempt_started")) == 2


@pytest.mark.parametrize("rank", [0, 1])
def test_parts_in_processes_have_the_bits_of_parts_in_threads_when_one_is_killed_too(
    undisturbed: SimpleNamespace, assets: SimpleNamespace, tmp_path: Path, rank: int
) -> None:
    fault = {"when": {"step": 5, "attempt": 1, "phase": "backward", "rank": rank}, "effect": "kill"}
    sha256, rows = _trained(assets, tmp_path / "killed", fault, parts_in="auto")
    assert (sha256, rows) == (undisturbed.sha256, undisturbed.rows)
    launches = [json.loads(file.read_text()) for file in sorted((tmp_path / "killed/run/attempts").glob("*/launch.json"))]
    assert [(one["ranks"], one["devices"], one["env"]["OMP_NUM_THREADS"]) for one in launches] == [(2, [0, 1], "1")] * 2


GIB = 1 << 30


@pytest.mark.parametrize(
    ("settings", "peak", "free", "expected"),
    [
        ({"at_once": 2}, GIB, 3 * GIB, 2),
        ({"at_once": 2}, GIB, 2 * GIB, 1),
        ({"at_once": 4}, GIB, 8 * GIB, 4),
        ({"at_once": 4}, GIB, 4 * GIB, 2),
        ({"at_once": 4}, GIB, None, 1),
        ({"at_once": 2, "memory_limit_bytes": 2 * GIB}, GIB, 8 * GIB, 1),
        ({"at_once": 1}, GIB, 64 * GIB, 1),
        ({"at_once": 2}, 4 * GIB, GIB, 1),
    ],
)
def test_as_many_processes_compute_parts_as_memory_has_room_for(
    settings: dict[str, Any], peak: int, free: int | None, expected: int
) -> None:
    assert processes_for(_settings(**settings), peak, free) == expected


@pytest.fixture
def again(undisturbed: SimpleNamespace, tmp_path: Path) -> Iterator[SimpleNamespace]:
    """A run whose parts may be computed in processes; `ended(ranks, cause)`: after an attempt of so many; None: not dealt with."""
    shutil.copytree(undisturbed.run, tmp_path / "run")
    run = RunFolder(tmp_path / "run")
    config = run.config()
    config = config.model_copy(update={"train": config.train.model_copy(update={"parts_in": "auto"})})
    folder = run.attempt(1)

    def ended(ranks: int, cause: str | None) -> Launch:
        orders = json.loads((folder / "launch.json").read_text()) | {"ranks": ranks}
        (folder / "launch.json").write_text(json.dumps(orders))
        (folder / "wreck.json").unlink(missing_ok=True)
        if cause is not None:
            close(folder, {"diagnosis": {"cause": cause}})
        return trainer_launch(run, config)

    yield SimpleNamespace(ended=ended)


def test_where_memory_ran_out_in_processes_threads_compute_the_parts(again: SimpleNamespace) -> None:
    """Not where it ran out in one process, or where several ended for another reason."""
    for ranks, cause, expected in [(1, None, 2), (1, "host_out_of_memory", 2), (2, "hang", 2), (2, "host_out_of_memory", 1)]:
        found = again.ended(ranks, cause)
        assert (found.ranks, found.env["OMP_NUM_THREADS"]) == (expected, str(2 // expected))


def test_processes_that_may_still_live_have_their_memory_already(again: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "host_memory", lambda: {"MemAvailable": 1 << 20})
    assert [again.ended(ranks, cause).ranks for ranks, cause in [(1, None), (2, None), (2, "hang")]] == [1, 2, 1]


def test_what_does_not_fit_at_the_same_time_is_computed_one_by_one_and_costs_no_bit(
    undisturbed: SimpleNamespace, assets: SimpleNamespace, tmp_path: Path
) -> None:
    both = min(row["tokens"] for row in undisturbed.rows if "tokens" in row)
    sha256, rows = _trained(assets, tmp_path / "tight", {"when": {"step": 3, "tokens": [both * 3 // 4, 100_000]}, "effect": "oom"})
    assert (sha256, rows) == (undisturbed.sha256, undisturbed.rows)
    learned = read_timeline(tmp_path / "tight/run/timeline.jsonl")[-1]
    assert (learned.from_step, learned.settings) == (3, {"at_once": 1})
    assert "out of memory" in learned.reason


def test_an_error_in_one_pass_ends_the_other_and_is_the_one_that_is_told(assets: SimpleNamespace, tmp_path: Path) -> None:
    (tmp_path / "row").mkdir()
    fault = {"when": {"sample": "rows.jsonl:7", "phase": "backward"}, "effect": "raise"}
    config = write_config(
        assets,
        tmp_path / "config.yaml",
        train={"threads": 2, "parts_at_once": 2, "parts_in": "threads", "epochs": 1, "steps": None},
        faults=[fault],
    )
    done = holdfast("train", config, "--run", tmp_path / "run", "--json")
    assert done.returncode == 0, done.stderr
    assert [entry["line"] for entry in json.loads(done.stdout)["quarantined"]] == [7]


def test_a_thread_sees_the_micro_batch_it_entered_else_that_of_the_one_that_built_the_model() -> None:
    context, seen = StepContext(3), list[Any]()
    place = torch.arange(2)[None]
    context.enter(1, torch.zeros(1, 2, dtype=torch.int64), place, (2,))

    def look() -> None:
        seen.append((context.step, context.lengths))
        context.enter(4, torch.zeros(1, 3, dtype=torch.int64), torch.arange(3)[None], (3,))
        seen.append((context.step, context.lengths))

    other = threading.Thread(target=look)
    other.start()
    other.join()
    assert seen == [(1, (2,)), (4, (3,))]
    assert (context.step, context.lengths) == (1, (2,))


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_a_layer_is_computed_again_in_the_thread_that_goes_back_as_it_was(dropout: float) -> None:
    """As autograd does it for a card: backward passes run in a thread of its own."""
    task = task_of(ARCHITECTURES["llama"](), dropout=dropout)
    rows = list(range(len(LENGTHS)))
    wanted = gradients(task, task.batches(rows, 64))
    task.adopt({"checkpointed_layers": 2})
    task.model.zero_grad()
    for batch in task.batches(rows, 64):
        loss, _ = task.loss_sum(batch, 1)
        back = threading.Thread(target=loss.backward)
        back.start()
        back.join()
    for name, parameter in task.model.named_parameters():
        assert not parameter.requires_grad or torch.equal(parameter.grad, wanted[1][name]), name


@pytest.mark.parametrize(
    ("train", "settings", "size", "expected"),
    [
        ({}, {}, {}, {"shards": 2, "at_once": 2, "part_threads": 1}),
        ({}, {"threads": 16}, {}, {"shards": 4, "at_once": 4, "part_threads": 4}),
        ({}, {"threads": 3}, {}, {"shards": 2, "at_once": 2, "part_threads": 1}),
        ({}, {"threads": 64}, {"mean": 100_000.0}, {"shards": 4, "at_once": 4, "part_threads": 16}),
        ({}, {}, {"largest": 5000}, {"shards": 2, "at_once": 2, "part_threads": 1, "micro_batch_tokens": 350}),
        ({}, {}, {"largest": 5000, "longest": 400}, {}),
        ({}, {"threads": 1}, {}, {}),
        ({}, {"device": "cuda"}, {}, {}),
        ({}, {"frozen": "nf4"}, {}, {"shards": 2, "at_once": 2, "part_threads": 1}),
        ({}, {"frozen": "int8"}, {}, {}),
        ({"objective": "dpo"}, {"frozen": "nf4"}, {}, {}),
        ({"objective": "orpo"}, {}, {}, {}),
        ({"parts_at_once": 2}, {"frozen": "int8"}, {}, {"shards": 2, "at_once": 2, "part_threads": 1}),
        ({"objective": "dpo"}, {}, {}, {"shards": 2, "at_once": 2, "part_threads": 1}),
        ({"objective": "orpo", "parts_at_once": 2}, {}, {}, {"shards": 2, "at_once": 2, "part_threads": 1}),
        ({"objective": "kto", "parts_at_once": 2}, {}, {}, {}),
        ({"objective": "kto"}, {}, {}, {}),
        ({}, {"shards": 8}, {}, {}),
        ({}, {}, {"parameters": 1_000_000}, {}),
        ({"effective_batch": 2}, {}, {}, {}),
        ({"micro_batch_tokens": 700}, {}, {}, {}),
        ({"parts_at_once": False}, {}, {}, {}),
        ({"neftune": 5.0}, {}, {}, {}),
        ({"parts_at_once": 2}, {"threads": 1}, {"parameters": 1000}, {"shards": 2, "at_once": 2, "part_threads": 1}),
    ],
)
def test_which_runs_compute_parts_at_once_follows_from_config_and_rows(
    train: dict[str, Any], settings: dict[str, Any], size: dict[str, Any], expected: dict[str, Any]
) -> None:
    found, _ = side_by_side(_config(**train), _settings(**settings), replace(_HEAVY, **size))
    assert found == expected


def test_what_was_asked_for_and_cannot_be_is_told() -> None:
    changes, reason = side_by_side(_config(parts_at_once=4, neftune=5.0), _settings(), _HEAVY)
    assert not changes
    assert reason.startswith("train.parts_at_once is 4, and is left out: ")
    with pytest.raises(ValueError, match="parts_at_once is 3, which is no power of two: 2 or 4"):
        _config(parts_at_once=3)


KINDS = [
    *itertools.product(("lora", "rslora", "dora"), ("half", "nf4", "int8"), ("sft",), ("fp32", "bf16"), (False,)),
    *itertools.product(("lora",), ("half",), ("dpo", "orpo", "simpo"), ("fp32", "bf16"), (False,)),
    ("lora", "half", "dpo", "fp32", True),
]


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize(("adapter", "frozen", "objective", "dtype", "kept"), part_of(KINDS))
def test_each_kind_that_is_computed_side_by_side_has_the_bits_of_one_by_one(
    tmp_path: Path, adapter: str, frozen: str, objective: str, dtype: str, kept: bool
) -> None:
    if frozen in ("nf4", "int8"):
        pytest.importorskip("bitsandbytes")
    model = model_folder(tmp_path / "model", dtype=torch.bfloat16, hidden_size=64, intermediate_size=128, head_dim=16)
    settings = {"frozen": frozen, "dtype": dtype, "threads": 2, "shards": 2, "at_once": 2, "part_threads": 1}
    train = {"frozen": frozen, "objective": objective}
    tokens = None if objective == "sft" else pairs_of(10)

    def stand_in(folder: str) -> Stand:
        place = tmp_path / folder if kept else None
        return Stand(model, tokens=tokens, settings=settings, train=train, adapter={"type": adapter, "dropout": 0.1}, folder=place)

    together, alone = stand_in("together"), stand_in("alone")
    alone.job.settings = lambda _: alone.settings
    for step in range(1, 4):
        ours, theirs = together.compute(step), alone.training.compute(step, alone.rows, lambda *_: 1.0, at_once=1)
        assert (ours.loss, ours.grad_norm, ours.measured) == (theirs.loss, theirs.grad_norm, theirs.measured)
        assert torch.equal(together.optimizer.gradient, alone.optimizer.gradient)
        together.training.apply(step, ours)
        alone.training.apply(step, theirs)


@pytest.mark.parametrize(
    ("parts_in", "says"),
    [
        ("auto", "in 2 processes, which need about 2 x 3.00 GiB, where that much is free at the start; else in threads"),
        ("processes", "in 2 processes, which need about 2 x 3.00 GiB"),
        ("threads", "in threads of one process"),
    ],
)
def test_a_plan_says_what_computes_the_parts(parts_in: str, says: str) -> None:
    told = parts_ahead(_config(parts_in=parts_in), _settings(), _HEAVY, 3 << 30)
    assert told == f"2 parts of each step are computed at the same time, {says}"
    assert parts_ahead(_config(parts_in=parts_in), _settings(), replace(_HEAVY, mean=1.0), 3 << 30) == ""


def test_parts_in_threads_of_one_process_have_logits_of_their_own() -> None:
    threads, settings, words = _config(parts_in="threads"), _settings(micro_batch_tokens=2048), 262_144
    rows = LOGITS_AT_ONCE // words  # of a chunk
    assert more_logits(threads, settings, 2, 191, words) == 8 * words * (191 - rows), "both chunks hold all labels there are"
    assert more_logits(threads, settings, 2, 700, words) == 8 * words * rows
    assert more_logits(threads, settings, 2, rows, words) == more_logits(threads, settings, 1, 700, words) == 0
    assert more_logits(_config(parts_in="processes"), settings, 2, 700, words) == 0, "each is planned for by itself"
    assert more_logits(threads, settings, 2, 700, 3584) == 0, "a chunk has room for all of it"


def test_processes_share_the_parts_that_are_computed_at_the_same_time() -> None:
    settings = _settings(shards=4, at_once=4)
    assert [settings.parts_of_each(ranks) for ranks in (1, 2, 4, 8)] == [4, 2, 1, 1]
