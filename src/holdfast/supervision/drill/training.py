"""Rehearse faults in runs of holdfast's own: each one a short run of a config in a folder of its own."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from holdfast.base.child import module_command
from holdfast.base.errors import BLOCKED, Stop
from holdfast.base.files import Json, write_bytes
from holdfast.base.safe_open import open_log
from holdfast.supervision.drill.rehearsals import SAMPLE, STEPS, Rehearsal

_SHORT = (f"train.steps={STEPS}", "save.every=2", "run.hang_s=60", "evaluate.generate=0")
_ROWS, _HELD_OUT, _SEED = 48, 8, 7
_LIMIT_S = 1800.0  # of one rehearsal
_NO_REMEDY = ("none", "resume", "wait")
_FAULTY_LINE = 7


@dataclass(frozen=True)
class RehearsalPlace:
    """Where runs are rehearsed: a config and what is changed of it, the folder for all of it, and a row to break."""

    config: Path
    changes: tuple[str, ...]
    folder: Path
    sample: str


def own_config(folder: Path) -> RehearsalPlace:
    """Write the config of the embedded model on generated rows, for users who give none; return its place."""
    rows, held_out = folder / "rows.jsonl", folder / "held-out.jsonl"
    command = ["data", "make", "--rows", str(_ROWS), "--held-out", str(held_out), "--out", str(rows), "--seed", str(_SEED)]
    done = subprocess.run(module_command("holdfast", *command), capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise Stop(
            BLOCKED, f"the rows of the drill could not be made: {done.stderr.strip()}", "give a config of yours: holdfast drill CONFIG"
        )
    tree: Json = {
        "model": "tiny",
        "data": {"files": str(rows), "held_out_files": str(held_out)},
        "adapter": {"r": 4, "dropout": 0.1},
        "train": {"steps": STEPS, "effective_batch": 8, "lr": 1e-3, "max_tokens": 96, "threads": 1},
        "evaluate": {"every": 5},
    }
    config = folder / "drill.yaml"
    write_bytes(config, yaml.safe_dump(tree, sort_keys=False).encode())
    return RehearsalPlace(config, _SHORT, folder, f"{rows.name}:{_FAULTY_LINE}")


def of_config(config: Path, files: Sequence[str], folder: Path, holds_out: bool) -> RehearsalPlace:
    """Make a place to rehearse a config of the user, shortened; files: those of its data. holds_out: whether it has rows to evaluate on."""
    changes = (*_SHORT, "evaluate.every=5") if holds_out else _SHORT
    return RehearsalPlace(config, changes, folder, f"{Path(files[0]).name}:{_FAULTY_LINE}" if files else SAMPLE)


def rehearse(
    place: RehearsalPlace, rehearsals: Sequence[Rehearsal], until: float, stop: Callable[[], bool], tell: Callable[[Json], None]
) -> Iterator[Json]:
    """Yield a row for each rehearsal begun before `until` (monotonic clock); the undisturbed run comes first and is no row."""
    reference = _run(place, Rehearsal("undisturbed", ()), 0)
    if reference.get("status") != "finished":
        why = reference.get("error") or reference.get("reason") or f"see {place.folder}/00-undisturbed.log"
        raise Stop(BLOCKED, f"the undisturbed run did not finish: {why}", "mend that first: holdfast doctor, holdfast train")
    for number, rehearsal in enumerate(rehearsals, 1):
        if time.monotonic() > until or stop():
            return
        began = time.monotonic()
        summary = _run(place, rehearsal, number)
        row = judged(rehearsal, summary, reference) | {"seconds": round(time.monotonic() - began, 1)}
        row["struck"] = struck(_folder(place, rehearsal, number), rehearsal.faults)
        row["trials"] = len(list((_folder(place, rehearsal, number) / "trials").glob("*")))
        if row["survived"] and row["struck"] and row["identical"] is not False:
            shutil.rmtree(_folder(place, rehearsal, number), ignore_errors=True)
        else:
            row["run"] = str(_folder(place, rehearsal, number))
        tell(row)
        yield row


def struck(run: Path, faults: Sequence[Json]) -> bool:
    """Return whether each fault came: the process it comes in says so in its log first. A row may be held out, a moment never reached."""
    said = {line.strip() for log in run.rglob("*.log") for line in log.read_text(encoding="utf-8", errors="replace").splitlines()}
    return all((fault.get("message") or f"fault: {fault.get('name', 'fault')}").strip() in said for fault in faults)


def judged(rehearsal: Rehearsal, summary: Json, reference: Json) -> Json:
    """Return what came of a rehearsal. identical, found_cause, found_remedy: null where nothing of the kind was to be expected."""
    incidents = summary.get("incidents") or []
    causes = [str(one["cause"]) for one in incidents]
    remedies = [str(one["remedy"]) for one in incidents if one["remedy"] not in _NO_REMEDY]
    survived = summary.get("status") == "finished"
    same = summary.get("artifact_sha256") == reference.get("artifact_sha256") and survived
    return {
        "name": rehearsal.name,
        "survived": survived,
        "identical": same if rehearsal.same else None,
        "attempts": summary.get("attempts"),
        "found_cause": rehearsal.cause in causes if rehearsal.cause is not None else None,
        "found_remedy": bool(remedies) if rehearsal.remedy else None,
        "cause": next((cause for cause in causes if cause != "unknown"), None),
        "remedy": remedies[0] if remedies else None,
    }


def _folder(place: RehearsalPlace, rehearsal: Rehearsal, number: int) -> Path:
    return place.folder / f"{number:02}-{rehearsal.name.replace(' ', '-').replace(',', '')}"[:100]


def _run(place: RehearsalPlace, rehearsal: Rehearsal, number: int) -> Json:
    """Run the training with these faults; return what `train --json` says of it."""
    run = _folder(place, rehearsal, number)
    command = ["train", str(place.config), *place.changes, *rehearsal.settings, "--run", str(run), "--json"]
    if rehearsal.faults:
        faults = json.loads(json.dumps(list(rehearsal.faults)).replace(json.dumps(SAMPLE), json.dumps(place.sample)))
        write_bytes(run.with_suffix(".yaml"), yaml.safe_dump({"faults": faults}, sort_keys=False).encode())
        command += ["--faults", str(run.with_suffix(".yaml"))]
    with open_log(run.with_suffix(".log"), anew=True) as log:
        child = subprocess.Popen(module_command("holdfast", *command), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log)
        try:
            out, _ = child.communicate(timeout=_LIMIT_S)
        except (subprocess.TimeoutExpired, KeyboardInterrupt) as ended:
            child.terminate()
            child.wait()
            if isinstance(ended, KeyboardInterrupt):
                raise
            return {"status": "late"}
    try:
        found: Json = json.loads(out)
    except json.JSONDecodeError:
        return {"status": "failed"}
    return found
