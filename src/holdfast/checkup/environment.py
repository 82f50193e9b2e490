"""The environment that suits a machine: what the variable cards advise, and the file it is written to. Sets nothing itself."""

from __future__ import annotations

import shlex

from holdfast.base.files import Json
from holdfast.base.inert import inert
from holdfast.book.kinds.check import Case
from holdfast.book.kinds.variable import VariableAdvice
from holdfast.checkup.examine import cards
from holdfast.machine.machine_file import read


def profile(facts: Json) -> list[VariableAdvice]:
    """Return what is advised for a machine, confirmed or reported, one entry a variable."""
    case = Case(read(facts))
    advised = [advice for card in cards("variables").values() for advice in card.advice(case)]
    return list({advice.name: advice for advice in reversed(advised)}.values())[::-1]


def confirmed(facts: Json) -> list[VariableAdvice]:
    """Return the part of the profile that is set for training: confirmed, and not set by the user in the environment of `facts`."""
    taken = read(facts).env
    return [advice for advice in profile(facts) if advice.standing == "confirmed" and advice.name not in taken]


def as_file(advised: list[VariableAdvice], title: str) -> str:
    """Format a file for `source` and docker's --env-file alike: the reason stands behind each line, what is only reported in a comment."""
    lines = [
        f"# {_on_one_line(title)}",
        "# `set -a; source FILE; set +a` in a shell. Lines behind a # are reported, not confirmed: try them one at a time.",
        "",
    ]
    if not advised:
        lines.append("# nothing: the defaults are right for this machine")
    for advice in advised:
        mark = "" if advice.standing == "confirmed" else "# "
        lines.append(
            f"{mark}{advice.name}={shlex.quote(advice.value)}  # {_on_one_line(f'{advice.standing}: {advice.reason} ({advice.source})')}"
        )
    return "\n".join(lines) + "\n"


def _on_one_line(text: str) -> str:
    """Join the lines of a machine file's text: in a comment of a file that is sourced a line break would begin a command."""
    return inert(" ".join(text.split()))
