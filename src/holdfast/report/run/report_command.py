"""What a report shows of a run of somebody else's command: progress, incidents, its post-mortem. Computes nothing new."""

from __future__ import annotations

import shlex

from markupsafe import Markup

from holdfast.base.files import Json
from holdfast.base.safe_open import read_small
from holdfast.base.units import counted, listed
from holdfast.report.run.report_parts import drawable, duration, machine_rows, shown_incident
from holdfast.report.svg import Marker, line_chart
from holdfast.report.words import computed_again
from holdfast.run.command import Command, read_command
from holdfast.run.folder import RunFolder

_ROWS_SHOWN = 16
_TOLD_BY = {
    "callback": "holdfast's callback",
    "output": "what the command prints",
    "file": "the file of --progress",
    "event file": "TensorBoard event files",
    "trainer_state.json": "trainer_state.json of its checkpoints",
}


def of_command(run: RunFolder, summary: Json, status: str) -> Json:
    """Return what the page of a command's run shows."""
    command = read_command(run) or Command((), "")
    rows = list(run.progress())
    incidents = summary.get("incidents", [])
    return {
        "subtitle": _subtitle(command, summary),
        "verdict": _verdict(summary, status, rows),
        "good": status == "finished" and not summary.get("doubt"),
        "tiles": _tiles(summary),
        "wide": True,
        "charts": _charts(rows, incidents),
        "incidents": [_incident(incident) for incident in incidents],
        "aside": summary.get("checkpoints_set_aside") or [],
        "post_mortem": _post_mortem(run) if status == "gave_up" else "",
        "command": shlex.join(command.argv),
        "settings": _settings(command),
        "machine": [(label, value) for label, value in machine_rows(run) if value != "unknown"],
    }


def _subtitle(command: Command, summary: Json) -> str:
    source = summary.get("progress_from")
    steps = f"its steps told by {_TOLD_BY.get(str(source), source)}" if source else "it told of no step"
    return f"{command.launcher or 'a command of no known kind'}, {steps}"


def _verdict(summary: Json, status: str, rows: list[Json]) -> str:
    furthest = max((row["step"] for row in rows), default=None)
    if status not in ("finished", "gave_up", "interrupted"):
        return "Not finished" + (f": step {furthest:,} was seen." if furthest is not None else ": no step was seen.")
    steps = counted(summary["steps"], "step") if summary["steps"] is not None else "no step that was seen"
    if status == "gave_up":
        return f"Given up after {steps}: {summary['reason']}." + (
            f" {lost[0].upper()}{lost[1:]}." if (lost := summary.get("nothing_saved")) else ""
        )
    if status == "interrupted":
        lost = summary.get("nothing_saved")
        return f"Stopped by its user after {steps}; " + (
            f"{lost}: the same command begins anew." if lost else "rerun the same command to resume."
        )
    incidents = summary["incidents"]
    how = "Trained to its end" if summary.get("after_training") else "Ended with exit code 0" if summary.get("doubt") else "Ended well"
    text = f"{how}: {steps} " + (f"through {counted(len(incidents), 'incident')}" if incidents else "without an incident")
    if (again := summary["steps_computed_twice"]) is not None and incidents:
        text += f", {computed_again(summary)} {'step' if again == 1 else 'steps'} computed twice"
    lived = f"; {summary['lived_through']}" if summary.get("lived_through") else ""
    return f"{text}{lived}" + (f". But {summary['doubt']}." if summary.get("doubt") else ".")


def _tiles(summary: Json) -> list[tuple[str, str]]:
    if not summary:
        return []
    tiles = []
    if summary["steps"] is not None:
        total = summary["total_steps"]
        tiles.append((f"{summary['steps']:,}", f"of {total:,} steps" if total else "steps seen"))
    loss = summary["loss"]
    if loss["first"] is not None and loss["last"] is not None:
        tiles.append((f"{loss['first']:.3f} → {loss['last']:.3f}", "loss as it was logged, first and last"))
    if summary["wall_seconds"]:
        share = f", {summary['goodput']:.0%} of it in steps that count" if summary["goodput"] is not None else ""
        tiles.append((duration(summary["wall_seconds"]), f"in all{share}"))
    tiles.append((str(summary["attempts"]), "start of the command" if summary["attempts"] == 1 else "starts of the command"))
    if summary["steps_computed_twice"] is not None:
        tiles.append(
            (str(summary["steps_computed_twice"]), "steps computed twice" + (", at least" if computed_again(summary)[:1] == "a" else ""))
        )
    if summary["steps_dropped"] is not None:
        tiles.append((str(summary["steps_dropped"]), "steps whose gradients were not finite and were dropped"))
    return tiles


def _charts(rows: list[Json], incidents: list[Json]) -> list[tuple[str, Markup]]:
    """Draw steps over time, with what each restart threw back, and the loss over steps where it is told."""
    if not rows:
        return []
    began = rows[0]["time"]
    minutes = [(row["time"] - began) / 60 for row in rows]
    ends = {row["attempt"]: at for row, at in zip(rows, minutes, strict=True)}
    numbered = list(enumerate(incidents, 1))
    at_ends = [Marker(ends[one["attempt"]], str(number), one["evidence"]) for number, one in numbered if one["attempt"] in ends]
    steps = Markup(line_chart(minutes, [float(row["step"]) for row in rows], "step, over minutes", at_ends, over="minutes"))
    charts = [("Progress", steps)]
    logged = _logged(rows)
    if logged:
        at_steps = [Marker(one["step"], str(number), one["evidence"]) for number, one in numbered if one["step"] is not None]
        xs, losses = [row["step"] for row in logged], [drawable(row["loss"]) for row in logged]
        charts.append(("Loss", Markup(line_chart(xs, losses, "", at_steps))))
    return charts


def _logged(rows: list[Json]) -> list[Json]:
    """Return a row for each step at which another loss was told; of a step that was computed twice, the last one."""
    found: dict[int, Json] = {}
    before = None
    for row in rows:
        loss = row.get("loss")
        if loss is not None and loss != before:
            found[row["step"]] = row
        before = loss
    return [found[step] for step in sorted(found)]


def _incident(incident: Json) -> Json:
    samples = [str(row) for row in incident["samples"]]
    rows = f"In flight: rows {listed(samples, _ROWS_SHOWN)} of its data set, counted from 0." if samples else ""
    return shown_incident(incident, "The next step was seen {seconds} after its end.", rows)


def _post_mortem(run: RunFolder) -> str:
    """Read what was known of a command that was given up; empty where nothing was written."""
    try:
        return read_small(run.path / "post-mortem.md").decode(errors="replace")
    except FileNotFoundError:
        return ""


def _settings(command: Command) -> list[tuple[str, str]]:
    return [
        ("folder", command.folder),
        ("checkpoints", command.checkpoints or "not known"),
        ("--callback", "yes" if command.callback else "no"),
        ("--try", "yes" if command.tries else "no"),
        ("--progress", command.progress or "not given"),
        ("--retries", str(command.retries) if command.retries is not None else "as long as it comes further"),
        ("--hang-s", f"{command.hang_s:g}"),
        ("--stop-s", f"{command.stop_s:g}"),
    ]
