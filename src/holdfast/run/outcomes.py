"""How a process of a run ends: kinds, exit codes and words in one table. Standard library only."""

from __future__ import annotations

from typing import Literal, NamedTuple

from holdfast.base.errors import BLOCKED, DONE, GAVE_UP, INTERRUPTED, USAGE

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
    "elsewhere",
    "wrong_resume",
    "hang",
    "stuck",
    "vanished",
    "never_started",
]


class Outcome(NamedTuple):
    """One kind of ending. words: as in "attempt 3 ..."; code: of a process that ends so by its own decision, None where none decides it."""

    words: str
    code: int | None = None


OUTCOMES: dict[EndingKind, Outcome] = {  # those killed and of errors have the words of their signal or exit code
    "finished": Outcome("finished", DONE),
    "interrupted": Outcome("asked to stop", INTERRUPTED),
    "nonfinite": Outcome("stopped at a loss or gradient that is not finite", 64),
    "no_state": Outcome("found no state to go on from", 65),
    "disk_full": Outcome("found a disk that takes nothing", 66),
    "out_of_memory": Outcome("ran out of memory", 67),
    "refused": Outcome("refused what it was to train on", 68),
    "damaged": Outcome("found its state damaged", 69),
    "device_gone": Outcome("did not find the GPU of its plan", 71),  # 70 is the command line's "a bug of ours"
    "peer_lost": Outcome("lost the connection between its ranks", 72),
    "elsewhere": Outcome("found the first rank in another attempt", 73),
    "wrong_resume": Outcome("did not load what its checkpoint holds", 74),  # the callback's. It was 69; account.json tells it in any folder
    "hang": Outcome("gave no sign of life and was ended"),
    "stuck": Outcome("cannot be killed: it is stuck in the kernel"),
    "vanished": Outcome("ended while nobody saw it, cause unknown"),
    "never_started": Outcome("never started"),
}
DISK_TAKES_NOTHING = "the disk takes nothing"  # begins the trainer's own line about such an end, which leaves no account
COMMAND_STATUS = {BLOCKED: "refused", USAGE: "refused", GAVE_UP: "gave_up", INTERRUPTED: "interrupted"}  # of --json, by exit code
_KINDS = {outcome.code: kind for kind, outcome in OUTCOMES.items() if outcome.code is not None}


def exit_code(kind: EndingKind) -> int:
    """Return the exit code of a process that ends so by its own decision."""
    code = OUTCOMES[kind].code
    assert code is not None, f"no process decides to end as {kind}"
    return code


def kind_by_code(code: int | None) -> EndingKind | None:
    """Return what an exit code says by itself; None where it is none of ours. Any library may end a process with any of them."""
    return None if code is None else _KINDS.get(code)
