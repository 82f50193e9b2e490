"""Results as Markdown: medians over rounds, ratios within a round, agreement of losses. Reads and runs nothing."""

from __future__ import annotations

import shlex
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from race import Result

Rounds = dict[str, list[Result]]


def median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def ratio(results: Rounds, name: str, other: str, of: Callable[[Result], float | None]) -> float | None:
    """Median over rounds of `name` divided by `other`, each pair from the same round."""
    others = {result.round: of(result) for result in results.get(other, [])}
    pairs = [(of(result), others.get(result.round)) for result in results.get(name, [])]
    return median([mine / theirs for mine, theirs in pairs if mine is not None and theirs])


def loss_gap(results: Rounds, name: str, reference: str, first: int = 50) -> tuple[float, int] | None:
    """(largest difference of a step's loss, steps compared) between the first rounds of two contenders."""
    if not results.get(name) or not results.get(reference):
        return None
    pairs = list(zip(results[name][0].losses[:first], results[reference][0].losses[:first], strict=False))
    return (max(abs(mine - theirs) for mine, theirs in pairs), len(pairs)) if pairs else None


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    return "\n".join(lines + [f"| {' | '.join(map(_text, row))} |" for row in rows])


def _text(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
    return str(value)


def command_line() -> str:
    """The command of this program with folders and files cut to their names, for the record."""
    words = [Path(sys.argv[0]).name, *sys.argv[1:]]
    short = ["=".join(Path(part).name if "/" in part else part for part in word.split("=")) for word in words]
    return f"python benchmarks/{Path(sys.argv[0]).resolve().parent.name}/{shlex.join(short)}"


def add_to(file: Path, title: str, text: str) -> None:
    """Append a section to the results file and show it."""
    section = f"## {title}\n\n`{command_line()}`\n\n{text}\n"
    with file.open("a", encoding="utf-8") as handle:
        handle.write(section + "\n")
    print(section, flush=True)
