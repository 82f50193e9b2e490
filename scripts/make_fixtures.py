"""Make the run folders that later versions have to read and to finish: tests/fixtures (see its README.md).

python scripts/make_fixtures.py [KIND ...]     some minutes; without KIND all of them

Everything goes through the command line of the holdfast that is installed. Made in PLACE, which then stands in the files in place of a
path of this machine; host name and source folder are taken out.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from make_model import make_model

ROOT = Path(__file__).parents[1]
OUT = ROOT / "tests" / "fixtures"
PLACE = Path("/tmp/holdfast-fixtures")
TEXT_FILES = {".yaml", ".json", ".jsonl", ".html", ".log", ".lock", ".md", ".txt"}
WORDS = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heath")
TRAIN = {"steps": 8, "effective_batch": 4, "lr": 1e-3, "max_tokens": 64, "threads": 1, "micro_batch_tokens": 60}
COMMON: dict[str, Any] = {"run": {"standby": False}, "save": {"every": 3, "keep": 1}, "evaluate": {"generate": 0}}
TEXT: dict[str, Any] = COMMON | {
    "model": "tiny",
    "data": {"files": "rows.jsonl", "held_out": 0.15},
    "adapter": {"r": 1, "dropout": 0.1, "targets": ["q_proj", "v_proj"]},
    "train": TRAIN,
}
PAIRS = {"files": "pairs.jsonl", "held_out": 0.15}
KINDS: dict[str, dict[str, Any]] = {
    "text": TEXT | {"evaluate": {"every": 4, "generate": 2, "max_new_tokens": 8}},
    "preferences": TEXT | {"data": PAIRS, "train": TRAIN | {"objective": "dpo"}},
    "full": TEXT | {"model": "small-model", "adapter": {"type": "full"}},
    "four-bit": TEXT | {"train": TRAIN | {"frozen": "nf4", "steps": 4}},
    "ranks": TEXT | {"train": TRAIN | {"ranks": 2, "shards": 2}},
    "tabular": COMMON
    | {
        "task": "tabular",
        "data": {"files": "table.csv", "held_out": 0.2},
        "table": {"target": "y"},
        "network": {"hidden": [8], "members": 2, "dropout": 0.1, "exports": []},
        "train": {"steps": 8, "effective_batch": 8, "lr": 1e-3, "threads": 1, "micro_batch_tokens": 3},
    },
}
COMMAND = ["python3", "loop.py", "--output_dir", "out"]
UNFINISHED = ("text", "preferences", "tabular", "ranks", "command")
INCIDENTS = [
    {"name": "killed in step 2", "effect": "kill", "when": {"attempt": 1, "step": 2, "phase": "backward"}},
    {"name": "a row that is not finite", "effect": "nan_loss", "when": {"sample": "rows.jsonl:7"}},
]
SLOW = [{"name": "time to stop it", "effect": "slow", "seconds": 3, "when": {"step": 5}}]


def write_inputs() -> None:
    """Rows, pairs, a table, a small model, a config of each kind, and faults."""
    inputs = PLACE / "inputs"
    inputs.mkdir(parents=True)
    shutil.copy(OUT / "inputs" / "loop.py", inputs)
    texts = [(f"Join {WORDS[i % 8]} and {i * 37 % 1000}", f"{WORDS[i % 8]}-{i * 37 % 1000}" + "!" * (i % 5)) for i in range(30)]
    rows = [{"instruction": asked, "input": "", "output": answer} for asked, answer in texts]
    pairs = [{"prompt": asked, "chosen": answer, "rejected": answer[::-1] + "?"} for asked, answer in texts]
    for name, content in (("rows.jsonl", rows), ("pairs.jsonl", pairs)):
        (inputs / name).write_text("".join(json.dumps(row) + "\n" for row in content))
    draw = random.Random(0)
    with (inputs / "table.csv").open("w") as out:
        out.write("x0,x1,kind,y\n")
        for _ in range(60):
            x, kind = [draw.gauss(0, 1) for _ in range(2)], draw.choice("abc")
            out.write(f"{x[0]:.5g},{x[1]:.5g},{kind},{2 * x[0] - x[1] + 'abc'.index(kind):.5g}\n")
    make_model(inputs / "small-model", inputs / "rows.jsonl", "test")
    for name, config in KINDS.items():
        (inputs / f"{name}.yaml").write_text(json.dumps(config, indent=1) + "\n")
    for name, faults in (("incidents", INCIDENTS), ("slow", SLOW), ("incidents-slow", INCIDENTS + SLOW)):
        (inputs / f"{name}.faults").write_text(json.dumps({"faults": faults}, indent=1) + "\n")


def environment() -> dict[str, str]:
    own = {"HOLDFAST_CACHE": str(PLACE / "cache"), "HOLDFAST_MODELS": str(PLACE / "models.jsonl"), "OMP_NUM_THREADS": "1"}
    return os.environ | own


def call(*arguments: object, code: int = 0) -> dict[str, Any]:
    """The answer of `holdfast ARGUMENTS --json`."""
    command = [sys.executable, "-m", "holdfast", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), cwd=PLACE / "inputs", check=False)
    if done.returncode != code:
        raise SystemExit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def order(kind: str, run: Path, *more: object) -> list[object]:
    """The command line that trains this kind in `run`."""
    if kind == "command":
        return ["run", "--run", run, "--json", "--", *COMMAND]
    return ["train", f"{kind}.yaml", "--run", run, "--json", *more]


def result_of(kind: str, summary: dict[str, Any]) -> str:
    """SHA-256 of what a run has made."""
    if kind != "command":
        return str(summary["artifact_sha256"])
    return hashlib.sha256((PLACE / "inputs/out/checkpoint-8/adapter_model.safetensors").read_bytes()).hexdigest()


def train(kind: str, run: Path, *more: object) -> dict[str, Any]:
    """Train a kind to its end; what must come out again."""
    summary = call(*order(kind, run, *more))
    kept = {"artifact_sha256": result_of(kind, summary), "loss": summary["loss"], "attempts": summary["attempts"]}
    kept["incidents"] = [[one["step"], one["cause"]] for one in summary["incidents"]]
    return kept | {
        "losses": [json.loads(line)["loss"] for line in (run / "steps.jsonl").read_text().splitlines()] if kind != "command" else None
    }


def steps_of(run: Path) -> int:
    """Steps that are committed, as the run says."""
    with contextlib.suppress(OSError):
        return len((run / "steps.jsonl").read_text().splitlines())
    return 0


def leave_unfinished(kind: str, run: Path) -> None:
    """Train a kind for about half of its steps: `text`, a row left out, is killed with all its processes, the others are stopped."""
    faults = "incidents-slow.faults" if kind == "text" else "slow.faults"
    more = ["--faults", faults] if kind != "command" else []
    command = [sys.executable, "-m", "holdfast", *map(str, order(kind, run, *more))]
    log = (PLACE / "stopped.log").open("w")
    at_work = subprocess.Popen(command, stdout=log, stderr=log, env=environment() | {"LOOP_S": "1"}, cwd=PLACE / "inputs")
    while steps_of(run) < 4 if kind != "command" else not (PLACE / "inputs/out/checkpoint-4/trainer_state.json").exists():
        if at_work.poll() is not None:
            raise SystemExit(f"{kind} ended before it was stopped:\n{(PLACE / 'stopped.log').read_text()[-3000:]}")
        time.sleep(0.05)
    if kind == "text":
        time.sleep(1.0)  # its checkpoint of step 3 is on the disk
        living = call("status", run, "--json")["runs"][0]["pids"]
        for pid in [at_work.pid, *living.values()]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        at_work.wait()
    else:
        at_work.send_signal(signal.SIGTERM)
        if at_work.wait() != 130:
            raise SystemExit(f"{kind} was stopped with exit code {at_work.returncode}:\n{(PLACE / 'stopped.log').read_text()[-3000:]}")
        time.sleep(1.0)


def keep(kind: str, name: str) -> None:
    """Copy a run to the fixtures; of a command what it has saved, too. No path, host name or source folder of this machine stays."""
    target = OUT / "runs" / name
    left_out = ["trials"] if name != kind else []  # they are many files, and nothing of them is needed to go on
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(PLACE / "runs" / name, target, symlinks=True, ignore=shutil.ignore_patterns("*.tmp", *left_out))
    if kind == "command":
        shutil.copytree(PLACE / "inputs" / "out", target / "work-out")
        shutil.rmtree(PLACE / "inputs" / "out")
    clean(target)


def clean(folder: Path) -> None:
    for file in folder.rglob("*"):
        if file.is_file() and not file.is_symlink() and file.suffix in TEXT_FILES:
            text = file.read_text()
            for ours, theirs in ((str(ROOT), "/opt/holdfast"), (f'"host":"{socket.gethostname()}"', '"host":"elsewhere"')):
                text = text.replace(ours, theirs)
            file.write_text(text)


def environment_of_bits() -> dict[str, Any]:
    """What the bits depend on: torch and the kind of CPU."""
    import torch

    names = ("vendor_id", "cpu family", "model")
    found = dict(
        part
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if (part := tuple(map(str.strip, line.partition(":")[::2])))[0] in names
    )
    return {"torch": torch.__version__, "capability": torch.backends.cpu.get_cpu_capability(), "cpu": [found.get(name) for name in names]}


def make(kind: str, expected: dict[str, Any]) -> None:
    """The finished run of a kind, and the unfinished one with what it must come to."""
    run = PLACE / "runs" / kind
    expected[kind] = train(kind, run, *(["--faults", "incidents.faults"] if kind == "text" else []))
    keep(kind, kind)
    if kind in UNFINISHED:
        name = f"{kind}-unfinished"
        expected[name] = {key: expected[kind][key] for key in ("artifact_sha256", "losses")}
        leave_unfinished(kind, PLACE / "runs" / name)
        keep(kind, name)
    if kind == "full":
        for to in ("merged", "gguf"):
            call("export", run, "--to", to, "--out", PLACE / "exports" / f"full-{to}", "--json")
    if kind == "text":
        call("export", run, "--to", "adapter", "--out", PLACE / "exports" / "text-adapter", "--json")
        call("export", run, "--to", "gguf-adapter", "--out", PLACE / "exports" / "text-adapter.gguf", "--json")


def main() -> None:
    kinds = sys.argv[1:] or [*KINDS, "command"]
    shutil.rmtree(PLACE, ignore_errors=True)
    write_inputs()
    (PLACE / "exports").mkdir()
    file = OUT / "expected.json"
    expected = json.loads(file.read_text()) if file.exists() else {}
    for kind in kinds:
        make(kind, expected)
        print(kind, json.dumps(expected[kind])[:200], flush=True)
    for name in ("inputs", "exports"):
        shutil.copytree(PLACE / name, OUT / name, dirs_exist_ok=True)
    if {"text", "full"} <= set(kinds):
        shutil.copy(PLACE / "models.jsonl", OUT)
    expected["made_with"] = environment_of_bits()
    file.write_text(json.dumps(expected, indent=1, sort_keys=True) + "\n")
    shutil.rmtree(PLACE)


if __name__ == "__main__":
    main()
