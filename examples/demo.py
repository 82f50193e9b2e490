"""`make demo`: make rows, train `tiny` on them, kill the trainer twice on the way for real, and show where the report lies.

With --short (`make demo SHORT=1`) a twentieth of the steps: the kills are as real and the report is whole, but little is learned.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

RUN = Path("runs/quickstart")
ROWS = Path("runs/quickstart-rows")
CONFIG = "examples/quickstart.yaml"
KILL_AT = (0.33, 0.66)  # of the steps
SHORT = ["train.steps=60", "train.warmup=5", "evaluate.generate=20"]


def holdfast(*arguments: str) -> list[str]:
    print(f"\n$ holdfast {' '.join(arguments)}", flush=True)
    return [sys.executable, "-m", "holdfast", *arguments]


def announce(text: str) -> None:
    print(f"\n--- demo: {text} ---", flush=True)


def killer(done: threading.Event, killed: list[int]) -> None:
    """Send SIGKILL to the trainer at a third and at two thirds of the run, and say so."""
    for share in KILL_AT:
        while not done.wait(0.05):
            plan, row = RUN / "plan.json", newest_row()
            if row and row["step"] >= share * json.loads(plan.read_text())["steps"]:
                attempt = sorted((RUN / "attempts").iterdir())[-1]
                pid = json.loads((attempt / "rank0.json").read_text())["identity"]["pid"]
                announce(f"killing the trainer (process {pid}) with SIGKILL after step {row['step']}, on purpose")
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
                break


def newest_row() -> dict[str, int] | None:
    try:
        lines = (RUN / "steps.jsonl").read_text().splitlines()
        return json.loads(lines[-1]) if lines else None
    except (OSError, ValueError):
        return None


def show_learning() -> None:
    """Say how many held-out questions base and tuned model answer exactly right; none of the answers stands in a training row."""
    exact = json.loads((RUN / "evaluation.json").read_text())["exact_match"]
    base, tuned = exact["base"] / exact["asked"], exact["tuned"] / exact["asked"]
    announce(f"of {exact['asked']} held-out questions the base answered {base:.1%} exactly right, the tuned model {tuned:.1%}")


def disproof(killed: int) -> str:
    """What speaks against a run that was killed so often: it is not whole, or it learned nothing; "" for nothing."""
    steps, evaluation = json.loads((RUN / "plan.json").read_text())["steps"], json.loads((RUN / "evaluation.json").read_text())
    rows = [json.loads(line)["step"] for line in (RUN / "steps.jsonl").read_text().splitlines()]
    attempts = len(list((RUN / "attempts").iterdir()))
    if attempts != killed + 1 or killed != len(KILL_AT):
        return f"{killed} kills and {attempts} attempts, where {len(KILL_AT)} and {len(KILL_AT) + 1} were to be"
    if rows != list(range(1, steps + 1)):
        return f"not every of {steps} steps has one row in steps.jsonl"
    if not (RUN / "report.html").exists() or evaluation["eval_tuned"] >= evaluation["eval_base"]:
        return "there is no report, or the held-out loss is no lower than the base's"
    return ""


def main(short: bool) -> int:
    os.chdir(Path(__file__).parent.parent)
    shutil.rmtree(RUN, ignore_errors=True)
    train, held_out = str(ROWS / "train.jsonl"), str(ROWS / "held-out.jsonl")
    code = subprocess.run(holdfast("data", "make", "--rows", "1500", "--out", train, "--held-out", held_out), check=False).returncode
    if code:
        return code
    done = threading.Event()
    killed: list[int] = []
    thread = threading.Thread(target=killer, args=(done, killed), daemon=True)
    thread.start()
    began = time.monotonic()
    child = subprocess.Popen(holdfast("train", CONFIG, *(SHORT if short else [])))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the child, which saves and ends
    code = child.wait()
    done.set()
    if code == 0:
        thread.join()
        if wrong := disproof(len(killed)):
            announce(wrong)
            return 1
        if short:
            announce("the kills cost no step; the run is too short to learn answers: without SHORT=1 it is twenty times as long")
        else:
            show_learning()
        announce(f"done in {time.monotonic() - began:.0f} s, two kills included. Now open {RUN / 'report.html'} in a browser,")
        print(f"    or talk to both models: .venv/bin/holdfast chat {RUN}\n", flush=True)
    return code


if __name__ == "__main__":
    raise SystemExit(main("--short" in sys.argv[1:]))
