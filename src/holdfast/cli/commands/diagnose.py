"""`holdfast diagnose LOG`: name what ended a run, from any trainer's log, a run folder or the dumps of torch's flight recorder."""

from __future__ import annotations

import argparse
import re
import signal
from pathlib import Path
from typing import Any

import orjson

from holdfast.base.errors import DONE, USAGE, Stop, reading
from holdfast.base.files import Json, read_json
from holdfast.base.inert import say
from holdfast.base.safe_open import LARGEST_JSON, read_small
from holdfast.book import cards_of
from holdfast.book.kinds.failure import Failure
from holdfast.checkup.examine import examine
from holdfast.checkup.recorded_machine import refuse_long
from holdfast.diagnosis.at_hand import at_hand
from holdfast.diagnosis.collectives.dumps import Dump, read_dump, read_dumps
from holdfast.diagnosis.collectives.guilty import diagnose_dumps
from holdfast.diagnosis.diagnose import diagnose
from holdfast.diagnosis.explain import answer
from holdfast.diagnosis.logs.text import Evidence
from holdfast.diagnosis.on_machine import on_this_machine
from holdfast.diagnosis.remedy_fitting import elsewhere, fitted, program_of
from holdfast.run.attempt import closed
from holdfast.run.command import read_command
from holdfast.run.folder import RunFolder, is_run
from holdfast.run.types import Diagnosis
from holdfast.supervision.command.saved import nothing_saved, rerun
from holdfast.supervision.diagnose_run import diagnose_run, read_lines_of

_WORTH_TELLING = 0.02  # of another cause
EXAMPLE = "python train.py 2>&1 | tee train.log; holdfast diagnose train.log --exit-code ${PIPESTATUS[0]}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "log",
        metavar="LOG|RUN|-",
        help="a log file of any trainer (gzip, zstd and bzip2, too), a run folder, a folder of flight recorder "
        "dumps (nccl_trace_rank_0, ...), or - for standard input",
    )
    parser.add_argument("--exit-code", metavar="N", help="how the program ended: 1, 137, -9, SIGKILL")
    parser.add_argument("--machine", type=Path, metavar="FILE", help="the machine it ran on, as `doctor --json` prints it")
    parser.add_argument("--book", type=Path, metavar="DIR", help="your own cards: DIR/failures/*.yaml; they replace ours of the same name")
    parser.add_argument("--json", action="store_true", help="print the diagnosis as JSON")


def run(arguments: argparse.Namespace) -> tuple[int, Json]:
    """Exit code 0 whatever the cause: the diagnosis is the result."""
    cards: dict[str, Failure] = cards_of("failures", arguments.book)
    whose = "ours"
    code = exit_code(arguments.exit_code) if arguments.exit_code is not None else None
    machine = read_machine_file(arguments.machine) if arguments.machine else {}
    path = Path(arguments.log)
    if arguments.log != "-" and (dumps := _dumps_at(path)):
        found = diagnose_dumps(dumps)
        result, whose = answer(found, cards), "another's"
    elif arguments.log != "-" and path.is_dir():
        folder = RunFolder(path.resolve())
        if not folder.command_file.exists():
            folder.existing()
        with reading(folder.path):
            found, attempts = diagnose_run(folder, cards)
            result = answer(found, cards) | _refusal(folder, found) | {"attempts": attempts}
            result |= at_hand(folder, found, read_json(folder.path / "summary.json") or {})
            facts = machine or read_json(folder.path / "machine.json") or {}
            if facts and found.cause not in ("healthy", "unknown"):
                result = on_this_machine(result, examine(facts), "\n".join(clue["text"] for clue in result["clues"]), facts)
            if folder.command_file.exists():
                result, whose = _of_a_command(result, folder), "another's"
    else:
        lines = read_lines_of(arguments.log)
        if lines or code is not None or machine:
            found = diagnose(Evidence(lines, code, machine), cards)
        else:
            found = Diagnosis.plain("unknown", 0.0, "the log is empty: tell how the program ended with --exit-code N")
        result = answer(found, cards)
        text = "\n".join(line.text for line in lines)
        whose = program_of(text)
        result["remedies"] = fitted(result["remedies"], text, of_holdfast=whose == "ours")
        if machine:
            result = on_this_machine(result, examine(machine), text, machine)
    if not arguments.json:
        say("\n".join(_told(result, whose)))
    return DONE, result


def _dumps_at(path: Path) -> dict[int, Dump]:
    """Read the flight recorder's dumps in a folder that is no run's, or beside one of them; empty for anything else."""
    if path.is_dir():
        return {} if is_run(path) else read_dumps(path)
    return read_dumps(path.parent) if path.is_file() and read_dump(path) else {}


