"""Damaged run folders, model folders, configs, rows and adapters by the thousand: a clear answer, soon, in bounded memory, no bug of ours.

A handful of each runs every time, half of it in `make test`.
The rest, from seeds drawn afresh, with the long tests (HOLDFAST_HOSTILE=PART does a part of them).
"""

from __future__ import annotations

import gzip
import io
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from conftest import holdfast
from support.damage import as_json, copied, mutated, spoil_some, torn
from support.hostile import MACHINE, answers, fresh, prepared, tried
from support.selection import draws


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory, assets: SimpleNamespace) -> SimpleNamespace:
    """`.run`: a finished run that was killed once; `.config`, `.model`, `.rows`; `.machine`, a machine file."""
    folder = tmp_path_factory.mktemp("good")
    faults = [{"name": "dies", "when": {"step": 2, "attempt": 1}, "effect": "raise", "message": "hipErrorIllegalAddress"}]
    tree = {
        "model": str(assets.model),
        "data": {"files": [str(assets.rows)], "held_out": 0.1},
        "adapter": {"r": 2},
        "train": {"steps": 4, "effective_batch": 4, "max_tokens": 96, "threads": 1},
        "evaluate": {"every": 2, "generate": 1},
        "save": {"every": 2},
        "faults": faults,
    }
    (folder / "run.yaml").write_text(yaml.safe_dump(tree))
    done = holdfast("train", folder / "run.yaml", "--run", folder / "run")
    assert done.returncode == 0, done.stderr
    shutil.copyfile(assets.rows, folder / "rows.jsonl")
    (folder / "machine.json").write_text(json.dumps(MACHINE))
    return SimpleNamespace(
        run=folder / "run", config=tree | {"faults": []}, model=assets.model, rows=assets.rows, machine=folder / "machine.json"
    )


def try_run_folder(seed: int, good: SimpleNamespace, place: Path) -> None:
    rng = random.Random(seed)
    run = copied(good.run, place / "received" / "run")
    what = f"run folder, seed {seed}: {spoil_some(run, rng, lambda file: file.suffix != '.safetensors' or rng.random() < 0.1)}"
    answers(what, "status", run, "--json")
    answers(what, "diagnose", run)
    answers(what, "report", run, "--out", place / "report.html")
    answers(what, "bundle", run, "--out", place / "bundle.zip")
    if rng.random() < 0.2:
        answers(what, "stop", run)
    if rng.random() < 0.1:
        config = place / "config.yaml"
        config.write_text(yaml.safe_dump(good.config))
        prepared(what, config, run)


def try_model(seed: int, good: SimpleNamespace, place: Path) -> None:
    rng = random.Random(seed)
    model = copied(good.model, place / "model")
    what = f"model folder, seed {seed}: {spoil_some(model, rng)}"
    config = place / "config.yaml"
    config.write_text(yaml.safe_dump(good.config | {"model": str(model)}))
    answers(what, "doctor", config, "--machine", good.machine, "--no-probe")
    prepared(what, config, place / "run")
    if rng.random() < 0.3:
        answers(what, "data", "check", good.rows, "--tokenizer", model, "--json")


def try_config(seed: int, good: SimpleNamespace, place: Path) -> None:
    rng = random.Random(seed)
    config = place / "config.yaml"
    data = yaml.safe_dump(mutated(good.config, rng), allow_unicode=True).encode("utf-8", "surrogatepass")
    config.write_bytes(torn(data, rng) if rng.random() < 0.3 else data)
    what = f"config, seed {seed}: {data[:300]!r}"
    answers(what, "doctor", config, "--machine", good.machine, "--no-probe")
    prepared(what, config, place / "run")


def try_rows(seed: int, good: SimpleNamespace, place: Path) -> None:
    rng = random.Random(seed)
    rows = [json.loads(line) for line in good.rows.read_bytes().splitlines()]
    form = rng.choice(["jsonl", "jsonl", "json", "csv", "txt", "jsonl.gz", "parquet", "arrow", "pdf"])
    file = place / f"rows.{form}"
    spoiled = [mutated(row, rng) if rng.random() < 0.3 else row for row in rows]
    if form in ("parquet", "arrow"):
        file.write_bytes(torn(table(rows, form), rng))
    else:
        data = as_json(spoiled) if form == "json" else b"\n".join(map(as_json, spoiled)) + b"\n"
        data = torn(data, rng) if rng.random() < 0.6 else data
        file.write_bytes(gzip.compress(data) if form.endswith("gz") else data)
        if form.endswith("gz") and rng.random() < 0.5:
            file.write_bytes(torn(file.read_bytes(), rng))
    what = f"rows, seed {seed}: {form}"
    answers(what, "data", "check", file, "--json")
    answers(what, "data", "clean", file, "--out", place / "clean.jsonl", "--rejects", place / "rejects.jsonl", "--json")


def table(rows: list[dict[str, Any]], form: str) -> bytes:
    pyarrow = pytest.importorskip("pyarrow")
    feather, parquet = pytest.importorskip("pyarrow.feather"), pytest.importorskip("pyarrow.parquet")
    made, out = pyarrow.Table.from_pylist([{key: str(value) for key, value in row.items()} for row in rows]), io.BytesIO()
    parquet.write_table(made, out) if form == "parquet" else feather.write_feather(made, out)
    return out.getvalue()


def try_adapter(seed: int, good: SimpleNamespace, place: Path) -> None:
    rng = random.Random(seed)
    adapter = copied(good.run / "adapter", place / "adapter")
    what = f"adapter, seed {seed}: {spoil_some(adapter, rng, lambda file: file.name.startswith('adapter_'))}"
    config = place / "config.yaml"
    tree = {name: value for name, value in good.config.items() if name != "adapter"}
    config.write_text(yaml.safe_dump(tree | {"adapter": {"start": str(adapter)}}))
    prepared(what, config, place / "run")


KINDS: dict[str, tuple[Callable[[int, SimpleNamespace, Path], None], int, int]] = {  # by default, in the long part
    "run folder": (try_run_folder, 24, 3000),
    "model folder": (try_model, 12, 300),
    "config": (try_config, 12, 200),
    "rows": (try_rows, 12, 200),
    "adapter": (try_adapter, 8, 100),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_damaged_is_answered(kind: str, good: SimpleNamespace, tmp_path: Path) -> None:
    tried(lambda seed, place: KINDS[kind][0](seed, good, place), range(draws(KINDS[kind][1], KINDS[kind][1] // 2)), tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_damaged_is_answered_from_fresh_seeds(kind: str, good: SimpleNamespace, tmp_path: Path) -> None:
    tried(lambda seed, place: KINDS[kind][0](seed, good, place), fresh(KINDS[kind][2]), tmp_path)
