"""Damaged tables, bars, preferences, plans, logs, machine files, checkpoints of other programs, and what was shipped.

As in test_damaged.py: a handful of each every time, the rest from fresh seeds with the long tests.
"""

from __future__ import annotations

import functools
import gzip
import io
import json
import pickle
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from safetensors.numpy import save_file

from conftest import holdfast, write_table
from holdfast.supervision.foreign_checkpoints.newest import newest_whole, states_since
from support.damage import as_json, copied, mutated, spoil, spoil_some, torn
from support.hostile import MACHINE, answers, bounded, fresh, prepared, tried
from support.recorded import machine

TABLE: dict[str, Any] = {
    "task": "tabular",
    "data": {"held_out": 0.2},
    "table": {"target": "y"},
    "network": {"kind": "residual", "hidden": "8", "exports": []},
    "train": {"steps": 4, "effective_batch": 8, "threads": 1},
}
LOG = """Loading checkpoint shards: 100%|##########| 4/4 [00:12<00:00,  3.11s/it]
{'loss': 1.8312, 'grad_norm': 0.91, 'learning_rate': 0.0002, 'epoch': 0.01}
 12%|#2        | 120/1000 [02:10<15:54,  1.09s/it]
Traceback (most recent call last):
  File "train.py", line 88, in <module>
    trainer.train()
  File "/opt/env/lib/python3.11/site-packages/transformers/trainer.py", line 2240, in train
    return inner_training_loop(
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.68 GiB of which 1.2 GiB is free.
[rank1]: RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:1970, unhandled system error
Killed
"""
PREFERENCES: tuple[dict[str, Any], ...] = (
    {"prompt": "2+2?", "chosen": "4", "rejected": "5"},
    {"prompt": "2+2?", "completion": "4", "label": True},
    {"chosen": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "rejected": [{"role": "user", "content": "a"}]},
    {"chosen": "\n\nHuman: a\n\nAssistant: b", "rejected": "\n\nHuman: a\n\nAssistant: c"},
    {"input": {"messages": [{"role": "user", "content": "a"}]}, "preferred_output": [{"role": "assistant", "content": "b"}]},
    {
        "conversations": [{"from": "human", "value": "a"}],
        "chosen": {"from": "gpt", "value": "b"},
        "rejected": {"from": "gpt", "value": "c"},
    },
)
SHIPPED: tuple[dict[str, Any], ...] = tuple(
    {"time": 1.5, "name": "first", "version": version} | about
    for version in (1, 2)
    for about in (
        {"run": "/runs/first", "base": "m", "adapter_sha256": f"a{version}", "data_sha256": None}
        | {"event": "exported", "kind": "merged", "path": "/out", "files": [{"path": "/out/x", "bytes": 3, "sha256": "ff"}]},
        {"adapter_sha256": f"a{version}", "event": "verified", "against": None, "verdict": "better"},
        {"event": "promoted", "reason": "why"},
    )
)
Attempt = Callable[[int, "Good", Path], None]


class Good:
    """Whole things of each kind, made when they are first asked for."""

    def __init__(self, folder: Path, assets: SimpleNamespace) -> None:
        self.folder, self.assets = folder, assets

    @functools.cached_property
    def table(self) -> Path:
        return write_table(self.folder / "table.csv", 60)

    @functools.cached_property
    def adapter_run(self) -> Path:
        tree = {
            "model": str(self.assets.model),
            "data": {"files": [str(self.assets.rows)], "held_out": 0.1},
            "adapter": {"r": 2},
            "train": {"steps": 2, "effective_batch": 4, "max_tokens": 96, "threads": 1},
        }
        config = self.folder / "adapter.yaml"
        config.write_text(yaml.safe_dump(tree))
        done = holdfast("train", config, "--run", self.folder / "adapter-run")
        assert done.returncode == 0, done.stderr
        return self.folder / "adapter-run"

    @functools.cached_property
    def checkpoints(self) -> Path:
        place = self.folder / "checkpoints"
        for step in (10, 20):
            folder = place / f"checkpoint-{step}"
            folder.mkdir(parents=True)
            (folder / "trainer_state.json").write_text(json.dumps({"global_step": step, "max_steps": 100, "log_history": [{"loss": 1.0}]}))
            for number in (1, 2):
                save_file({f"w{number}": np.ones((4, 3), np.float32)}, folder / f"model-0000{number}-of-00002.safetensors")
            index = {"weight_map": {f"w{number}": f"model-0000{number}-of-00002.safetensors" for number in (1, 2)}}
            (folder / "model.safetensors.index.json").write_text(json.dumps(index))
            for name in ("optimizer.pt", "rng_state.pth"):
                with zipfile.ZipFile(folder / name, "w") as held:
                    held.writestr("archive/data.pkl", pickle.dumps(("lr", {"a": [1e-4]}), protocol=2))
                    held.writestr("archive/data/0", b"\1" * 4096)
        return place

    @functools.cached_property
    def bars(self) -> Path:
        pytest.importorskip("polars")
        done = holdfast("data", "bars", self.folder / "bars.csv", "--vix", self.folder / "vix.csv", "--make", "400")
        assert done.returncode == 0, done.stderr
        return self.folder / "bars.csv"


