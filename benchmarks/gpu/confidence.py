"""Ask a real card whatever holdfast claims of one: stages that resume, answers judged by what was expected of them beforehand.

    python benchmarks/gpu/confidence.py --out FOLDER --minutes 9 [--also FOLDER] [--carried FOLDER] [--only STAGE ...] [--again] [--smoke]
    python benchmarks/gpu/confidence.py --list
    python benchmarks/gpu/confidence.py --table RESULTS.jsonl ... > benchmarks/results/gpu.md

The stages, their questions and the answer expected of each stand in questions.yaml; what a stage does is stages/NAME.py. Each runs in a
child with a limit of its own: one that crashes or takes too long is a result, and the next goes on. FOLDER/results.jsonl and
FOLDER/table.md grow stage by stage; what is there is not asked again. A stage that does not fit into the minutes left is left for the
next call. --also: results, logs and reports are copied there after every stage. --smoke: small models, on the simulated card where one
can be built; it shows that the program works, and says nothing of a card. Needs no network.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent.resolve()
ROOT = HERE.parents[1]
QUESTIONS = HERE / "questions.yaml"
_SET_CHILD_SUBREAPER = 36
_ENDED = ("done", "crashed", "too long")  # such a stage is not run again by itself
_KEPT = ("logs", "kept", "answers")  # folders that go home
_SMALL_BYTES = 4 << 20  # of a file that is copied with the results

Json = dict[str, Any]


def stages() -> list[Json]:
    """[{stage, minutes, about, questions: [{id, asks, expects, rule, claimed}]}] in the order they are run in."""
    found: list[Json] = yaml.safe_load(QUESTIONS.read_text(encoding="utf-8"))
    return found


def judge(question: Json, answer: Json | None) -> str:
    """passed, failed or recorded; absent where the stage says why there is no answer, unanswered where it did not come to it."""
    if answer is None:
        return "unanswered"
    if answer["value"] is None:
        return "absent"
    rule, value = question.get("rule"), answer["value"]
    if not rule:
        return "recorded"
    holds = {
        "equals": lambda bound: value == bound,
        "at_most": lambda bound: value <= bound,
        "at_least": lambda bound: value >= bound,
        "one_of": lambda bound: value in bound,
        "within": lambda bound: bound[0] <= value <= bound[1],
    }
    return "passed" if all(holds[name](bound) for name, bound in rule.items()) else "failed"


def main() -> int:
    given = _arguments()
    if given.table:
        print(table(stages(), _known(given.table)), end="")
        return 0
    if given.list:
        print(_listing(stages()))
        return 0
    if given.out is None:
        raise SystemExit("give --out FOLDER")
    given.out = given.out.resolve()
    (given.out / "logs").mkdir(parents=True, exist_ok=True)
    _set_path(given.carried)
    os.environ["HOLDFAST_CACHE"] = str(given.out / "cache")  # what a rehearsal makes believe is not to be kept for other runs
    if given.stage:
        from stages.common import Place

        importlib.import_module(f"stages.{given.stage}").run(Place(given.out, given.stage, given.smoke))
        return 0
    return _run_all(given)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="for models, runs and results; kept between calls")
    parser.add_argument("--also", type=Path, metavar="FOLDER", help="where results, logs and reports are copied to after every stage")
    parser.add_argument(
        "--carried", type=Path, metavar="FOLDER", default=ROOT / "carried", help="wheels unpacked by `pip install --target`"
    )
    parser.add_argument("--minutes", type=float, default=9.0, help="how long this call may take")
    parser.add_argument("--only", nargs="+", default=[], metavar="STAGE", help="these stages alone")
    parser.add_argument("--again", action="store_true", help="run stages again that have a result")
    parser.add_argument("--smoke", action="store_true", help="show that every stage works, without a card")
    parser.add_argument("--table", nargs="+", type=Path, metavar="FILE", help="only print the table of these results.jsonl; the last wins")
    parser.add_argument("--list", action="store_true", help="the stages, their questions and what is expected")
    parser.add_argument("--stage", help=argparse.SUPPRESS)  # the child's part
    return parser.parse_args()


def _known(files: list[Path]) -> dict[str, Json]:
    """The newest answers to each stage's questions: what one call did not come to, an earlier one may have."""
    found: dict[str, Json] = {}
    for entry in (entry for file in files for entry in _lines(file)):
        before = {one["id"]: one for one in found.get(entry["stage"], {}).get("answers", [])}
        answers = [one if one["verdict"] != "unanswered" else before.get(one["id"], one) for one in entry["answers"]]
        found[entry["stage"]] = entry | {"answers": answers}
    return found


