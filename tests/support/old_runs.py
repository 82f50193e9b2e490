"""The committed run folders of tests/fixtures in a test's own place, and the command line called without a process of its own."""

from __future__ import annotations

import contextlib
import io
import json
import os
import runpy
import shutil
import sys
from pathlib import Path
from typing import Any

FIXTURES = Path(__file__).parents[1] / "fixtures"
MADE_IN = "/tmp/holdfast-fixtures"  # stands in the committed files
EXPECTED: dict[str, Any] = json.loads((FIXTURES / "expected.json").read_text())
TERMS = 10_000  # that a loss of them sums up: labels times width and layers, about
STEPS, ANSWER = (
    8,
    16,
)  # steps, each from the weights of the one before; the size of an answer's log-probability, whose exponential a loss is
COMMAND = ("python3", "loop.py", "--output_dir", "out")


def settle(place: Path, *runs: str) -> Path:
    """Copy inputs, exports and these runs to `place` and put it into their files; the folder to work in."""
    for name in ("inputs", "exports", *(f"runs/{run}" for run in runs)):
        shutil.copytree(FIXTURES / name, place / name, symlinks=True)
    shutil.copy(FIXTURES / "models.jsonl", place)
    for run in runs:
        if (saved := place / "runs" / run / "work-out").is_dir():
            saved.rename(place / "inputs" / "out")
    for file in place.rglob("*"):
        if file.is_file() and not file.is_symlink() and MADE_IN.encode() in (raw := file.read_bytes()) and file.suffix != ".safetensors":
            file.write_bytes(raw.replace(MADE_IN.encode(), str(place).encode()))
    return place / "inputs"


def command_of(kind: str, run: Path) -> list[object]:
    """The command line that made a run of this kind."""
    if kind == "command":
        return ["run", "--run", run, "--json", "--", *COMMAND]
    return ["train", f"{kind}.yaml", "--run", run, "--json"]


def same_machine() -> bool:
    """Whether the bits of the fixtures are those of this torch and this kind of CPU."""
    import torch

    if {"ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS"} & set(os.environ):  # as if on another
        return False
    wanted = EXPECTED["made_with"]
    facts = [line.partition(":")[::2] for line in Path("/proc/cpuinfo").read_text().splitlines()]
    found = {name.strip(): value.strip() for name, value in facts}
    cpu = [found.get(name) for name in ("vendor_id", "cpu family", "model")]
    return wanted == {"torch": torch.__version__, "capability": torch.backends.cpu.get_cpu_capability(), "cpu": cpu}


def near(value: Any, kind: str) -> Any:
    """What losses of these runs, recorded on one processor, are equal to on another."""
    from support.rounding import but_for_rounding

    return but_for_rounding(value, TERMS, condition=STEPS * (ANSWER if kind.startswith("preferences") else 1))


def check_bits(kind: str, sha256: str | None, losses: list[float] | None) -> None:
    """Hold a result against the recorded one: to the bit where the machine is of that kind, else losses but for rounding."""
    wanted = EXPECTED[kind]
    if wanted["losses"] is not None:
        assert losses is not None and len(losses) == len(wanted["losses"])
        assert losses == near(wanted["losses"], kind)
    if same_machine() or wanted["losses"] is None:
        assert losses == wanted["losses"]
        assert sha256 == wanted["artifact_sha256"]


def ask(*arguments: object) -> tuple[int, str, str]:
    """Exit code, output and error output of `holdfast ARGUMENTS`, run in this process."""
    out, err, argv, path = io.StringIO(), io.StringIO(), sys.argv, list(sys.path)
    sys.argv = ["holdfast", *map(str, arguments)]
    code: Any = 0
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            runpy.run_module("holdfast", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code
    finally:
        sys.argv, sys.path[:] = argv, path
    return int(code or 0), out.getvalue(), err.getvalue()