def cells(data: bytes, rng: random.Random) -> bytes:
    """A table in CSV with a few of its cells replaced, or torn as a whole."""
    if rng.random() < 0.4:
        return torn(data, rng)
    lines = data.split(b"\n")
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(len(lines))
        words = lines[at].split(b",")
        wild = (b"", b"nan", b"inf", b"-1e400", b'"', b"\0", b"\xff", b"x" * 5000, b"y", b"1,2", b"9" * 400, b"2026-02-30", b"\x1b[2J")
        words[rng.randrange(len(words))] = rng.choice(wild)
        lines[at] = b",".join(words)
    return b"\n".join(lines)


def columns(file: Path, form: str) -> bytes:
    """The table of a CSV file as Parquet or Arrow."""
    polars = pytest.importorskip("polars")
    frame, out = polars.read_csv(file), io.BytesIO()
    frame.write_parquet(out) if form == "parquet" else frame.write_ipc(out)
    return out.getvalue()


def try_table(seed: int, good: Good, place: Path) -> None:
    rng = random.Random(seed)
    form = rng.choice(["csv", "csv", "csv", "csv.gz", "parquet", "arrow"])
    file = place / f"table.{form}"
    if form.startswith("csv"):
        data = cells(good.table.read_bytes(), rng)
        file.write_bytes(gzip.compress(data) if form.endswith("gz") else data)
    else:
        file.write_bytes(torn(columns(good.table, form), rng))
    tree = TABLE | {"data": {"files": [str(file)], "held_out": 0.2}}
    config = place / "config.yaml"
    config.write_bytes(yaml.safe_dump(mutated(tree, rng) if rng.random() < 0.3 else tree).encode("utf-8", "surrogatepass"))
    prepared(f"table, seed {seed}: {form}", config, place / "run")


def try_shipping(seed: int, good: Good, place: Path) -> None:
    rng = random.Random(seed)
    run = copied(good.adapter_run, place / "run")
    where = run / "adapter" if rng.random() < 0.7 else run
    what = f"shipped run, seed {seed}: {spoil_some(where, rng, lambda file: where != run or file.parent == run)}"
    if rng.random() < 0.5:
        answers(what, "export", run, "--to", rng.choice(["adapter", "merged", "gguf-adapter"]), "--out", place / "out", "--json")
    else:
        answers(what, "verify", run, "--generate", 2, "--longest", 4, "--json", "--html", place / "page.html")