def _set_path(carried: Path) -> None:
    """What this process and its children import from: the sources, the tests' parts, and what was carried along, last."""
    ours = [ROOT / "src", ROOT / "tests", ROOT / "scripts", ROOT / "benchmarks" / "engine", HERE]
    version = carried / f"cp{sys.version_info.major}{sys.version_info.minor}"
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    paths = [str(path) for path in (*ours, version if version.is_dir() else carried) if path.is_dir()]
    os.environ["PYTHONPATH"] = os.pathsep.join([*paths, *(path for path in known if path and path not in paths)])
    sys.path += [path for path in paths if path not in sys.path]


def _run_all(given: argparse.Namespace) -> int:
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # what a stage leaves behind can be found, and ended
    deadline = time.monotonic() + 60 * given.minutes
    results = given.out / "results.jsonl"
    known = {entry["stage"]: entry for entry in _lines(results)}
    chosen = [stage for stage in stages() if not given.only or stage["stage"] in given.only]
    unknown = set(given.only) - {stage["stage"] for stage in chosen}
    if unknown:
        raise SystemExit(f"no such stage: {', '.join(sorted(unknown))}; see --list")
    for stage in chosen:
        name, left = stage["stage"], deadline - time.monotonic()
        if known.get(name, {}).get("status") in _ENDED and not given.again:
            continue
        if 60 * stage["minutes"] > left and not given.smoke:
            print(f"{name}: left for the next call ({left:.0f} s of this one are left)", flush=True)
            continue
        entry = _run_one(given, stage, 900 if given.smoke else 60 * stage["minutes"])
        known[name] = entry
        with results.open("a", encoding="utf-8") as handle:
            handle.write(json.dumps(entry) + "\n")
        (given.out / "table.md").write_text(table(stages(), known), encoding="utf-8")
        _copy(given.out, given.also)
    _copy(given.out, given.also)
    print(table(stages(), known))
    broken = [name for name, entry in known.items() if entry["status"] != "done"]
    return 1 if broken and given.smoke else 0


def _run_one(given: argparse.Namespace, stage: Json, limit_s: float) -> Json:
    """Run a stage's child to its end or its limit, and read what it answered."""
    name = stage["stage"]
    print(f"{name}: at most {limit_s:.0f} s", flush=True)
    answers = given.out / "answers" / f"{name}.jsonl"
    answers.parent.mkdir(exist_ok=True)
    answers.unlink(missing_ok=True)
    command = [sys.executable, str(HERE / "confidence.py"), "--stage", name, "--out", str(given.out), "--carried", str(given.carried)]
    began, status = time.monotonic(), "done"
    with (given.out / "logs" / f"{name}.log").open("wb") as log:
        environment = os.environ | _card(given.smoke)
        child = subprocess.Popen(
            [*command, *(["--smoke"] if given.smoke else [])], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
        )
        try:
            status = "done" if child.wait(limit_s) == 0 else "crashed"
        except subprocess.TimeoutExpired:
            status = "too long"
    _end_descendants()
    told = {entry["question"]: entry for entry in _lines(answers)}
    found = [_judged(question, told.get(question["id"])) for question in stage["questions"]]
    for one in found:
        print(f"  {one['verdict']:<10} {one['id']}: {one['value']} (expected: {one['expects']}) {one['note']}", flush=True)
    if status != "done":
        print(f"  {status}: see logs/{name}.log", flush=True)
    seconds = round(time.monotonic() - began, 1)
    return {"stage": name, "status": status, "seconds": seconds, "smoke": given.smoke, "answers": found}


