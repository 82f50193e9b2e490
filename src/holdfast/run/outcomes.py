"""How a trainer, a command line and a callback can end: kinds, exit codes and words, in one place. Standard library only."""

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
    "hang",
    "stuck",
    "vanished",
    "never_started",
]


class Outcome(NamedTuple):
    """One kind of ending. code: of a trainer that ends so by its own decision; None where it decides nothing.

    by_code: the exit code tells it without the trainer's account in result.json. Any library may end a process with the others.
    """

    words: str
    code: int | None = None
    by_code: bool = False


OUTCOMES: dict[EndingKind, Outcome] = {  # of an attempt; those killed and of errors have the words of their signal or exit code
    "finished": Outcome("finished", DONE),
    "interrupted": Outcome("asked to stop", INTERRUPTED),
    "nonfinite": Outcome("stopped at a loss or gradient that is not finite", 64),
    "no_state": Outcome("found no state to go on from", 65),
    "disk_full": Outcome("the disk is full", 66, by_code=True),
    "out_of_memory": Outcome("ran out of memory", 67),
    "refused": Outcome("refused what it was to train on", 68),
    "damaged": Outcome("found its state damaged", 69),
    "device_gone": Outcome("did not find the GPU of its plan", 71),  # 70 is the command line's "a bug of ours"
    "peer_lost": Outcome("lost the connection between its ranks", 72, by_code=True),
    "hang": Outcome("gave no sign of life and was ended"),
    "stuck": Outcome("cannot be killed: it is stuck in the kernel"),
    "vanished": Outcome("ended while nobody saw it, cause unknown"),
    "never_started": Outcome("never started"),
}
EXIT_ELSEWHERE = 73  # of a rank: the first one is in another attempt
EXIT_WRONG_RESUME = 74  # of the callback: what was loaded is not what was saved. It was 69; account.json tells it in any folder
CALLBACK_EXITS = {  # the callback imports nothing of this; a test holds its numbers against these
    "EXIT_NONFINITE": OUTCOMES["nonfinite"].code,
    "EXIT_WRONG_RESUME": EXIT_WRONG_RESUME,
    "EXIT_STOPPED": OUTCOMES["interrupted"].code,
}
COMMAND_STATUS = {BLOCKED: "refused", USAGE: "refused", GAVE_UP: "gave_up", INTERRUPTED: "interrupted"}  # of --json, by exit code
_BY_CODE = {outcome.code: kind for kind, outcome in OUTCOMES.items() if outcome.by_code}


def exit_code(kind: EndingKind) -> int:
    """The exit code of a trainer that ends so by its own decision."""
    code = OUTCOMES[kind].code
    assert code is not None, f"no trainer decides to end as {kind}"
    return code


def kind_by_code(code: int | None) -> EndingKind | None:
    """What an exit code tells by itself; None where it may be anybody's."""
    return _BY_CODE.get(code)
