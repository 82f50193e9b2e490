"""What is shown of one run beside its entry: curves, incidents in the book's words, trials, ranks, what happened, its last output."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from holdfast.base.errors import WRONG_VALUES, Stop
from holdfast.base.files import Json, read_json
from holdfast.base.inert import inert
from holdfast.base.safe_open import read_end
from holdfast.base.units import counted, setting
from holdfast.book import cards_of
from holdfast.diagnosis.logs.curve import points
from holdfast.diagnosis.logs.text import clean_lines
from holdfast.experiments.trials import trials_left
from holdfast.machine.readings.keep import kept
from holdfast.machine.readings.words import figures
from holdfast.privacy.scrub import Scrubber
from holdfast.processes.attempt import Attempt
from holdfast.processes.process import living_pids
from holdfast.report.notices import notice, turn
from holdfast.report.svg import Marker, line_chart
from holdfast.run.attempt import read_launch_spec
from holdfast.run.evaluations import read_evaluations
from holdfast.run.folder import RunFolder
from holdfast.supervision.standing import trials_of_now
from holdfast.watch.curve import Curves

_MOST_WORDS = 30  # events that are told of a run
_OUTPUT_CHARS, _OUTPUT_LINES = 8192, 20
_LOGGED_BYTES = 1 << 16  # of the end of a log: in them losses of a command are looked for
_TRIALS = 8  # that are told
_DRAWN = 500  # points of a line
_READINGS = 8  # charts of the machine
_OF_MACHINE = {
    "processors_busy": ("processors busy", "%", 100),
    "busy": ("busy", "%", 100),
    "celsius": ("temperature", "°C", 1),
    "watts": ("power", "W", 1),
}  # readings that are drawn: title, unit, factor

Points = Sequence[tuple[float, float]]


def held_out(run: RunFolder) -> list[tuple[int, float]]:
    """Return (step, loss) of the evaluations on the way, the newest ones."""
    return [(row["step"], row["loss"]) for row in read_evaluations(run) if row["loss"] is not None]


def logged_losses(run: RunFolder) -> list[tuple[int, float]]:
    """Return losses that a watched command printed of late, numbered from 1: the command need not say their steps."""
    text = read_end(newest_log(run), _LOGGED_BYTES) if run.command_file.exists() else ""
    return [(number, point.loss) for number, point in enumerate(points(clean_lines(text)), 1)]


def charts(run: RunFolder, curves: Curves, evaluated: Points) -> list[Json]:
    """Return [{title, unit, over, lines: [{name, points, smooth}]}], the loss first."""
    found = [_chart("Loss", "loss", [_line("training", curves.points(), smooth=True), _line("held-out", evaluated)])]
    if not curves.points() and (logged := logged_losses(run)):
        found = [_chart("Loss, as the command printed it of late", "loss", [_line("loss", logged)], over="printed loss")]
    for name, title, unit in (("speed", "Speed", "tokens a second"), ("grad_norm", "Gradient norm", "before clipping")):
        found.append(_chart(title, unit, [_line(unit, curves.points(name), smooth=True)]))
    return [chart for chart in found + _of_machine(run) if chart["lines"]]


def both_losses(names: tuple[str, str], courses: tuple[Points, Points]) -> Json:
    """Return the chart of two runs' losses."""
    return _chart("Loss of both", "loss", [_line(name, course, smooth=True) for name, course in zip(names, courses, strict=True)])


def _of_machine(run: RunFolder) -> list[Json]:
    """Return the charts of processors and cards during the run."""
    found = [(one["step"], figures(one)) for one in kept(run.readings_file) if isinstance(one.get("step"), int)]
    names = [name for name in dict.fromkeys(name for _, known in found for name in known) if name.rpartition("/")[2] in _OF_MACHINE]
    charts = []
    for name in names[:_READINGS]:
        title, unit, times = _OF_MACHINE[name.rpartition("/")[2]]
        card = f"GPU {name[3:].partition('/')[0]}: {title}" if "/" in name else title
        course = [(step, times * known[name]) for step, known in found if name in known]
        charts.append(_chart(card[0].upper() + card[1:], unit, [_line(unit, course)]))
    return charts


def _chart(title: str, unit: str, lines: list[Json], over: str = "step") -> Json:
    return {"title": title, "unit": unit, "over": over, "lines": [line for line in lines if line["points"]]}


