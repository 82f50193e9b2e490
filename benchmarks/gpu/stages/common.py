"""What stages share: where things lie, models and rows, runs of holdfast, the journal of answers. Asks nothing itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]
ENGINE = ROOT / "benchmarks" / "engine"
Json = dict[str, Any]


def simulated(**options: Any) -> dict[str, str]:
    """The environment in which processes see the simulated card; empty where torch has kernels of its own or nothing can compile it."""
    from simulated import card

    return {} if card._why_not() else card.environment(**options)


@dataclass(frozen=True)
class Place:
    """One stage at work. `smoke`: the smallest sizes, on the simulated card where there is one."""

    out: Path
    stage: str
    smoke: bool

    def answer(self, question: str, value: object, note: str = "") -> None:
        """Write an answer down; None: there is none here, and `note` says why. Flushed at once: what follows may crash."""
        entry = {"question": question, "value": value, "note": note}
        with (self.out / "answers" / f"{self.stage}.jsonl").open("a", encoding="utf-8") as handle:
            handle.write(json.dumps(entry) + "\n")
        print(entry, flush=True)

    def kept(self, name: str) -> Path:
        """A file that goes home with the results."""
        (self.out / "kept").mkdir(exist_ok=True)
        return self.out / "kept" / name

    def steps(self, number: int, smoke: int = 4) -> int:
        return smoke if self.smoke else number

    def model(self, size: str) -> Path:
        """A model folder of this shape with random weights; the smallest one in a rehearsal. Made once."""
        size = "test" if self.smoke else size
        folder = self.out / "models" / size
        if not (folder / "made").exists():
            command = [sys.executable, str(ENGINE / "make_models.py"), str(folder), "--size", size, "--stored", "bfloat16"]
            subprocess.run(command, check=True, timeout=400)
            (folder / "made").touch()
        return folder

    def rows(self, size: str, count: int, lengths: tuple[int, ...] = (64, 128, 256, 512)) -> Path:
        """A file of this many rows of these lengths in turn, in tokens."""
        from made_rows import Writer

        model = self.model(size)
        file = self.out / f"rows-{model.name}-{count}-{'-'.join(map(str, lengths))}.jsonl"
        if not file.exists():
            Writer(model).write(file, [lengths[number % len(lengths)] for number in range(count)])
        return file

    def config(self, size: str, rows: Path, **sections: Json) -> Json:
        tree: Json = {
            "model": str(self.model(size)),
            "data": {"files": str(rows), "held_out": 0.0},
            "adapter": {"r": 16, "alpha": 32, "dropout": 0.05},
            "train": {"steps": self.steps(30, 8), "effective_batch": 8, "max_tokens": 512, "precision": "bf16", "lr": 1e-4},
            "evaluate": {"generate": 0},
        }
        for section, values in sections.items():
            tree[section] = tree.get(section, {}) | values
        return tree

    def environment(self, **options: Any) -> dict[str, str]:
        """For commands of holdfast: in a rehearsal their trainers alone see the simulated card, with these options."""
        found = {name: value for name, value in os.environ.items() if name != "SIMULATED_CARD"}
        return found | (simulated(**options) if self.smoke else {})

    def without_card(self) -> dict[str, str]:
        """For a command that is to see no simulated card, and keeps what it found of the machine from those that do."""
        return {"SIMULATED_CARD": "", "HOLDFAST_CACHE": str(self.out / "cache-without")} if self.smoke else {}

    def holdfast(self, *arguments: object, timeout_s: float = 300, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run a command of holdfast, which is asked to stop after `timeout_s`; what it says goes to the stage's log, too."""
        command = [sys.executable, "-m", "holdfast", *map(str, arguments)]
        given = self.environment() | (env or {})
        given = {name: value for name, value in given.items() if value or name != "SIMULATED_CARD"}
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, env=given)
        try:
            out, told = child.communicate(timeout=timeout_s * (5 if self.smoke else 1))
        except subprocess.TimeoutExpired:
            child.terminate()  # a supervisor ends its run
            try:
                out, told = child.communicate(timeout=60)
            except subprocess.TimeoutExpired:
                child.kill()
                out, told = child.communicate()
            told += f"\nstopped after {timeout_s:.0f} s"
        print("$", *command[2:], "->", child.returncode, told[-3000:], sep=" ", flush=True)
        return subprocess.CompletedProcess(command, child.returncode, out, told)

    def train(
        self, name: str, config: Json, faults: list[Json] | None = None, timeout_s: float = 300, env: dict[str, str] | None = None
    ) -> Json:
        """Train in a run folder of this name and return its summary, with `folder`. A run of that name from before is replaced."""
        import shutil

        folder = self.out / "runs" / self.stage / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        file = folder.parent / f"{name}.yaml"
        file.write_text(yaml.safe_dump(config | ({"faults": faults} if faults else {})))
        done = self.holdfast("train", file, "--run", folder, "--json", "--quiet", timeout_s=timeout_s, env=env)
        try:
            summary: Json = json.loads(done.stdout.strip().splitlines()[-1])
        except (json.JSONDecodeError, IndexError):
            summary = {"status": f"exit code {done.returncode}", "reason": done.stderr[-500:]}
        if settings_of({"folder": folder}).get("device") == "cpu" and (not self.smoke or simulated()):
            raise SystemExit(f"{name} was planned for the CPU, and not for the card: what it says is of no use here")
        return summary | {"folder": str(folder), "code": done.returncode}


def lines(file: Path) -> list[Json]:
    return [json.loads(line) for line in file.read_text().splitlines() if line.endswith("}")] if file.exists() else []


def events(summary: Json, kind: str) -> list[Json]:
    """A run's events of one kind."""
    return [event for event in lines(Path(summary["folder"]) / "events.jsonl") if event["event"] == kind]


def steps_of(summary: Json) -> list[Json]:
    return lines(Path(summary["folder"]) / "steps.jsonl")


def settings_of(summary: Json) -> Json:
    """The settings a run ended with, by its timeline."""
    found: Json = {}
    for entry in lines(Path(summary["folder"]) / "timeline.jsonl"):
        found |= entry["settings"]
    return found


def wait_until(true: Any, patience_s: float) -> bool:
    """Whether it came true in time."""
    deadline = time.monotonic() + patience_s
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]
