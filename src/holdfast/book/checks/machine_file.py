"""Everything in a machine file was understood."""

from collections.abc import Iterator

from holdfast.book.kinds.check import Case, Check, info
from holdfast.run.types import Finding

_NAMED = 6


def look(case: Case) -> Iterator[Finding]:
    odd = case.machine.odd
    if odd:
        more = f" and {len(odd) - _NAMED} more" if len(odd) > _NAMED else ""
        yield info(
            f"not understood and taken as unknown: {', '.join(odd[:_NAMED])}{more}", "compare with the output of: holdfast doctor --json"
        )


CARD = Check(
    title="A fact was not understood",
    why="A value of the wrong kind in a machine file counts as unknown. Rules that need it then say nothing.",
    source=["https://www.rfc-editor.org/rfc/rfc8259"],
    hits=[{"python": 3.12}, {"gpus": "none"}],
    misses=[{"python": "3.12.3"}, {"gpus": None}],
    look=look,
)
