"""Rehearse faults from outside in somebody else's command under `holdfast run`: those that need no code inside it."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.base.child import module_command
from holdfast.base.errors import BLOCKED, Stop
from holdfast.base.files import Json, last_line, read_json, sha256
from holdfast.base.safe_open import open_log
from holdfast.book import cards_of
from holdfast.book.kinds.launcher import LauncherCard, given, with_argument
from holdfast.processes.tree import below
from holdfast.run.fingerprints import WORDS, compare_runs, where
from holdfast.run.folder import RunFolder
from holdfast.supervision.foreign_checkpoints.newest import candidates
from holdfast.supervision.policy.resuming import known_by, training_in

_LOOK_S = 0.02
_LIMIT_S = 3600.0
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
_HANG_S = "5"


@dataclass(frozen=True)
class Blow:
    """One thing done to a command from outside, once `share` of its steps are done."""

    kind: str
    share: float


@dataclass(frozen=True)
class Rough:
    """A rehearsal: its blows, one for each attempt in turn; cause: what is to be found, None: nothing can be known."""

    name: str
    blows: tuple[Blow, ...]
    cause: str | None = None
    quick: bool = False


ROUGH = (
    Rough("killed in the middle", (Blow("kill", 0.5),), quick=True),
    Rough("killed at the start", (Blow("kill", 0.0),)),
    Rough("killed near the end", (Blow("kill", 0.9),)),
    Rough("killed three times", (Blow("kill", 0.3), Blow("kill", 0.5), Blow("kill", 0.8))),
    Rough("asked to stop by somebody", (Blow("term", 0.5),), quick=True),
    Rough("frozen", (Blow("stop", 0.5),), "hang", quick=True),
    Rough("its newest weights torn, then killed", (Blow("tear weights", 0.7),), quick=True),
    Rough("its newest optimizer torn, then killed", (Blow("tear optimizer", 0.7),)),
    Rough("its newest state missing, then killed", (Blow("lose state", 0.7),)),
    Rough("its newest checkpoint half written, then killed", (Blow("half", 0.7),)),
    Rough("one of its processes killed", (Blow("kill worker", 0.5),)),
    Rough("no more memory", (Blow("memory", 0.4),)),
    Rough("no room for a checkpoint", (Blow("file size", 0.4),)),
)


def rehearse_command(
    words: Sequence[str], folder: Path, rough: Sequence[Rough], until: float, options: Sequence[str], tell: Callable[[Json], None]
) -> Iterator[Json]:
    """Yield a row for each rehearsal begun before `until`; the undisturbed run comes first and is no row."""
    card = known_by(words, cards_of("launchers"))
    began = time.monotonic()
    reference = _run(words, card, folder / "00-undisturbed", (), 0, 0.0, options)
    took = time.monotonic() - began
    if reference["summary"].get("status") != "finished":
        why = reference["summary"].get("reason") or reference["summary"].get("error") or "see its log"
        raise Stop(BLOCKED, f"undisturbed, the command did not end well: {why} ({folder}/00-undisturbed.log)", "mend that first")
    steps = reference["summary"].get("steps") or 0
    for number, one in enumerate(rough, 1):
        if time.monotonic() > until:
            return
        began = time.monotonic()
        place = folder / f"{number:02}-{one.name.replace(' ', '-').replace(',', '')}"
        found = _run(words, card, place, one.blows, steps, took, options)
        summary = found["summary"]
        causes = [str(incident["cause"]) for incident in summary.get("incidents") or []]
        weights = found["weights"]
        survived = summary.get("status") == "finished"
        row = {
            "name": one.name,
            "struck": found["struck"] == len(one.blows),
            "survived": survived,
            "identical": weights == reference["weights"] if weights and reference["weights"] else None,
            "attempts": summary.get("attempts"),
            "found_cause": one.cause in causes if one.cause is not None else None,
            "found_remedy": None,
            "cause": next((cause for cause in causes if cause != "unknown"), None),
            "remedy": None,
            "trials": 0,
            "steps_computed_twice": summary.get("steps_computed_twice"),
            "departs": _departs(place / "run", folder / "00-undisturbed/run"),
            "seconds": round(time.monotonic() - began, 1),
        }
        if survived and row["identical"] is not False:
            shutil.rmtree(place, ignore_errors=True)
        tell(row)
        yield row


def _departs(run: Path, undisturbed: Path) -> str | None:
    """Return at which step the training departs from the undisturbed one, and what is another there; None: nowhere, or nobody looked."""
    found = compare_runs(RunFolder(run), RunFolder(undisturbed))
    departs = found["departs"]
    return f"{where(departs)}: {WORDS[departs['what']]}" if departs else None


def _run(
    words: Sequence[str], card: LauncherCard | None, place: Path, blows: Sequence[Blow], steps: int, took: float, options: Sequence[str]
) -> Json:
    """Run `holdfast run` of the command in a folder of its own; return its summary, its weights' hash and the number of blows struck."""
    place.mkdir(parents=True)
    training = training_in(words, card)
    flag = next((name for name in card.checkpoints if given(training.words, name) is not None), None) if card is not None else None
    out = place / "out"
    if flag is not None and card is not None:
        words = training.around(with_argument(training.words, flag, str(out), card.style))
    command = module_command("holdfast", "run", "--run", place / "run", "--json", "--hang-s", _HANG_S, *options, "--", *words)
    with open_log(place.with_suffix(".log"), anew=True) as log:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log)
        try:
            struck = _strike(child, place / "run", out, blows, steps, took)
            told, _ = child.communicate(timeout=_LIMIT_S)
        except BaseException:
            child.send_signal(signal.SIGTERM)
            child.communicate()
            raise
    try:
        summary: Json = json.loads(told)
    except json.JSONDecodeError:
        summary = {}
    return {"summary": summary, "weights": _weights(out) if flag is not None else "", "struck": struck}