def _line(name: str, points: Points, smooth: bool = False) -> Json:
    """Return a line as it is sent: evenly chosen points, the last among them; five digits are more than can be seen."""
    chosen = points[:: -max(1, -(-len(points) // _DRAWN))][::-1]
    return {"name": name, "smooth": smooth, "points": [[x, float(f"{y:.5g}")] for x, y in chosen]}


def loss_svg(losses: Points, incidents: list[Json]) -> str:
    """Draw the loss over steps as a picture for other pages; a loss that is not finite is a gap."""
    marks = [
        Marker(one["step"], str(number), f"step {one['step']}: {one['cause']}")
        for number, one in enumerate(incidents, 1)
        if isinstance(one["step"], int)
    ]
    return line_chart([x for x, _ in losses], [y for _, y in losses], "loss", marks, smooth=True)


def in_the_books_words(incident: Json, ends: dict[int, Json]) -> Json:
    """Return the incident with the book's words on its cause, and on what was done about it."""
    end = ends.get(incident["attempt"], {})
    clues = "\n".join(f"{clue}\nreading: {clue}" for clue in end.get("diagnosis", {}).get("clues", ()))
    cards = sorted((card for card in cards_of("failures").values() if card.cause == incident["cause"]), key=lambda card: -card.sure)
    card = next((card for card in cards if card.matches(clues)), cards[0] if cards else None)
    title = incident["ending"] if incident["cause"] == "unknown" else incident["cause"].replace("_", " ")
    book = {"card": card.id, "says": f"{card.title}. {card.why}"} if card else None
    return incident | {"title": title, "book": book, "done": end.get("decision", {}).get("reason")}


def what_comes_next(run: RunFolder, row: Json) -> str:
    """Say what is done if the newest incident's step fails again, or what to type where nobody works on the run; else empty."""
    incident, committed = row["last_incident"], row["step"]
    if row["state"] in ("dead", "interrupted") and row["command"]:
        where = f" in {row['folder']}" if row["folder"] else ""
        return f"it goes on with the same command{where}: {row['command']}"
    if row["state"] != "running":
        return ""
    if incident is None or not isinstance(incident["step"], int) or committed >= incident["step"] or run.command_file.exists():
        return ""
    left = trials_left(run, incident["step"])
    tried = f"it is tried by itself, with one change at a time ({counted(left, 'trial')} at most)" if left else "no trial is left of it"
    return f"if step {incident['step']:,} keeps failing, {tried}"


def trials(run: RunFolder) -> list[Json]:
    """Return [{number, tries, came}] of the experiments since the newest attempt failed, oldest first; came: None as yet."""
    found = []
    for folder in trials_of_now(run)[-_TRIALS:]:
        request, result = read_json(folder / "request.json") or {}, read_json(folder / "trial.json")
        changed = [f"{name} = {setting(value)}" for name, value in ((request.get("settings") or {}) | (request.get("env") or {})).items()]
        rows = [counted(len(request["samples"]), "row")] if request.get("samples") else []
        came = None if result is None else "goes through" if result.get("finite") else f"fails: {result.get('ending')}"
        found.append({"number": folder.name, "tries": ", ".join([f"step {request.get('step')}", *rows, *changed]), "came": came})
    return found


def ranks(run: RunFolder, number: int) -> list[Json]:
    """Return [{rank, pid, phase, step}] of an attempt of several ranks; pid: None where it is not of this machine, or gone."""
    attempt = Attempt(number, run.attempt(number), None)
    spec = read_launch_spec(attempt.folder)
    count = spec.facts.get("ranks", 1) if spec else 1
    if not isinstance(count, int) or count < 2:
        return []
    pids = living_pids(attempt)
    pulses = [_pulse(attempt, rank) for rank in range(count)]
    return [
        {"rank": rank, "pid": pids.get(f"rank {rank}" if rank else "trainer"), "phase": pulse.get("phase"), "step": pulse.get("step")}
        for rank, pulse in enumerate(pulses)
    ]


def _pulse(attempt: Attempt, rank: int) -> Json:
    try:
        return attempt.pulse(rank) or {}
    except (OSError, Stop, *WRONG_VALUES):  # on another machine
        return {}


def happened(run: RunFolder, scrubber: Scrubber) -> list[Json]:
    """Return the newest events worth telling, in words, oldest first. Evaluations are in the chart."""
    found = []
    for event in run.events():
        told = notice(event)
        words = event["says"] if event["event"] == "sign" else f"{told[0]} ({told[1]})" if told else turn(event)
        if words:
            found.append({"time": event["time"], "says": scrubber.secrets(inert(str(words)))})
    return found[-_MOST_WORDS:]


def newest_log(run: RunFolder) -> Path:
    attempts = run.attempts()
    return run.attempt(attempts[-1]) / "output.log" if attempts else run.supervisor_log


def output(run: RunFolder, scrubber: Scrubber) -> list[str]:
    """Return the last lines that the newest attempt printed, without secrets; of a bar that is drawn anew, how it stands."""
    lines = [line.rstrip("\r").rpartition("\r")[2] for line in read_end(newest_log(run), _LOGGED_BYTES).removesuffix("\n").split("\n")]
    text = "\n".join(lines)[-2 * _OUTPUT_CHARS :]  # a secret that is cut is not known for one: the cut is where nothing is shown
    shown = scrubber.secrets(text)[-_OUTPUT_CHARS:]
    return [inert(line) for line in shown.split("\n")[-_OUTPUT_LINES:]] if shown else []
