"""What is told of a command that has come to its end: summary, post-mortem, the last word."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from holdfast.base.files import Json, read_json, write_json
from holdfast.base.units import listed
from holdfast.book import cards_of
from holdfast.book.kinds.failure import Failure
from holdfast.diagnosis.explain import answer
from holdfast.diagnosis.remedy_fitting import elsewhere, fitted
from holdfast.machine.gpu_memory import in_use
from holdfast.report.summarise import of_progress, summarise
from holdfast.report.words import computed_again, shown
from holdfast.run.command import Command
from holdfast.run.fingerprints import compare_runs, in_words
from holdfast.run.folder import RunFolder
from holdfast.supervision.command.command_run import CommandRun
from holdfast.supervision.command.good_end import of_last_losses, of_tracebacks
from holdfast.supervision.command.saved import nothing_saved, rerun, wrote_nothing
from holdfast.supervision.evidence import tail
from holdfast.supervision.records import journals_of
from holdfast.supervision.supervise import RunResult

_STOPPED_EARLY = re.compile(r"\bearly[ _-]?stopp(?:ing|ed)\b", re.IGNORECASE)
_LAST_LINES, _REMEDIES, _ROWS = 12, 3, 16
_NONE_SEEN = "no step of its newest start was seen"
UNSEEN = "no progress was seen, so whether it did its work is not known"


def compare(run: RunFolder, beside: RunFolder) -> Json:
    """Return how the steps of this run compare with those of another: {with, steps, weights_looked_at, looked_at, departs, says}."""
    found = compare_runs(run, beside)
    return {"with": str(beside.path), **found, "says": in_words(found, shown(beside.path))}


def after_words(after: Json | None) -> str:
    """Say where the result of a complete training lies, and what failed after its last step; empty where nothing did."""
    if after is None:
        return ""
    cause = f" ({after['cause']})" if after["cause"] not in ("unknown", "hang") else ""
    evidence = f": {after['evidence']}" if after["evidence"] not in (None, after["ending"]) else ""
    ending = f"{'was ' if after['ending'].startswith('killed') else ''}{after['ending']}{cause}{evidence}"
    return f"the training is complete, its result is {after['result']}; behind its last step the command {ending}"


def well(summary: Json, where: bool = True) -> str:
    """Return the last word on a command that ended well, with what is not known of it. where: whether it is known where it saves."""
    reached, total = summary["steps"], summary["total_steps"]
    short = bool(summary["incomplete"] and reached and total and reached < total)
    steps = f"{reached:,} steps" if reached else "no step was seen"
    if reached and summary.get("steps_exact") is False:
        steps = f"at least {steps}"
    if not reached and summary.get("epochs"):
        begun, announced = summary["epochs"]
        steps = f"epoch {begun:,}" + (f" of {announced:,}" if announced else "") + ", no step was seen"
    if short:  # it may have stopped early, or a pipe hid its exit code
        steps = f"{reached:,} of the {total:,} steps it spoke of"
    if summary.get("trainings"):
        steps += f" in the longest of its {summary['trainings']} trainings"
    again = f", {computed_again(summary)} computed twice" if summary["steps_computed_twice"] else ""
    if summary["steps_dropped"]:
        again += f", {summary['steps_dropped']} without an update (their gradients were not finite)"
    attempts = f"{summary['attempts']} attempts" if summary["attempts"] > 1 else "1 attempt"
    share = f", {summary['goodput']:.0%} of the time in steps that count" if summary["goodput"] is not None else ""
    told = f"{steps}{again}, {attempts}{share}"
    if summary["after_training"]:
        return f"{summary['doubt']} ({told})"
    if summary["doubt"] and not short:
        return f"ended with exit code 0, but {summary['doubt']} ({told})"
    more = f"; {summary['doubt']}" if "; " in (summary["doubt"] or "") else ""
    if short:
        return f"ended with exit code 0 after {told}{more}"
    lived = f"; {summary['lived_through']}" if summary.get("lived_through") else ""
    return f"ended well: {told}{lived}" + (
        "" if where else "; where it saves is not known (--checkpoints DIR tells), so no checkpoint was looked at"
    )


def write_summary(
    user: CommandRun, status: str, reason: str, code: int | None, doubt: str, after: Json | None, compared: Json | None
) -> Json:
    run, command = user.run, user.command
    told = journals_of(run, list(run.progress()))
    known = of_progress(told, {"argv": list(command.argv), "launcher": command.launcher}, code)
    newest = run.attempt(max(told.launches)) if told.launches else None
    pulse = (read_json(newest / "pulse.json") if newest else None) or {}
    over = pulse.get("phase") == "done"
    known |= {"trainings": pulse["training"]} if pulse.get("training", 1) > 1 else {}
    if over:
        known["incomplete"] = False  # stopped early, by its own rule
    known |= {"epochs": list(user.seen.epochs)} if user.seen and user.seen.epochs and not known["steps"] else {}
    lost = nothing_saved(run, command) if status != "finished" else wrote_nothing(run, command, known["steps"] or 0)
    known |= {"after_training": after, "nothing_saved": lost or None}
    doubts = [after_words(after)] if after else []
    doubts += [f"its newest checkpoint is not whole: {doubt}"] if doubt else []
    if status == "finished":
        short = _short(known) if known["incomplete"] else ""
        epochs = "" if over or after else _epochs_missing(user, known)
        known["incomplete"] = True if epochs else None if short == _NONE_SEEN else known["incomplete"]  # it may have had none left to do
        log = newest / "output.log" if newest else None
        printed, trained_on = of_tracebacks(log) if log and not after else ("", False)
        known |= {"lived_through": printed} if trained_on else {}
        seen = known["steps"] or known.get("epochs")
        doubts += [short, epochs, _stopped_early(log) if log and (short or epochs) else "", "" if seen else UNSEEN, lost]
        doubts += [of_last_losses(log) if log else "", "" if trained_on else printed]
        rival = _rival(user)
        if rival and not over and not known["incomplete"]:
            known["incomplete"] = None  # by the other count it may be
        doubts += [user.left, rival]
    known["doubts"] = [*filter(None, doubts), *known["doubts"]]
    summary = summarise(status, reason, told, known) | ({"compared": compared} if compared is not None else {})
    run.flush_all(status)
    write_json(run.summary_file, summary)
    return summary


def _short(known: Json) -> str:
    """Say after which of its steps a command ended that did not come to its last one; where an earlier start had, the newest's."""
    total, newest = known["total_steps"], max(known["reached"], default=0)
    if known["steps"] < total:
        return f"it ended after {known['steps']:,} of the {total:,} steps it spoke of"
    stands = max(known["reached"].get(newest, 0), known["began"].get(newest) or 0)
    return f"its newest start ended after {stands:,} of the {total:,} steps it spoke of" if stands else _NONE_SEEN