def _weights(out: Path) -> str:
    """Return the hashes of the newest checkpoint's weights; empty where there is none."""
    for _, newest in candidates(out, "trainer"):
        return " ".join(sha256(file) for kind in _WEIGHTS for file in sorted(newest.glob(kind)))
    return ""


def _strike(child: subprocess.Popen[bytes], run: Path, out: Path, blows: Sequence[Blow], steps: int, took: float) -> int:
    """Carry out each blow in its attempt once that has come far enough; return how many were struck."""
    struck = 0
    began = time.monotonic()
    for number, blow in enumerate(blows, 1):
        while child.poll() is None:
            pid = ((read_json(run / f"attempts/{number:03}/rank0.json") or {}).get("identity") or {}).get("pid")
            row = last_line(run / "progress.jsonl") or {}
            step = row.get("step", 0) if row.get("attempt") == number else 0
            far = step >= max(1, blow.share * steps) if steps and blow.share else time.monotonic() - began > blow.share * took
            if pid is not None and far and _strike_one(blow.kind, int(pid), out):
                struck += 1
                break
            time.sleep(_LOOK_S)
    return struck


def _strike_one(kind: str, pid: int, out: Path) -> bool:
    """True if the blow could be struck: there has to be a checkpoint to tear, or a worker to kill."""
    newest = [entry for _, entry in candidates(out, "trainer") if (entry / "trainer_state.json").exists()]
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):
        if kind == "memory":
            used = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()
            resource.prlimit(pid, resource.RLIMIT_AS, (used, used))
            return True
        if kind == "file size":
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (256, 256))
            return True
        if kind == "kill worker":
            workers = below(pid)
            os.kill(workers[-1] if workers else pid, signal.SIGKILL)
            return True
        if kind in ("tear weights", "tear optimizer", "lose state", "half"):
            if not newest:
                return False
            os.kill(pid, signal.SIGSTOP)  # so that nothing newer is written meanwhile
            _damage(kind, newest[0])
            os.killpg(pid, signal.SIGKILL)
            return True
        if kind == "stop":
            os.killpg(pid, signal.SIGSTOP)
        else:
            os.killpg(pid, signal.SIGTERM if kind == "term" else signal.SIGKILL)
        return True
    return False


def _damage(kind: str, checkpoint: Path) -> None:
    if kind == "lose state":
        (checkpoint / "trainer_state.json").unlink()
    elif kind == "half":
        for file in sorted(checkpoint.iterdir())[1:]:
            if file.is_file():
                file.unlink()
    else:
        names = _WEIGHTS if kind == "tear weights" else ("optimizer.pt", "*.safetensors")
        file = next(file for name in names for file in sorted(checkpoint.glob(name)))
        os.truncate(file, file.stat().st_size // 2)
