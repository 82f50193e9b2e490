"""Calls by which a run is written fail, are torn or slow, at places drawn by a seed: no end is a bug of ours, a dead end, or a falsehood.

The calls are met below the program, by a library in C that is loaded before glibc (support/faulty_disk.c).
"""

from __future__ import annotations

import errno
import json
import random
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

import holdfast as package
from conftest import ROOT, holdfast, processes_of, write_table
from support.disk_sweep import Disk

_ERRORS = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EFBIG, errno.ESTALE)
FAULTS = [*map(str, _ERRORS), "short", "tear", "delay"]
KINDS = ("text", "full", "table", "command")
CASES, MANY = 6, 500
_OURS = f'File "{Path(package.__file__).parent}/'
_SCRIPT = "import time\nfor step in range(1, 6):\n    print(f'step {step}/5', flush=True)\n    time.sleep(0.05)\n"


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    library = tmp_path_factory.mktemp("disk") / "faulty_disk.so"
    if " " in str(library) or ":" in str(library):
        pytest.skip(f"LD_PRELOAD takes no path like {library}")
    source = ROOT / "tests/support/faulty_disk.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"], check=True)
    return library


@pytest.fixture(scope="module")
def undisturbed(assets: SimpleNamespace, disk: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, SimpleNamespace]:
    """By kind of run, made when it is asked for: its words, how many calls it makes, and its summary."""
    folder, found = tmp_path_factory.mktemp("undisturbed"), _Kinds()
    found.make = lambda kind: _undisturbed(kind, assets, disk, folder)
    return found


class _Kinds(dict[str, SimpleNamespace]):
    make: Any

    def __missing__(self, kind: str) -> SimpleNamespace:
        self[kind] = self.make(kind)
        return self[kind]


def _words(kind: str, assets: SimpleNamespace, folder: Path) -> list[Any]:
    if kind == "command":
        (folder / "train.py").write_text(_SCRIPT)
        return ["python", folder / "train.py"]
    train = {"steps": 6, "effective_batch": 4, "lr": 1e-3, "threads": 1}
    tree: dict[str, Any] = {"train": train, "save": {"every": 2}, "run": {"standby": False}}
    if kind == "table":
        table = write_table(folder / "table.csv", 80)
        tree |= {"task": "tabular", "data": {"files": [str(table)]}, "table": {"target": "y"}}
    else:
        adapter = {"type": "full"} if kind == "full" else {"r": 4}
        tree |= {"model": str(assets.model), "data": {"files": [str(assets.rows)], "held_out": 0.0}, "adapter": adapter}
        train["max_tokens"] = 96
    (folder / f"{kind}.yaml").write_text(yaml.safe_dump(tree))
    return ["train", folder / f"{kind}.yaml"]


def _asked(words: list[Any], run: Path, library: Path | None = None, disk: Disk | None = None) -> subprocess.CompletedProcess[str]:
    env = {"LD_PRELOAD": str(library), "DISK_FILE": str(disk.file)} if disk else {}
    if words[0] == "train":
        return holdfast(*words, "--run", run, "--json", env=env)
    return holdfast("run", "--run", run, "--json", "--", *words, env=env)


def _undisturbed(kind: str, assets: SimpleNamespace, library: Path, folder: Path) -> SimpleNamespace:
    words, run, disk = _words(kind, assets, folder), folder / kind, Disk(folder / f"{kind}.disk")
    disk.set(str(run), reads=False)
    done = _asked(words, run, library, disk)
    assert done.returncode == 0, done.stderr
    calls = disk.seen()[0]
    assert calls > 50, "the library sees them"
    return SimpleNamespace(words=words, calls=calls, summary=json.loads(done.stdout))


def survives(case: int, undisturbed: dict[str, SimpleNamespace], library: Path, folder: Path) -> None:
    """One run with a fault somewhere, then the same command without: finished, the same bits, and nothing that was said is false."""
    draw = random.Random(case)
    kind, fault = KINDS[case % len(KINDS)], draw.choice(FAULTS)
    known, run, disk = undisturbed[kind], folder / f"run-{case}", Disk(folder / f"disk-{case}")
    at, lasts = draw.randint(1, known.calls), draw.choice((1, 1, 3, 20))
    place = f"case {case}: {kind}, {fault} at call {at} of {known.calls}, {lasts} calls"
    disk.set(str(run), at, lasts, fault, reads=False)
    done = _asked(known.words, run, library, disk)
    said = f"{place}\n{done.stdout}\n{done.stderr}"
    assert done.returncode in (0, 1, 3, -9), said
    trace = _OURS if kind == "command" else "Traceback"  # a command whose own output fails shows a traceback of its own
    assert trace not in done.stderr and "this is a bug" not in done.stderr, said
    assert done.returncode <= 0 or "->" in done.stderr or "rerun" in done.stderr, said
    if done.returncode == 0:
        _same(json.loads(done.stdout), known.summary, said)
    again = _asked(known.words, run)
    said += f"\nagain:\n{again.stdout}\n{again.stderr}"
    assert again.returncode == 0, said
    _same(json.loads(again.stdout), known.summary, said)
    assert not processes_of(run), said
    shutil.rmtree(run)


def _same(summary: dict[str, Any], known: dict[str, Any], said: str) -> None:
    assert summary["status"] == "finished" and summary["steps"] == known["steps"], said
    assert summary.get("artifact_sha256") == known.get("artifact_sha256"), said


@pytest.mark.parametrize("case", range(CASES))
def test_a_run_survives_a_fault_of_its_disk(case: int, undisturbed: dict[str, SimpleNamespace], disk: Path, tmp_path: Path) -> None:
    survives(case, undisturbed, disk, tmp_path)


def _swept(library: Path, folder: Path, *more: str) -> None:
    script = ROOT / "tests/support/disk_sweep.py"
    done = subprocess.run([sys.executable, str(script), str(library), str(folder), *more], capture_output=True, text=True, check=False)
    *short, last = done.stdout.splitlines()
    assert json.loads(last)["cases"] > 5, done.stderr
    assert not short, "\n".join(short)


@pytest.mark.parametrize(("names", "most"), [("clean,split", 3), pytest.param("check,clean,split,init", 12, marks=pytest.mark.long)])
def test_commands_tell_a_fault_of_their_disk(disk: Path, tmp_path: Path, names: str, most: int) -> None:
    """No bug of ours, no wrong hint, nothing wrong that is called done, nothing half written, and the same command again does it.

    most: so many calls of each command fail, one after the other.
    """
    _swept(disk, tmp_path, "--commands", names, "--every", "7", "--most", str(most))


@pytest.mark.long
@pytest.mark.parametrize("case", range(CASES, MANY))
def test_runs_survive_faults_of_their_disk(case: int, undisturbed: dict[str, SimpleNamespace], disk: Path, tmp_path: Path) -> None:
    survives(case, undisturbed, disk, tmp_path)
