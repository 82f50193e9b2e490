"""Damaged run folders, model folders, configs, rows and adapters by the thousand: a clear answer, soon, in bounded memory, no bug of ours.

A handful of each runs every time; the rest, from seeds drawn afresh, with the long tests (HOLDFAST_HOSTILE=PART does a part of them).
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import random
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from conftest import holdfast
from holdfast.cli import main
from holdfast.core.config.load import load_config
from holdfast.core.errors import Stop
from holdfast.supervisor.hold import held
from holdfast.supervisor.prepare import open_run
from holdfast.supervisor.start import with_start
from holdfast.ui.terminal import Terminal
from support.damage import as_json, copied, mutated, spoil_some, torn

LONGEST_S, MOST_BYTES = 30.0, 1 << 30
PART = float(os.environ.get("HOLDFAST_HOSTILE", "1"))
MACHINE = {"os": {"kernel": "6.8"}, "python": "3.11", "memory_bytes": 32 << 30, "torch": {"version": "2.9.1+cpu"}, "gpus": []}


class TooLong(BaseException):
    """Not an Exception: what is tried must not catch it."""


@contextlib.contextmanager
def bounded(what: str) -> Iterator[None]:
    """Ends what takes too long, and fails where it took much memory."""

    def ring(*_: object) -> None:
        raise TooLong(f"{what}: not done after {LONGEST_S:.0f} s")

    old = signal.signal(signal.SIGALRM, ring)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    limits = resource.getrlimit(resource.RLIMIT_AS)
    held_now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held_now + 2 * MOST_BYTES, limits[1]))
    signal.setitimer(signal.ITIMER_REAL, LONGEST_S)
    try:
        yield
    except TooLong as late:
        raise AssertionError(str(late)) from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, limits)
        signal.signal(signal.SIGALRM, old)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    assert grown < MOST_BYTES, f"{what}: {grown >> 20:,} MiB more"


def answers(what: str, *arguments: object, codes: tuple[int, ...] = (0, 1, 2, 3)) -> str:
    """Run a command in this process; its output. It ends with one of the codes, says so in words, and as JSON where asked."""
    out, err = io.StringIO(), io.StringIO()
    with bounded(what), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(argument) for argument in arguments])
    said = f"{what}\n$ holdfast {' '.join(map(str, arguments))}\n{out.getvalue()[-1500:]}{err.getvalue()[-3000:]}"
    assert code in codes and "Traceback" not in err.getvalue(), f"exit code {code}: {said}"
    assert "\x1b" not in out.getvalue() + err.getvalue(), f"an escape code reaches the terminal: {said!r}"
    assert code == 0 or err.getvalue().strip() or out.getvalue().strip(), f"no word: {said}"
    if "--json" in arguments:
        json.loads(out.getvalue())
    return out.getvalue() + err.getvalue()


def prepared(what: str, config: Path, run: Path) -> str:
    """Do what `train` does before the first start; what it refuses. Anything but a Stop is a bug."""
    with bounded(what), contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            loaded = load_config(config)
            with held(run) as (folder, _lock):
                open_run(folder, with_start(folder, loaded), False, Terminal(to_stderr=True, quiet=True))
        except Stop as stop:
            assert stop.code in (1, 2) and len(str(stop)) < 20_000, f"{what}: {str(stop)[:500]}"
            return str(stop)
        except Exception as error:
            raise AssertionError(f"{what}: {type(error).__name__}: {error}\n{err.getvalue()[-500:]}") from error
    return ""


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


def tried(kind: str, seeds: list[int], good: SimpleNamespace, tmp_path: Path) -> None:
    """Try each seed; all that fail are told. Nothing beside the place of each is written."""
    attempt, canary = KINDS[kind][0], tmp_path / "canary"
    canary.write_text("kept\n")
    bad = []
    for seed in seeds:
        place = tmp_path / "place"
        place.mkdir()
        try:
            attempt(seed, good, place)
        except AssertionError as error:
            bad.append(str(error)[:3000])
        finally:
            shutil.rmtree(place)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["canary"] and canary.read_text() == "kept\n"
    assert not bad, f"{len(bad)} of {len(seeds)}:\n" + "\n\n".join(bad[:8])


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_damaged_is_answered(kind: str, good: SimpleNamespace, tmp_path: Path) -> None:
    tried(kind, list(range(KINDS[kind][1])), good, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_damaged_is_answered_from_fresh_seeds(kind: str, good: SimpleNamespace, tmp_path: Path) -> None:
    fresh = random.SystemRandom()
    tried(kind, [fresh.randrange(1000, 1 << 40) for _ in range(max(1, round(KINDS[kind][2] * PART)))], good, tmp_path)
