"""How a process of a run ends: kind, exit code and sentence in one table. Standard library only.

Trainer, shim, supervisor and callback have it from here. A code lies beside those of the command line (base/errors.py), of
sysexits.h (64..78) and of shells (126 and above).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

EndingKind = Literal[
    "finished",
    "interrupted",
    "killed",
    "error",
    "nonfinite",
    "no_state",
    "disk_full",
    "out_of_memory",
    "refused",
    "damaged",
    "device_gone",
    "peer_lost",
    "hang",
    "stuck",
    "vanished",
    "never_started",
    "elsewhere",
    "wrong_resume",
]


class Outcome(NamedTuple):
    """words: as in "attempt 3 ...". code: of a process that ends so by its own decision; before: its code in older run folders."""

    words: str
    code: int | None = None
    before: int | None = None


OUTCOMES: dict[EndingKind, Outcome] = {
    "finished": Outcome("finished", 0),
    "interrupted": Outcome("asked to stop", 130),
    "nonfinite": Outcome("stopped at a loss or gradient that is not finite", 80, before=64),
    "no_state": Outcome("found no state to go on from", 81, before=65),
    "disk_full": Outcome("the disk is full", 82, before=66),
    "out_of_memory": Outcome("ran out of memory", 83, before=67),
    "refused": Outcome("refused what it was to train on", 84, before=68),
    "damaged": Outcome("found its state damaged", 85, before=69),
    "device_gone": Outcome("did not find the GPU of its plan", 86, before=71),
    "peer_lost": Outcome("lost the connection between its ranks", 87, before=72),
    "elsewhere": Outcome("found the first rank in another attempt", 88, before=73),
    "wrong_resume": Outcome("did not load what its checkpoint holds", 89),  # the callback's; 69 before, as damaged
    "hang": Outcome("gave no sign of life and was ended"),
    "stuck": Outcome("cannot be killed: it is stuck in the kernel"),
    "never_started": Outcome("never started"),
    "vanished": Outcome("ended while nobody saw it, cause unknown"),
}
_KINDS = {code: kind for kind, outcome in OUTCOMES.items() for code in (outcome.before, outcome.code) if code is not None}


def code_of(kind: EndingKind) -> int:
    """The exit code by which a process says that it ends so."""
    code = OUTCOMES[kind].code
    assert code is not None, f"no process decides to end as {kind}"
    return code


def kind_of(code: int | None) -> EndingKind | None:
    """What an exit code says, today's or an older one; None where it is none of ours. Any program may end with any of them."""
    return _KINDS.get(code) if code is not None else None
