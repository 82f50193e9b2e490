"""Run the vendors' tools, each with a deadline. One that is missing, hangs or prints rubbish is a fact about the machine, not an error."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from holdfast.base.files import Json
from holdfast.machine.place import Place

DEADLINE_S = 10.0
_MIB = 1 << 20
_LIBRARIES = ("amdsmi", "pynvml")
_NVIDIA_FIELDS = "pci.bus_id,name,compute_cap,memory.total,driver_version"


def ask_tools(place: Place, deadline_s: float = DEADLINE_S) -> tuple[dict[str, str], Json]:
    """Ask the tools: (state of each: ok, missing, hanging, failed: ... or rubbish; what they told: {nvidia: [...], amd: [...]})."""
    questions: dict[str, tuple[list[str], Callable[[str], list[Json] | None]]] = {
        "nvidia-smi": ([f"--query-gpu={_NVIDIA_FIELDS}", "--format=csv,noheader,nounits"], nvidia_cards),
        "rocminfo": ([], rocm_agents),
        "amd-smi": (["version"], lambda text: [] if "amd" in text.lower() else None),
        "rocm-smi": (["--showdriverversion"], lambda text: [] if "rocm" in text.lower() else None),
    }
    states: dict[str, str] = {}
    told: Json = {}
    with ThreadPoolExecutor(len(questions)) as pool:
        asked = {name: pool.submit(ask_tool, place, name, arguments, deadline_s) for name, (arguments, _) in questions.items()}
    for name, answer in asked.items():
        states[name], text = answer.result()
        understood = questions[name][1](text) if states[name] == "ok" else []
        if understood is None:
            states[name], understood = "rubbish", []
        told[name] = understood
    return states, {"nvidia": told["nvidia-smi"], "amd": told["rocminfo"]}


def ask_libraries(deadline_s: float = DEADLINE_S) -> dict[str, str]:
    """Import each installed library of a vendor's management and return what becomes of it: {"import NAME": ok, hanging or failed: ...}."""
    found = {}
    for name in _LIBRARIES:
        if importlib.util.find_spec(name) is None:
            continue
        command, nothing = [sys.executable, "-c", f"import {name}"], subprocess.DEVNULL
        process = subprocess.Popen(command, stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True)
        try:
            code = process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1.0)
            found[f"import {name}"] = "hanging"
            continue
        ended = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        found[f"import {name}"] = "ok" if code == 0 else f"failed: {ended}"
    return found


def ask_tool(place: Place, name: str, arguments: list[str], deadline_s: float) -> tuple[str, str]:
    """Run a tool and return (its state as `ask_tools` tells it, what it printed)."""
    program = place.tool(name)
    if program is None:
        return "missing", ""
    environment = {**place.environ, "LC_ALL": "C"}
    try:
        process = subprocess.Popen(
            [program, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        return f"failed: {error.strerror}", ""
    try:
        output, _ = process.communicate(timeout=deadline_s)
    except subprocess.TimeoutExpired:
        _end(process)
        return "hanging", ""
    text = output.decode(errors="replace")
    if process.returncode:
        last = [line.strip() for line in text.splitlines() if line.strip()][-1:] or [""]
        return f"failed: exit code {process.returncode}, {last[0][:200]}", text
    return "ok", text


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the tool and what it started. One that is stuck in the driver is left behind: nobody can end it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=1)


def nvidia_cards(text: str) -> list[Json] | None:
    """Parse the cards in nvidia-smi's comma-separated lines, past the warnings it prints between them; None where no line is a card."""
    cards: list[Json] = []
    for line in text.strip().splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) != len(_NVIDIA_FIELDS.split(",")) or not re.fullmatch(r"[0-9A-Fa-f]+:[0-9A-Fa-f:.]+", parts[0]):
            continue
        capability = re.fullmatch(r"(\d+)\.(\d+)", parts[2])
        memory = re.fullmatch(r"\d+", parts[3])
        cards.append(
            {
                "pci": parts[0].lower()[-12:],
                "name": parts[1],
                "arch": f"sm_{capability[1]}{capability[2]}" if capability else None,
                "memory_bytes": int(memory.group()) * _MIB if memory else None,
                "driver": parts[4],
            }
        )
    return cards if cards or not text.strip() else None


def rocm_agents(text: str) -> list[Json] | None:
    """Parse the GPU agents in rocminfo's output; None when it is not its output."""
    if "Agent" not in text:
        return None
    found: list[Json] = []
    for block in re.split(r"\*+\s*\n\s*Agent \d+", text)[1:]:
        facts = dict(re.findall(r"^\s*(Name|Marketing Name|Device Type):[ \t]*(.*?)\s*$", _before_isa(block), re.M))
        if facts.get("Device Type") == "GPU":
            found.append({"arch": facts.get("Name"), "name": facts.get("Marketing Name") or None})
    return found


def _before_isa(block: str) -> str:
    """Return an agent's own lines: its ISAs have names too."""
    return re.split(r"^\s*ISA Info", block, maxsplit=1, flags=re.M)[0]