def try_registry(seed: int, good: Good, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    file = place / "models.jsonl"
    file.write_bytes(b"".join(as_json(entry) + b"\n" for entry in SHIPPED))
    monkeypatch.setenv("HOLDFAST_MODELS", str(file))
    what = f"registry, seed {seed}: {spoil(file, rng)}"
    answers(what, "models", "list", "--json")
    answers(what, "models", "list")
    answers(what, "models", "promote", "first", 1)
    answers(what, "models", "rollback", "first", "--json")


def try_machine(seed: int, good: Good, place: Path) -> None:
    rng = random.Random(seed)
    file = place / "machine.json"
    facts = rng.choice([machine("2.9.1+rocm6.4", "gfx900"), machine("2.9.1+cu128", "sm_90", "sm_89"), MACHINE])
    data = as_json(mutated(facts, rng))
    file.write_bytes(torn(data, rng) if rng.random() < 0.2 else data)
    what = f"machine file, seed {seed}: {data[:300]!r}"
    answers(what, "doctor", "--machine", file, "--json")
    answers(what, "doctor", "--machine", file)
    (place / "a.log").write_text(LOG)
    answers(what, "diagnose", place / "a.log", "--machine", file, "--json")


def try_log(seed: int, good: Good, place: Path) -> None:
    rng = random.Random(seed)
    data = LOG.encode() * rng.choice([1, 1, 3, 200])
    for _ in range(rng.randrange(4)):
        data = torn(data, rng)
    file = place / "output.log"
    file.write_bytes(data)
    answers(f"log, seed {seed}", "diagnose", file, *rng.choice([(), ("--json",), ("--exit-code", str(rng.randrange(-300, 300)))]))


def try_checkpoint(seed: int, good: Good, place: Path) -> None:
    rng = random.Random(seed)
    folder = copied(good.checkpoints, place / "out")
    what = f"checkpoints of a Trainer, seed {seed}: {spoil_some(folder, rng)}"
    try:
        with bounded(what):
            states_since(folder, 0.0)
            newest_whole(folder, rng.choice(["trainer", "files"]), {})
            states_since(folder, 0.0)
    except Exception as error:
        raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error


def try_bars(seed: int, good: Good, place: Path) -> None:
    rng = random.Random(seed)
    form = rng.choice(["csv", "csv", "parquet"])
    bars, vix = place / f"bars.{form}", place / "vix.csv"
    whole = (good.bars.read_bytes(), good.bars.with_name("vix.csv").read_bytes())
    spoiled = rng.random() < 0.7
    if form == "csv":
        bars.write_bytes(cells(whole[0], rng) if spoiled else whole[0])
    else:
        bars.write_bytes(torn(columns(good.bars, form), rng))
    vix.write_bytes(whole[1] if spoiled else cells(whole[1], rng))
    answers(f"bars, seed {seed}: {form}", "data", "bars", bars, "--vix", vix, "--out", place / "features.csv", "--json")


def try_preferences(seed: int, good: Good, place: Path) -> None:
    rng = random.Random(seed)
    one = rng.choice(PREFERENCES)
    data = b"".join(as_json(mutated(one, rng) if rng.random() < 0.6 else one) + b"\n" for _ in range(12))
    file = place / "pairs.jsonl"
    file.write_bytes(torn(data, rng) if rng.random() < 0.2 else data)
    what = f"preferences, seed {seed}"
    answers(what, "data", "check", file, "--json")
    answers(what, "data", "show", file, "--row", 1, "--json")
    answers(what, "data", "split", file, "--out", place / "a.jsonl", "--held-out", place / "b.jsonl", "--json")
    answers(what, "data", "diff", file, file, "--json")
    tree = {
        "model": str(good.assets.model),
        "data": {"files": [str(file)]},
        "train": {"steps": 2, "max_tokens": 96, "objective": rng.choice(["dpo", "kto", "orpo", "sft"])},
    }
    config = place / "config.yaml"
    config.write_text(yaml.safe_dump(tree))
    prepared(what, config, place / "run")


def try_planned(seed: int, good: Good, place: Path) -> None:
    rng = random.Random(seed)
    model = copied(good.assets.model, place / "model")
    what = f"planned model, seed {seed}: {spoil_some(model, rng, lambda file: file.name == 'config.json' or rng.random() < 0.1)}"
    config = place / "config.yaml"
    config.write_text(yaml.safe_dump({"model": str(model), "data": {"files": [str(good.assets.rows)]}, "train": {"steps": 2}}))
    answers(what, "plan", config, "--card", "RTX 4090", "--json")


KINDS: dict[str, tuple[Attempt, int, int]] = {  # by default, in the long part
    "table": (try_table, 8, 200),
    "shipped run": (try_shipping, 0, 60),
    "machine file": (try_machine, 8, 300),
    "log": (try_log, 8, 300),
    "checkpoint of a Trainer": (try_checkpoint, 20, 500),
    "bars": (try_bars, 6, 200),
    "preferences": (try_preferences, 4, 200),
    "planned model": (try_planned, 0, 40),
}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory, assets: SimpleNamespace) -> Good:
    return Good(tmp_path_factory.mktemp("good"), assets)


@pytest.mark.parametrize("kind", [kind for kind, (_, count, _) in KINDS.items() if count])
def test_what_is_damaged_is_answered(kind: str, good: Good, tmp_path: Path) -> None:
    tried(lambda seed, place: KINDS[kind][0](seed, good, place), range(KINDS[kind][1]), tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_damaged_is_answered_from_fresh_seeds(kind: str, good: Good, tmp_path: Path) -> None:
    tried(lambda seed, place: KINDS[kind][0](seed, good, place), fresh(KINDS[kind][2]), tmp_path)


def test_a_damaged_list_of_models_is_answered(good: Good, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried(lambda seed, place: try_registry(seed, good, place, monkeypatch), range(30), tmp_path)


@pytest.mark.long
def test_a_damaged_list_of_models_is_answered_from_fresh_seeds(good: Good, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried(lambda seed, place: try_registry(seed, good, place, monkeypatch), fresh(500), tmp_path)
