"""`holdfast doctor [CONFIG [key=value ...]]`: look at the machine before a run: what would fail, and what fixes it. Changes nothing."""

from __future__ import annotations

import argparse
import os
import shlex
from dataclasses import asdict, replace
from pathlib import Path

from holdfast.base.errors import BLOCKED, DONE, USAGE, Stop
from holdfast.base.files import Json
from holdfast.base.versions import __version__
from holdfast.book.image import image_for
from holdfast.checkup.checkup import DoctorView
from holdfast.checkup.contrast import contrast, only_in, rates
from holdfast.checkup.environment import as_file, profile
from holdfast.checkup.examine import ORDER, examine, verdict
from holdfast.checkup.machine_report import machine_report
from holdfast.checkup.recorded_machine import recorded
from holdfast.config.config import Config
from holdfast.config.load import load_config
from holdfast.machine.machine_file import read
from holdfast.machine.probes import read_probes
from holdfast.machine.read import read_machine
from holdfast.privacy.person import person
from holdfast.privacy.scrub import Scrubber
from holdfast.report.pages import write_in_folder
from holdfast.report.plan.paths import paths
from holdfast.run.types import Finding
from holdfast.supervision.preparation.types import preparation_of

EXAMPLE = "holdfast doctor my-run.yaml train.max_tokens=2048 --save-env machine.env"
WORK = "looking at the machine"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", nargs="?", type=Path, metavar="CONFIG", help="a run's YAML file, to judge the machine for that run")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="change single keys, as in train")
    parser.add_argument("--machine", type=Path, metavar="FILE", help="judge a recorded machine; this one is not examined")
    parser.add_argument("--no-probe", action="store_true", help="start no child that imports torch, and calculate nothing")
    parser.add_argument(
        "--save-env", type=Path, metavar="FILE", help="write the variables that suit this machine, with the reason for each"
    )
    parser.add_argument(
        "--image", action="store_true", help="name the official container image that fits card and driver, and nothing else"
    )
    parser.add_argument(
        "--compare", nargs=2, type=Path, metavar=("A.json", "B.json"), help="say what differs between two recorded machines"
    )
    parser.add_argument(
        "--report",
        nargs="?",
        const=Path("doctor-report.md"),
        type=Path,
        metavar="FILE",
        help="write facts, findings, probes and the paths a run takes here into one file to send, without names and secrets",
    )
    parser.add_argument("--json", action="store_true", help="machine, findings, env, profile and verdict as JSON")


def run(arguments: argparse.Namespace) -> tuple[int, Json]:
    """Exit codes: 0 ready or risky, 1 when something blocks."""
    checkup = DoctorView(to_stderr=arguments.json)
    if arguments.compare:
        first, second = arguments.compare
        return _compare(first, second, checkup)
    config = _config(arguments)
    if arguments.machine:
        facts = recorded(arguments.machine)
    else:
        facts = _here(_run_folder(config, arguments.config), not (arguments.no_probe or arguments.image))
    if arguments.image:
        image = image_for(read(facts))
        checkup.image(image)
        return DONE, asdict(image)
    findings, advised = judge(facts, config, elsewhere=bool(arguments.machine)), profile(facts)
    judged = verdict(findings)
    if not arguments.json:
        checkup.machine(facts)
        checkup.findings(findings)
        checkup.environment(advised, read(facts).env)
        checkup.verdict(judged, _next(arguments, judged))
    if arguments.save_env:
        text = as_file(advised, f"environment for {_named(facts)}, by holdfast doctor")
        write_in_folder(arguments.save_env, text, "choose another place with --save-env FILE")
        checkup.saved(arguments.save_env)
    answer = {
        "machine": facts,
        "findings": [asdict(finding) for finding in findings],
        "env": {advice.name: advice.value for advice in advised},
        "profile": [asdict(advice) for advice in advised],
        "verdict": judged,
    }
    if arguments.report:
        checkup.reported(arguments.report, _report(arguments.report, answer))
    return BLOCKED if judged == "blocked" else DONE, answer


def _config(arguments: argparse.Namespace) -> Config | None:
    """Load the run's config with its overrides; None without one. Raises Stop(2)."""
    file: Path | None = arguments.config
    if file is not None and "=" in file.name and not file.exists():
        raise Stop(USAGE, f"{file} is a setting, and there is no config to change", f"holdfast doctor CONFIG {file}")
    return load_config(file, arguments.overrides) if file else None


def judge(facts: Json, config: Config | None, elsewhere: bool) -> list[Finding]:
    """Judge the machine, and with a config the run on it. elsewhere: the machine is another one, and files missing here may be there.

    What the run needs of it is then unknown where the model cannot be read here: no verdict of ready without it.
    """
    if config is None:
        return examine(facts)
    seen = preparation_of(config).foresee(config, facts)
    of_files = [_milder(found) if elsewhere else found for found in seen.findings]
    return sorted([*examine(facts, seen.config, seen.plan), *of_files], key=lambda found: ORDER[found.severity])


def _next(arguments: argparse.Namespace, judged: str) -> str:
    """Return the command after this verdict: the same again once what blocks is mended, else the run; empty for a machine elsewhere."""
    if arguments.machine:
        return ""
    given = [str(arguments.config), *arguments.overrides] if arguments.config else []
    if judged == "blocked":
        return shlex.join(["holdfast", "doctor", *given])
    return shlex.join(["holdfast", "train", *given]) if given else "holdfast init --model M --data rows.jsonl --out my-run.yaml"


def _milder(found: Finding) -> Finding:
    """Lower a finding about files here to what it means on another machine."""
    if found.id != "model-folder":
        return replace(found, severity="info")
    unknown = f"{found.message}: what the run needs of the recorded machine is unknown"
    return replace(found, severity="warn", message=unknown, fix=f"{found.fix}; holdfast plan CONFIG --machine FILE needs config.json alone")


def _here(folder: Path, probe: bool) -> Json:
    facts = read_machine(folder, ask_torch=probe)
    if probe and facts["torch"] and "torch_error" not in facts:
        facts["probes"] = read_probes(facts, folder)
    return facts


def _run_folder(config: Config | None, file: Path | None) -> Path:
    return Path("runs") / (config.run.name or file.stem) if config and file else Path.cwd()


def _named(facts: Json) -> str:
    gpus = facts.get("gpus")
    names = [str(gpu.get("name") or gpu.get("arch")) for gpu in gpus if isinstance(gpu, dict)] if isinstance(gpus, list) else []
    return " and ".join(names) or "a machine without GPU"


def _report(file: Path, answer: Json) -> dict[str, int]:
    """Write the report without the traces of a person; return what was taken out, by kind."""
    text = machine_report(answer, paths(answer["machine"]), __version__)
    scrubber = Scrubber(person([text], os.environ))
    write_in_folder(file, scrubber.text(text), "choose another place with --report FILE")
    return {kind: count for kind, count in sorted(scrubber.taken.items()) if count}


def _compare(first: Path, second: Path, checkup: DoctorView) -> tuple[int, Json]:
    a, b = recorded(first), recorded(second)
    found_a, found_b = examine(a), examine(b)
    answer = {
        "differences": contrast(a, b),
        "rates": rates(a, b),
        "findings": {
            "only_a": [asdict(finding) for finding in only_in(found_a, found_b)],
            "only_b": [asdict(finding) for finding in only_in(found_b, found_a)],
        },
        "verdicts": {"a": verdict(found_a), "b": verdict(found_b)},
    }
    checkup.contrast(answer)
    return DONE, answer
