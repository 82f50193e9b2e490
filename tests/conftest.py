"""What tests share: a small random model with its own tokenizer, rows made here, and a way to call the command line."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from holdfast.config.load import load_config
from holdfast.config.settings import Settings
from holdfast.supervision.preparation.lock import held
from holdfast.supervision.preparation.prepare import open_run
from holdfast.terminal.run_view import Terminal

ROOT = Path(__file__).parent.parent
SHARED = ROOT.parent / "shared"
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "benchmarks" / "gpu")]

from support import forked  # noqa: E402
from support.selection import (  # noqa: E402, F401  (hooks)
    load_examples,
    pytest_collection_modifyitems,
    pytest_configure,
    same_numbers,
)
from support.times import (  # noqa: E402, F401  (hooks)
    pytest_collection_finish,
    pytest_runtest_logreport,
    pytest_runtest_makereport,
    pytest_sessionstart,
    pytest_terminal_summary,
)

load_examples()
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="shared/ with third-party data is not beside this checkout")


def make_rows(count: int) -> list[dict[str, str]]:
    words = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heath")
    return [
        {
            "instruction": f"Join {words[i % 8]} and {i * 37 % 1000}",
            "input": "",
            "output": f"{words[i % 8]}-{i * 37 % 1000}" + "!" * (i % 5),
        }
        for i in range(count)
    ]


def write_rows(file: Path, rows: list[dict[str, Any]]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """No test reads or fills the user's cache."""
    os.environ["HOLDFAST_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    os.environ["HOLDFAST_MODELS"] = str(tmp_path_factory.mktemp("shipped") / "models.jsonl")


@pytest.fixture(scope="session", autouse=True)
def forks() -> None:
    """Processes of holdfast start by a fork; those of a test with `exec_only` as a user's do."""
    forked.install()


@pytest.fixture(autouse=True)
def nobody_ends_unheard() -> Iterator[None]:
    """What a command run in this process leaves of its signals ends no later test."""
    yield
    if (left := sys.modules.get("holdfast.supervision.signals")) is not None:
        left.StopSignals._newest = None


@pytest.fixture
def exec_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(forked.EXEC, "1")


@pytest.fixture(scope="session")
def assets(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """`.model`: folder of a two-layer model of 400 tokens; `.rows`: a file of 120 good rows."""
    from make_model import make_model

    folder = tmp_path_factory.mktemp("assets")
    rows = write_rows(folder / "rows.jsonl", make_rows(120))
    make_model(folder / "model", rows, "test")
    return SimpleNamespace(model=folder / "model", rows=rows)


def write_config(assets: SimpleNamespace, file: Path, **sections: Any) -> Path:
    """A config for the small model; keyword arguments replace sections' keys: train={...}."""
    tree: dict[str, Any] = {
        "model": str(assets.model),
        "data": {"files": [str(assets.rows)], "held_out": 0.0},  # with some, each run ends with an evaluation in another process
        "adapter": {"r": 4, "dropout": 0.1},
        "train": {"steps": 8, "effective_batch": 8, "lr": 1e-3, "max_tokens": 96, "threads": 1},
        "save": {"every": 3},
    }
    for section, values in sections.items():
        tree[section] = tree.get(section, {}) | values if isinstance(values, dict) else values
    file.write_text(yaml.safe_dump(tree), encoding="utf-8")
    return file


@pytest.fixture
def config_of(assets: SimpleNamespace, tmp_path: Path) -> Callable[..., Path]:
    """Write a config for the small model into the test's folder, or another: `write_config`."""

    def write(name: str = "run", folder: Path | None = None, **sections: Any) -> Path:
        return write_config(assets, (folder or tmp_path) / f"{name}.yaml", **sections)

    return write


def write_table(file: Path, rows: int, seed: int = 0) -> Path:
    """A table with three columns of numbers (x0 misses some), one of names, and a target y that follows from them with noise."""
    draw = random.Random(seed)
    with file.open("w", encoding="utf-8") as out:
        out.write("x0,x1,x2,kind,y\n")
        for _ in range(rows):
            x, kind = [draw.gauss(0, 1) for _ in range(3)], draw.choice("abc")
            y = 2 * x[0] - x[1] + {"a": 1.5, "b": 0.0, "c": -1.0}[kind] + draw.gauss(0, 0.3)
            first = "" if draw.random() < 0.05 else f"{x[0]:.6g}"
            out.write(f"{first},{x[1]:.6g},{x[2]:.6g},{kind},{y:.6g}\n")
    return file


def holdfast(*arguments: object, cwd: Path | None = None, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command line as a user does; output and exit code."""
    command = [sys.executable, "-m", "holdfast", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=cwd, env=os.environ | (env or {}), stdin=subprocess.DEVNULL, check=False
    )


def start(*arguments: object, cwd: Path | None = None, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "holdfast", *map(str, arguments)]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=cwd,
        env=os.environ | (env or {}),
        stdin=subprocess.DEVNULL,
    )


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def events(run: Path, kind: str) -> list[dict[str, Any]]:
    return [event for event in lines(run / "events.jsonl") if event["event"] == kind]


def processes_of(run: Path) -> dict[str, int]:
    """Living processes of a run by role, found by their command lines; a standby that took an attempt over is its trainer."""
    roles = {"holdfast.processes.shim": "nurse", "holdfast.processes.writer": "writer", "holdfast.trainer": "trainer"}
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command = (entry / "cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        for module, role in roles.items():
            if module in command and any(part == str(run) or part.startswith(f"{run}/") for part in command):
                waits = bool({"standby", "--standby"} & set(command)) and int(entry.name) not in _attending(run)
                found[f"standby {role}" if waits else role] = int(entry.name)
    return found


def _attending(run: Path) -> set[int]:
    """Pids that the attempts' shims and trainers wrote down."""
    pids = {json.loads(file.read_text())["pid"] for file in run.glob("attempts/*/nurse.json")}
    return pids | {json.loads(file.read_text())["identity"]["pid"] for file in run.glob("attempts/*/rank0.json")}


def wait_until(true: Callable[[], bool], patience_s: float = 300) -> None:
    """Ask until it is so; asking takes a fifth of a processor at the most, the rest is for those that are waited for."""
    deadline = time.monotonic() + patience_s
    while True:
        began = time.thread_time()
        if true():
            return
        assert time.monotonic() < deadline, "it never came"
        time.sleep(max(0.01, 4 * (time.thread_time() - began)))


def run_with_timeline_of(run: Path, config: Path, other: Path) -> dict[str, Any]:
    """Train in `other` with the settings that `run` came to in force from its first step on; the summary."""
    with held(other) as (folder, _lock):
        open_run(folder, load_config(config), False, Terminal(to_stderr=True, quiet=True))
    with (other / "timeline.jsonl").open("a") as timeline:
        timeline.writelines(json.dumps(entry) + "\n" for entry in lines(run / "timeline.jsonl")[1:])
    done = holdfast("train", config, "--run", other, "--json")
    assert done.returncode == 0, done.stderr
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary


def settings_with(**changes: Any) -> Settings:
    """Settings with these changes; what only a plan can say is 1."""
    return Settings(**{"steps": 1, "samples": 1, "micro_batch_tokens": 1, "threads": 1} | changes)


def kill(pid: int | None) -> bool:
    if pid is None:
        return False
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture
def no_alternatives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans made in this process list no other ways to run: most of the steps that one traces, where a test is not about them."""
    monkeypatch.setattr("holdfast.planning.planning.alternatives", lambda *_: [])


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 3 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)], capture_output=True, check=False).returncode:
        pytest.skip("mounting a tmpfs needs root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> Path:
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as handle:
        try:
            while True:
                handle.write(b"\0" * 4096)
        except OSError:
            return filler


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    """Run `data ...` with --json; its object. `code` is what it must end with."""

    def run(*arguments: object, code: int | None = 0) -> dict[str, Any]:
        from holdfast.cli.main import main

        ended = main(["data", *map(str, arguments), "--json"])
        out, err = capsys.readouterr()
        assert code is None or ended == code, err
        answer: dict[str, Any] = json.loads(out)
        return answer

    return run


def assert_law(answer: dict[str, Any], clean_bytes: bytes, rejects: list[dict[str, Any]]) -> None:
    assert answer["rows"] == answer["kept"] + answer["mended"] + answer["rejected"]
    assert len(clean_bytes.splitlines()) == answer["kept"] + answer["mended"]
    assert len(rejects) == answer["rejected"]
    assert all({"file", "line", "reason", "detail"} <= set(row) and ("raw" in row) != ("raw_base64" in row) for row in rejects)


@pytest.fixture
def no_leftovers(tmp_path: Path) -> Iterator[None]:
    """Kill what a failed test left running."""
    yield
    for run in tmp_path.iterdir():
        for pid in processes_of(run).values():
            kill(pid)
