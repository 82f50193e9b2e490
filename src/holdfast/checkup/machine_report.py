"""The doctor's report as one Markdown file: read by people, and by `doctor --machine`. Scrubbing it is the verb's job."""

from __future__ import annotations

import re

import orjson

from holdfast.base.files import Json
from holdfast.checkup.checkup import summary
from holdfast.machine.machine_file import read

_FACTS = re.compile(r"^```json\n(.*?)^```$", re.M | re.S)


def machine_report(answer: Json, paths: dict[str, str], version: str) -> str:
    """Format the doctor's report: facts, findings, trials, and which paths a run takes here. `answer`: as `doctor --json` gives."""
    facts = answer["machine"]
    lines = [
        "# What holdfast's doctor saw",
        "",
        f"Written by `holdfast doctor --report`, holdfast {version}. User names, host names, home folders and secrets are taken out.",
        f"`holdfast doctor --machine THIS_FILE` judges it anywhere. Verdict: **{answer['verdict']}**.",
        "",
        "## Machine",
        "",
        *(f"* {name}: {value}" for name, value in summary(read(facts))),
        "",
        "## Findings",
        "",
        *(_finding(finding) for finding in answer["findings"]),
        *([] if answer["findings"] else ["none"]),
        "",
        "## Probes",
        "",
        *_probes(facts.get("probes")),
        "",
        "## What a run with the defaults does here",
        "",
        *(f"* {subject}: {how}" for subject, how in paths.items()),
        "",
        "## Facts",
        "",
        "```json",
        orjson.dumps(facts, option=orjson.OPT_INDENT_2).decode(),
        "```",
        "",
    ]
    return "\n".join(lines)


def facts_in(report: str) -> Json | None:
    """Return the facts of a report that was written here; None where it holds none."""
    found = _FACTS.search(report)
    try:
        facts = orjson.loads(found[1]) if found else None
    except orjson.JSONDecodeError:
        return None
    return facts if isinstance(facts, dict) else None


def _finding(finding: Json) -> str:
    sure = "" if finding["standing"] == "confirmed" else f" ({finding['standing']})"
    fix = f" -> {finding['fix']}" if finding["fix"] else ""
    return f"* **{finding['severity']}** {finding['id']}: {finding['message']}{sure}{fix} {finding['source']}".rstrip()


def _probes(probes: object) -> list[str]:
    """Describe each probe in a line; what it measured stands in the facts."""
    if not isinstance(probes, dict) or not probes:
        return ["not run"]
    told = ((name, probe if isinstance(probe, dict) else {}) for name, probe in probes.items())
    return [f"* {name}: {probe.get('outcome')}" + (f", {probe['detail']}" if probe.get("detail") else "") for name, probe in told]