def _stopped_early(log: Path) -> str:
    """Say that a command says itself, among its last lines, that it stopped early; empty where it does not."""
    said = [line.strip() for line in tail(log)[-_LAST_LINES:] if _STOPPED_EARLY.search(line)]
    return f"it says that it stopped early: {said[-1][:200]}" if said else ""


def _rival(user: CommandRun) -> str:
    """Say that the command printed another count than the one that was taken for its steps; empty where a better source told them."""
    if user.seen is None or user.seen.source != "output" or not user.seen.rival or user.command.progress:
        return ""
    return f"it printed another count of steps, {user.seen.rival}, which was not taken for its own (--progress tells which is)"


def _epochs_missing(user: CommandRun, known: Json) -> str:
    """Say that the command ended before the last epoch it announced; empty where its Trainer's own count, or a user's, says it did not."""
    begun, total = (user.seen and user.seen.epochs) or (0, None)
    if total is None or begun >= total or (known["incomplete"] is False and known["progress_from"] != "output"):
        return ""
    return f"it ended in epoch {begun} of the {total} epochs it spoke of"


def post_mortem(run: RunFolder, command: Command, outcome: RunResult, summary: Json) -> list[str]:
    """Return what is known of a command that was given up, as lines of Markdown: cause, what helps, what is left, the last words."""
    cards: dict[str, Failure] = cards_of("failures")
    failure_report, found = outcome.failure_report, outcome.diagnosis
    lines = [f"# {shlex.join(command.argv)[:200]}", ""]
    lines += [f"attempts: {summary['attempts']}; steps seen: {summary['steps'] if summary['steps'] is not None else 'none'}"]
    if found is not None and (found.explanation or found.cause not in ("unknown", "healthy")):
        told = answer(found, cards)
        text = "\n".join(failure_report.lines) if failure_report else ""
        name = "" if found.cause == "unknown" else f"{found.cause} ({found.confidence:.0%}): "
        lines.append(f"cause: {name}{told['explanation']}")
        known = (
            []
            if found.explanation and not found.cards
            else [one for one in fitted(told["remedies"], text, of_holdfast=False) if not one["command"].startswith("holdfast")]
        )
        for number, one in enumerate(known[:_REMEDIES], 1):
            said = "; ".join([*elsewhere(one["patch"]), *([one["command"]] if one["command"] else [])])
            lines.append(f"{number}. {one['what']}" + (f": {said}" if said else ""))
    else:
        lines.append("cause: unknown")
    if failure_report is not None:
        if failure_report.samples:
            rows = listed([str(row) for row in failure_report.samples], _ROWS)
            lines.append(f"in flight: step {failure_report.step}, of rows {rows} of its data set (counted from 0)")
        if failure_report.gpu_memory:
            lines.append(f"after its end: {in_use(failure_report.gpu_memory)}")
        lines += [f"kernel: {text}" for text in (failure_report.kernel_messages or ())[-2:]]
        lines += [f"| {line[:300]}" for line in [line for line in failure_report.lines if line.strip()][-_LAST_LINES:]]
        lines.append(f"its output: {run.attempt(failure_report.attempt) / 'output.log'}")
    if aside := summary["checkpoints_set_aside"]:
        lines.append(f"not whole, renamed: {', '.join(aside)}")
    newest = next((event for event in reversed(list(run.events())) if event["event"] == "restored"), None)
    if summary["nothing_saved"]:
        lines.append(summary["nothing_saved"])
    if newest and newest["step"]:
        lines.append(f"newest whole checkpoint that was used: {newest['state']}")
    if command.callback is False and command.launcher is not None:
        lines.append("more would be known with --callback")
    if failure_report is not None and not command.stdin and any("EOFError" in line for line in failure_report.lines):
        lines.append("it asked for input, and its standard input is empty: a file is passed on to it, holdfast run -- ... < FILE")
    lines.append(f"all of it: holdfast diagnose {shown(run.path)}; fix the cause, then {rerun(summary['nothing_saved'], command)}")
    return lines
