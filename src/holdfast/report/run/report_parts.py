"""What the reports of all runs share: secrets taken out, the machine, events worth telling. Reads the run folder, computes nothing new."""

from __future__ import annotations

from typing import Any

import jinja2
from markupsafe import Markup

from holdfast.base.errors import WRONG_VALUES
from holdfast.base.files import Json, read_json
from holdfast.machine.machine_file import training_devices
from holdfast.machine.readings.keep import kept
from holdfast.machine.readings.words import figures, seen_signs, summed
from holdfast.privacy.scrub import Scrubber
from holdfast.report.notices import notice
from holdfast.report.pages import page_template
from holdfast.report.summarise import place_in_words
from holdfast.report.svg import line_chart
from holdfast.run.folder import RunFolder

_NOTICES_SHOWN = 50
_FEWEST_DRAWN, _READING_CHARTS = 3, 13  # of eight cards busy, then what there is room for


def without_secrets(value: Any, scrubber: Scrubber) -> Any:
    """Scrub every text of a value, except markup of ours."""
    if isinstance(value, Markup) or not isinstance(value, str | dict | list | tuple):
        return value
    if isinstance(value, str):
        return scrubber.secrets(value)
    if isinstance(value, dict):
        return {key: without_secrets(entry, scrubber) for key, entry in value.items()}
    entries = [without_secrets(entry, scrubber) for entry in value]
    return entries if isinstance(value, list) else value._make(entries) if hasattr(value, "_make") else tuple(entries)


def rendered(template: str, shown: Json, scrubber: Scrubber) -> str:
    """Render a run's page, without secrets. Raises ValueError where an entry of its files lacks what it has in every run."""
    try:
        return page_template(template).render(without_secrets(shown, scrubber))
    except jinja2.UndefinedError as error:
        raise ValueError(str(error)) from error


def notices(run: RunFolder) -> list[Json]:
    """Return the newest events worth telling, and how many there were before: {title, text}."""
    told = [found for event in run.events() if (found := notice(event))]
    before = len(told) - _NOTICES_SHOWN
    left_out = [{"title": f"{before:,} before these", "text": f"in {run.events_file.name} of the run"}] if before > 0 else []
    return left_out + [{"title": words[0].upper() + words[1:], "text": facts} for words, facts in told[-_NOTICES_SHOWN:]]


def shown_incident(incident: Json, then: str, rows: str = "") -> Json:
    """Describe an incident in words. then: what is said of the next step, with {seconds}; rows: of those in flight."""
    back, cause = incident["seconds_to_recover"], incident["cause"]
    return {
        "at": f"step {incident['step']}" if incident["step"] is not None else f"attempt {incident['attempt']}",
        "words": cause.replace("_", " ") if cause != "unknown" else incident["ending"],
        "evidence": incident["evidence"],
        "back": then.format(seconds=f"{back:.1f} s") if back is not None else "",
        "rows": rows,
    }


def machine_rows(run: RunFolder) -> list[tuple[str, str]]:
    """Return what is known of the machine, with a label each."""
    machine = read_json(run.machine_file) or {}
    system, cpu, torch = (machine.get(name) or {} for name in ("os", "cpu", "torch"))
    devices = ", ".join(gpu.get("name") or "a GPU" for gpu in training_devices(machine)) or "none"
    memory = machine.get("memory_bytes")
    facts = [
        ("system", _known(system.get("distro"), "kernel {}", system.get("kernel"))),
        ("processor", _known(cpu.get("name"), "{} threads", cpu.get("threads"))),
        ("memory", f"{memory / 2**30:.1f} GiB" if memory else "unknown"),
        ("GPUs", devices),
        ("Python", str(machine.get("python") or "unknown")),
        ("torch", str(torch.get("version") or "unknown")),
    ]
    place = (read_json(run.summary_file) or {}).get("second_place")
    facts += [("second place", place_in_words(place))] if place else []
    return facts + [(name, version) for name, version in (machine.get("packages") or {}).items() if version and name != "torch"]


def _known(name: object, words: str, beside: object) -> str:
    """Join what is known of a name and a fact in words; a machine file of another version may lack either."""
    return ", ".join(part for part in (str(name or ""), words.format(beside) if beside else "") if part) or "unknown"


def readings(run: RunFolder) -> Json:
    """Return charts over steps, figures and signs of the machine during training; empty where nothing was kept. Raises OSError."""
    try:
        found = kept(run.readings_file)
        over = [one for one in found if isinstance(one.get("step"), int)]
        return {"charts": _reading_charts(over), "rows": list(summed(found)), "signs": seen_signs(found)}
    except WRONG_VALUES:
        return {"charts": [], "rows": [], "signs": []}


def _reading_charts(found: list[Json]) -> list[tuple[str, Markup]]:
    if len(found) < _FEWEST_DRAWN:
        return []
    tables = [figures(one) for one in found]
    names = [name for name in dict.fromkeys(key for table in tables for key in table) if name.endswith(("busy", "celsius", "watts"))]
    charts = []
    for name in names[:_READING_CHARTS]:
        points = [(one["step"], table[name]) for one, table in zip(found, tables, strict=True) if name in table]
        charts.append((name.replace("/", " ").replace("_", " "), Markup(line_chart([x for x, _ in points], [y for _, y in points], ""))))
    return charts


def duration(seconds: float) -> str:
    """Format seconds as people say them."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def drawable(value: float | None) -> float:
    """Return a value for a chart; NaN, which leaves a gap, where there is none."""
    return float("nan") if value is None else value
