"""Runs a script of this folder, and kills a process of the command it is of after so many calls: no clock says when.

python struck.py SCRIPT ARGUMENTS; STRIKES names a file: for each start a list of [victim, calls]. victim: "script", "shim", or "run", which
started the shim. Calls are Python's and C's in the script's main(). Beside that file, starts.jsonl has a row for each start and each step
computed, as the optimizer's own state counts it, and calls.json [calls up to its first step, all] of a start that came to its end.
"""

import importlib
import itertools
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

_PLAN = Path(os.environ["STRIKES"])


def main() -> None:
    script = importlib.import_module(sys.argv.pop(1))
    importlib.import_module("torch._dynamo")  # what the first step would import
    from torch.optim.optimizer import register_optimizer_step_post_hook

    number, plan = _note({"start": os.getpid()}), json.loads(_PLAN.read_text())
    shim, calls = os.getppid(), itertools.count(1)
    pids = {"script": os.getpid(), "shim": shim, "run": _parent(shim)}
    strikes = {at: pids[victim] for victim, at in (plan[number - 1] if number <= len(plan) else ())}

    before: list[int] = []

    def stepped(optimizer: Any, arguments: object, keywords: object) -> None:
        before or before.append(next(calls))
        _note({"step": max(int(state["step"]) for state in optimizer.state.values()), "of": os.getpid()})

    def count(frame: object, event: str, argument: object) -> None:
        if pid := strikes.get(next(calls)):
            os.kill(pid, signal.SIGKILL)

    register_optimizer_step_post_hook(stepped)
    sys.setprofile(count)
    script.main()
    sys.setprofile(None)
    _PLAN.with_name("calls.json").write_text(json.dumps([*before, next(calls)]))


def _note(row: dict[str, int]) -> int:
    """Write a row down; the number of starts there are."""
    file = _PLAN.with_name("starts.jsonl")
    with file.open("a") as stream:
        stream.write(json.dumps(row) + "\n")
    return file.read_text().count('"start"')


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


if __name__ == "__main__":
    main()
