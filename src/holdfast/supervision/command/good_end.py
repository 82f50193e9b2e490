"""Whether an exit code of 0 was the end of a command's training. Changes nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from holdfast.base.files import read_json
from holdfast.base.safe_open import open_regular
from holdfast.base.units import counted
from holdfast.callback.account import step_counted
from holdfast.diagnosis.logs.counters import Counter
from holdfast.diagnosis.logs.curve import points
from holdfast.diagnosis.logs.file import read_log
from holdfast.diagnosis.logs.frames import tracebacks
from holdfast.diagnosis.logs.text import Line, clean_lines
from holdfast.processes.attempt import Attempt
from holdfast.run.types import Ending
from holdfast.supervision.command.signs import ProgressSigns
from holdfast.supervision.evidence import last_text

_HEAD = "Traceback (most recent call last)"
_LAST = 3  # losses at the end of a log that are looked at
_LONGEST = 200  # characters of an exception that are told
_EARLY_S = 60.0  # a command that is gone so soon, and left something running, has gone to the background


def cut_short(attempt: Attempt, ending: Ending) -> str:
    """Return why an exit code of 0 did not end the training, as the callback tells; empty where it did, or nobody knows."""
    pulse = read_json(attempt.folder / "pulse.json") or {}
    if ending.kind != "finished" or not pulse or pulse.get("phase") in ("done", "stopped") or pulse.get("aside"):
        return ""
    newest = step_counted(attempt.folder)  # the last pulse may have met a full disk
    step = pulse.get("step") if newest is None else newest
    if pulse.get("steps") and step == pulse["steps"]:
        return ""
    return f"ended with exit code 0 in the middle of training, after step {step} of {pulse.get('steps')}"


def of_what_fell(ending: Ending, seen: ProgressSigns | None) -> Ending:
    """Return how a command ended whose training went to the background and ended badly at once: as that did, where steps are missing."""
    step, total = (seen.step, seen.total) if seen else (None, None)
    code = ending.facts.get("fell") if ending.kind == "finished" else None
    if not code or (step is not None and (total is None or step >= total)):
        return ending
    return Ending("killed" if code < 0 else "error", code, ending.seconds, ending.facts)


def of_what_was_left(ending: Ending, names: list[str], seen: ProgressSigns | None, idle: bool) -> tuple[str, str]:
    """Return (why the end was none, what is doubtful about it) where the command left processes, which were ended; either may be empty.

    The training itself had gone to the background where what was left printed on, where steps were missing, or where none was ever seen;
    idle: what was left was watched, and neither stepped nor computed.
    """
    step, total = (seen.step, seen.total) if seen else (None, None)
    printed, done = bool(ending.facts.get("left_printed")), step is not None and total is not None and step >= total
    early = step is None and (ending.seconds or 0.0) < _EARLY_S
    doubt = f"{names[0]!r} was left running in the background, and was ended" if printed or not done else ""
    if done or idle or not (printed or early or total is not None):
        return "", doubt
    at = f" at step {step}" + (f" of {total}" if total else "") if step is not None else ""
    why = (
        f"the command returned after {ending.seconds or 0:.1f} s and left {names[0]!r} running in the background, which was ended{at}:"
        " holdfast cannot watch over what leaves it; start it in the foreground (without &, nohup, setsid or an option like --daemon)"
    )
    return why, doubt


def of_last_losses(log: Path) -> str:
    """Return what is to be doubted of a training whose last printed losses are no numbers; empty where one is, or none was printed."""
    last = points(clean_lines(last_text(log)))[-_LAST:]
    if not last or any(math.isfinite(point.loss) for point in last):
        return ""
    return f"the loss that it printed last is {last[-1].loss:g}"


def of_tracebacks(log: Path) -> tuple[str, bool]:
    """Return (that a command printed a traceback and went on, empty where it printed none; whether its last step came after it)."""
    try:
        with open_regular(log) as stream:
            lines = read_log(stream)
    except OSError:
        return "", False
    heads = [at for at, line in enumerate(lines) if _HEAD in line.text]
    said = [at for at in tracebacks(lines).own if heads and at > heads[0]]
    if not heads:
        return "", False
    line = lines[said[0]] if said else lines[heads[0]]
    more = f" (and {counted(len(heads) - 1, 'more traceback')})" if len(heads) > 1 else ""
    before, whole = (_counted(lines[:end]) for end in (heads[-1], len(lines)))
    trained_on = whole.total is not None and (before.step or 0) < whole.total <= (whole.step or 0)
    where = "to its last step" if trained_on else ""
    words = f"it printed a traceback and went on {where}".strip()
    return f"{words}, line {line.number} of its output: {line.text.strip()[:_LONGEST]}{more}", trained_on


def _counted(lines: Sequence[Line]) -> Counter:
    counter = Counter()
    counter.feed("".join(f"{line.text}\n" for line in lines))
    counter.end()
    return counter