def _judged(question: Json, answer: Json | None) -> Json:
    facts = {"value": (answer or {}).get("value"), "note": (answer or {}).get("note", "")}
    return {"id": question["id"], "expects": question["expects"], "verdict": judge(question, answer), **facts}


def _card(smoke: bool) -> dict[str, str]:
    """For a rehearsal the simulated card, in every process of the stage; nothing where it cannot be built or the machine has a real one."""
    if not smoke:
        return {}
    from stages.common import simulated

    return simulated(everywhere=True)


def _end_descendants() -> None:
    """End whatever a stage started and left: trainers, shims, standbys."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        for child in Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split():
            os.kill(int(child), signal.SIGKILL)
        time.sleep(0.1)


def table(asked: list[Json], known: dict[str, Json]) -> str:
    """Everything that was asked, as Markdown: question, what was expected, what was seen."""
    smoke = any(entry.get("smoke") for entry in known.values())
    name = next((one["value"] for one in known.get("facts", {}).get("answers", []) if one["id"] == "card"), None)
    lines = ["# Asked of " + ("no card: a rehearsal" if smoke else str(name or "a card")), ""]
    lines += ["| stage | question | expected | seen | |", "|---|---|---|---|---|"]
    for stage in asked:
        entry = known.get(stage["stage"])
        if entry is None:
            lines.append(f"| {stage['stage']} | {stage['about']} | | not run yet | |")
            continue
        ended = f"{entry['status']}, {entry['seconds']:.0f} s"
        lines.append(f"| **{stage['stage']}** | {stage['about']} | | {ended} | |")
        asks = {question["id"]: question["asks"] for question in stage["questions"]}
        for one in entry["answers"]:
            seen = f"{_shown(one['value'])} {one['note']}".strip().replace("|", "/").replace("\n", " ")
            lines.append(f"| {one['id']} | {asks.get(one['id'], '')} | {one['expects']} | {seen} | {one['verdict']} |")
    verdicts = [one["verdict"] for entry in known.values() for one in entry["answers"]]
    counted = ", ".join(f"{verdicts.count(kind)} {kind}" for kind in ("passed", "failed", "recorded", "absent", "unanswered"))
    return "\n".join([*lines, "", f"{counted}.", ""])


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return json.dumps(value) if isinstance(value, (dict, list, bool)) else str(value if value is not None else "-")


def _listing(asked: list[Json]) -> str:
    lines: list[str] = []
    for stage in asked:
        lines.append(f"{stage['stage']} ({stage['minutes']} min): {stage['about']}")
        lines += [f"    {one['id']}: {one['asks']} -> {one['expects']}" for one in stage["questions"]]
    return "\n".join([*lines, f"{sum(stage['minutes'] for stage in asked):.0f} minutes at most in all"])


def _copy(out: Path, also: Path | None) -> None:
    """Copy what is small and worth keeping: results, the table, logs, reports, profiles."""
    if also is None:
        return
    for file in (*out.glob("*.jsonl"), *out.glob("*.md"), *(one for name in _KEPT for one in out.glob(f"{name}/*"))):
        if file.is_file() and file.stat().st_size <= _SMALL_BYTES:
            place = also / file.relative_to(out)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, place)


def _lines(file: Path) -> list[Json]:
    """The whole lines of a journal; the last may be torn."""
    return [json.loads(line) for line in file.read_text().splitlines() if line.endswith("}")] if file.exists() else []


if __name__ == "__main__":
    raise SystemExit(main())