def exit_code(text: str) -> int:
    """Parse an exit code as people write it: 1, 137, -9, SIGKILL, 139 (SIGSEGV). Negative for a signal. Raises Stop(2)."""
    name = re.match(r"SIG[A-Z]+", text.strip().upper())
    if name and name[0] in signal.Signals.__members__:
        return -signal.Signals[name[0]]
    if match := re.match(r"\s*(-?\d{1,10})\b", text):
        return int(match[1])
    raise Stop(USAGE, f"--exit-code {text}: not an exit code", "for example --exit-code 137, --exit-code=-9 or --exit-code SIGKILL")


def read_machine_file(file: Path) -> Json:
    """Read the facts in a machine file, or under `machine` in what the doctor printed. Raises Stop(2)."""
    try:
        tree = orjson.loads(read_small(file, LARGEST_JSON))
    except (OSError, orjson.JSONDecodeError) as error:
        raise Stop(USAGE, f"--machine {file}: {error}", "give a file that `holdfast doctor --json` has printed") from None
    if not isinstance(tree, dict):
        raise Stop(USAGE, f"--machine {file}: a machine is an object of facts", "give a file that `holdfast doctor --json` has printed")
    inner: Any = tree.get("machine", tree)
    if not isinstance(inner, dict):
        return {}
    refuse_long(file, inner)
    return inner


def _of_a_command(result: Json, folder: RunFolder) -> Json:
    """Return the answer for somebody else's command, which goes on only from what it has saved."""
    command, lost = read_command(folder), nothing_saved(folder)
    told = "" if command is None else rerun(lost, command)
    remedies = fitted(result["remedies"], "\n".join(clue["text"] for clue in result["clues"]), of_holdfast=False)
    explanation = result["explanation"].replace("the same command resumes the run", told or "the same command resumes the run")
    more = f" {lost[0].upper()}{lost[1:]}." if lost else ""
    return result | {"remedies": remedies, "explanation": explanation + more}


def _refusal(folder: RunFolder, found: Diagnosis) -> Json:
    """Return what a run's last attempt said itself where it refused to begin: no card knows better; empty where it did not."""
    end = closed(folder.attempt(max(folder.attempts(), default=0)))
    failure_report = end.failure_report if end else None
    facts = failure_report.ending.facts if failure_report and failure_report.ending.kind == "refused" else {}
    if not facts or found.cause != facts.get("cause"):
        return {}
    hint = {"id": "as-told", "what": facts.get("hint", ""), "patch": {}, "command": "", "standing": "confirmed", "source": ""}
    return {"explanation": facts.get("reason", ""), "remedies": [hint] if facts.get("hint") else []}


def _told(result: Json, whose: str) -> list[str]:
    """Format the answer for people. whose: the log is a run's of ours, another program's, or it does not show."""
    lines = [f"{result['cause']} ({result['confidence']:.0%})" if result["cause"] != "unknown" else "unknown"]
    lines += [
        f"  line {clue['line']}: {clue['text']}" if clue["line"] else f"  {clue['text']}"
        for clue in result["clues"]
        if clue["text"] != result["explanation"]
    ]
    lines += ["", result["explanation"]]
    if result["remedies"]:
        lines += ["", "What to do:"]
    for number, remedy in enumerate(result["remedies"], 1):
        lines.append(f"  {number}. {remedy['what']} ({remedy['standing']})")
        lines += [f"     {said}" for said in elsewhere(remedy["patch"])] if whose != "ours" else []
        lines += [f"     {key}={value}" for key, value in remedy["patch"].items()] if whose != "another's" else []
        lines += [f"     {remedy['command']}"] if remedy["command"] else []
    if whose != "another's" and any(remedy["patch"] for remedy in result["remedies"]):
        lines.append("  (KEY=VALUE are settings of `holdfast train CONFIG KEY=VALUE`)")
    if others := [also for also in result["also"] if also["confidence"] >= _WORTH_TELLING]:
        could = "It could also be" if result["cause"] != "unknown" else "If something failed, it could be"
        lines += ["", f"{could}: " + ", ".join(f"{also['cause']} ({also['confidence']:.0%})" for also in others)]
    for attempt in result.get("attempts", []):
        lines.append(f"  attempt {attempt['attempt']} {attempt['ending']}: {attempt['cause']} ({attempt['confidence']:.0%})")
    lines += ["", *(f"More: holdfast explain {card}" for card in result["cards"][:1])]
    return lines
