"""Run contenders on the same work and read what each left: steps, tokens, losses. Compares nothing; tables.py does."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import contenders
from measure import Usage, measure
from work import Work, peers_rows

Json = dict[str, Any]
LOSSES = 50
PACKAGES = ("torch", "transformers", "peft", "trl", "litgpt", "torchtune", "llamafactory", "axolotl")

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Result:
    """One run. Steady: from the end of the warm-up steps to the last step. Tokens are trained ones, without padding."""

    contender: str
    round: int
    code: int
    steps: int = 0
    tokens: int = 0
    positions: int = 0
    total_s: float = 0.0
    total_cpu_s: float = 0.0
    first_step_s: float | None = None
    first_step_cpu_s: float | None = None
    steady_steps: int = 0
    steady_tokens: int = 0
    steady_s: float = 0.0
    steady_cpu_s: float = 0.0
    largest_bytes: int = 0
    together_bytes: int = 0
    losses: list[float] = field(default_factory=list)

    @property
    def per_second(self) -> float | None:
        return self.steady_tokens / self.steady_s if self.steady_s else None

    @property
    def per_cpu_second(self) -> float | None:
        return self.steady_tokens / self.steady_cpu_s if self.steady_cpu_s else None

    @property
    def padding(self) -> float | None:
        """Share of the positions computed that were padding; None where the contender does not say."""
        return 1 - self.tokens / self.positions if self.positions else None


@dataclass
class Race:
    """Where the contenders live and where their runs go."""

    folder: Path
    holdfast: str
    pythons: dict[str, str]
    warmup: int
    timeout_s: float = 1800.0
    numbers: itertools.count = field(default_factory=itertools.count)
    rows_of_peers: dict[tuple[str, int], Path] = field(default_factory=dict)

    def has(self, name: str) -> bool:
        return name.startswith("holdfast") or contenders.environment_of(name) in self.pythons

    def run(self, name: str, work: Work, number: int, overrides: list[str] | None = None) -> Result:
        """Run one contender in a folder of its own. `holdfast` must be the first for any work: peers get their rows in its order."""
        folder = (self.folder / f"{next(self.numbers):03d}-{name}").resolve()
        folder.mkdir(parents=True)
        if name.startswith("holdfast"):
            command = [self.holdfast, *contenders.holdfast(work, folder, overrides or [])]
            environment, place = dict(os.environ), None  # started where we are, so that a relative PYTHONPATH holds
        else:
            if (work.rows, work.steps * work.batch) not in self.rows_of_peers:
                raise SystemExit("holdfast took no step, so the peers cannot be given its rows in its order")
            rows = self.rows_of_peers[work.rows, work.steps * work.batch]
            switches = {switch: f"-{switch}" in name for switch in contenders.SWITCHES}
            task = work.at(folder / "out", contenders.option_of(name), rows, **switches)
            if name.startswith("litgpt"):
                task = self._litgpt_checkpoint(task)
            command = [self.pythons[contenders.environment_of(name)], *contenders.peer(name, task, folder)]
            environment, place = _peers_environment(folder, work.threads), folder
        usage = measure(command, environment, folder / "output.log", self.timeout_s, place)
        if usage.code:
            print(f"{name} ended with exit code {usage.code}; the end of {folder}/output.log:", file=sys.stderr)
            print("\n".join((folder / "output.log").read_text(errors="replace").splitlines()[-12:]), file=sys.stderr)
        result = self._read(name, work, number, folder, usage)
        with (self.folder / "results.jsonl").open("a") as handle:
            handle.write(
                json.dumps({"time": time.time(), "model": Path(work.model).name, "rows": Path(work.rows).name, **asdict(result)}) + "\n"
            )
        shutil.rmtree(folder / "out", ignore_errors=True)
        shutil.rmtree(folder / "cache", ignore_errors=True)
        return result

    def _litgpt_checkpoint(self, work: Work) -> Work:
        made = self.folder.resolve().parent / f"litgpt-{Path(work.model).name}"
        if not made.exists():
            command = [self.pythons["litgpt"], str(contenders.PEERS / "litgpt_model.py"), work.model, str(made)]
            subprocess.run(command, check=True, env=_peers_environment(self.folder, work.threads), stdout=subprocess.DEVNULL)
        return replace(work, model=str(made), pad=0)  # LitGPT fills up with zeros, whatever the tokenizer says

    def _read(self, name: str, work: Work, number: int, folder: Path, usage: Usage) -> Result:
        ours = name.startswith("holdfast")
        rows = _lines(folder / ("run/steps.jsonl" if ours else "steps.jsonl"))
        if ours:
            rows = _cumulated(rows)
            key = (work.rows, work.steps * work.batch)
            if rows and key not in self.rows_of_peers:
                self.rows_of_peers[key] = peers_rows(
                    Path(work.rows), folder / "run", self.folder.resolve() / f"rows-{len(self.rows_of_peers)}.jsonl"
                )
        result = Result(name, number, usage.code, len(rows), total_s=usage.wall_s, total_cpu_s=usage.cpu_s)
        result.largest_bytes, result.together_bytes = usage.largest_bytes, usage.together_bytes
        if not rows:
            return result
        result.tokens, result.positions = rows[-1]["tokens"], rows[-1].get("positions", 0)
        result.first_step_s = rows[0]["time"] - usage.began
        result.first_step_cpu_s = usage.cpu_at(rows[0]["time"])
        result.losses = [row["loss"] for row in rows[:LOSSES]]
        if len(rows) > self.warmup:
            first, last = rows[self.warmup - 1], rows[-1]
            result.steady_steps = len(rows) - self.warmup
            result.steady_tokens = last["tokens"] - first["tokens"]
            result.steady_s = last["time"] - first["time"]
            result.steady_cpu_s = usage.cpu_at(last["time"]) - usage.cpu_at(first["time"])
        return result


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--holdfast", default=sys.executable, metavar="PYTHON", help="python with holdfast (default: this one)")
    parser.add_argument("--peers", type=Path, metavar="FOLDER", help="folder of environments, as setup_peers.sh makes it")
    parser.add_argument("--peer", action="append", default=[], metavar="ENVIRONMENT=PYTHON", help="one environment's python")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="for runs, results.jsonl and tables.md; added to")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=1800.0, metavar="SECONDS", help="for one run")
    parser.add_argument("--smoke", action="store_true", help="the smallest size that shows that the program works")


def open_race(given: argparse.Namespace, warmup: int) -> Race:
    pythons = {}
    if given.peers:
        pythons = {folder.name: str(folder / "bin/python") for folder in sorted(given.peers.iterdir()) if (folder / "bin/python").exists()}
    pythons |= dict(entry.split("=", 1) for entry in given.peer)
    pythons = {name: str(Path(python).absolute()) for name, python in pythons.items()}
    folder = given.out / time.strftime("runs-%m%d-%H%M%S")
    folder.mkdir(parents=True)
    return Race(folder, str(Path(given.holdfast).absolute()), pythons, warmup, given.timeout)


def versions(race: Race, names: list[str]) -> str:
    """The releases the contenders are, as their own environments say."""
    program = (
        "import importlib.metadata as m; names = {d.metadata['Name'].lower(): d.version for d in reversed(list(m.distributions()))};"
        f"print(', '.join(f'{{n}} {{names[n]}}' for n in {PACKAGES!r} if n in names))"
    )
    pythons = {"holdfast": race.holdfast} | {contenders.environment_of(name): "" for name in names if not name.startswith("holdfast")}
    said = []
    for environment, python in pythons.items():
        command = [python or race.pythons[environment], "-c", program]
        answer = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
        said.append(f"{environment}: {answer or 'unknown'}")
    return "; ".join(said)


def _peers_environment(folder: Path, threads: int) -> dict[str, str]:
    """Nothing of ours on the path, no network, no trackers, and no rows prepared by an earlier run."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if theirs := [path for path in given if path and not Path(path).resolve().is_relative_to(ROOT)]:
        environment["PYTHONPATH"] = os.pathsep.join(theirs)  # packages beside a machine's own
    quiet = ("DO_NOT_TRACK", "AXOLOTL_DO_NOT_TRACK", "HF_HUB_DISABLE_TELEMETRY", "HF_HUB_OFFLINE", "DISABLE_VERSION_CHECK")
    return environment | dict.fromkeys(quiet, "1") | {"HF_DATASETS_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": str(threads)}


def _lines(file: Path) -> list[Json]:
    return [json.loads(line) for line in file.read_text().splitlines() if line.endswith("}")] if file.exists() else []


def _cumulated(rows: list[Json]) -> list[Json]:
    sums = itertools.accumulate(row["tokens"] for row in rows)
    return [row | {"tokens": tokens} for row, tokens in zip(rows, sums, strict=True)]
