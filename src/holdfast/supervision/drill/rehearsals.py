"""What a drill rehearses: kinds of faults by the moments they come at, singly and in pairs, half of them silent or misleading. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from holdfast.base.files import Json

STEPS = 10  # of a rehearsal; its rows come round for the second time from step 7 on
SAMPLE = "the row"  # stands for a row of the data, as file:line
MISLEADING = (  # printed by every fourth fault: words that are not its cause
    "WARNING: RuntimeError: CUDA out of memory in the logs of another job",
    "NCCL WARN Connection closed by remote peer",
    "DeprecationWarning: this loader is deprecated",
)
_MOMENTS: dict[str, Json] = {  # name: conditions
    "at the start": {"phase": "start"},
    "in the first step": {"step": 1},
    "in the middle of an epoch": {"step": 4, "phase": "backward"},
    "in the second epoch": {"step": 8, "phase": "optimizer"},
    "in a half-written snapshot": {"step": 5, "phase": "snapshot"},
    "between snapshot and journal": {"step": 6, "phase": "commit"},
    "in a save": {"phase": "save", "step": 4},
    "in an evaluation": {"phase": "evaluate", "step": 5},
    "in the last step": {"step": STEPS, "phase": "commit"},
}
_KINDS: dict[str, tuple[Json, str | None]] = {  # name: the fault, and the cause that is to be found; None: none can be known
    "killed": ({"effect": "kill"}, None),
    "ended with code 0": ({"effect": "exit"}, None),
    "a segfault": ({"effect": "segfault"}, "native_crash"),
    "an abort": ({"effect": "abort"}, "native_crash"),
    "a kernel error": (
        {"effect": "raise", "message": "RuntimeError: CUDA error: an illegal memory access was encountered"},
        "gpu_kernel_fault",
    ),
}
_ALL, _STEP = tuple(_MOMENTS), ("in the first step", "in the middle of an epoch", "in the second epoch")
_WHERE: dict[str, tuple[str, ...]] = {
    "killed": _ALL,
    "ended with code 0": ("in the middle of an epoch", "in a half-written snapshot", "in an evaluation", "in the last step"),
    "a segfault": ("at the start", "in the middle of an epoch", "in an evaluation"),
    "an abort": (*_STEP, "between snapshot and journal"),
    "a kernel error": (*_STEP, "in an evaluation"),
}


@dataclass(frozen=True)
class Rehearsal:
    """faults: of the fault language, none for the undisturbed run. cause: to be found; remedy: whether one is. same: the result has to be.

    hang_s: what the run's own is set to.
    """

    name: str
    faults: tuple[Json, ...]
    cause: str | None = None
    remedy: bool = False
    same: bool = True
    settings: tuple[str, ...] = field(default=())


def rehearsals() -> list[Rehearsal]:
    """Return all rehearsals, the most telling first."""
    return [*_particular(), *_singly(), *_pairs()]


def quick(all_of_them: Sequence[Rehearsal]) -> list[Rehearsal]:
    """Return the few rehearsals that show most."""
    named = (
        *("killed in a half-written snapshot", "a NaN that does not come back", "a segfault in the middle of an epoch", "a hang"),
        *("a kernel that fails in one attention", "ended with code 0 in the middle of an epoch", "a row that cannot be trained on"),
        *("killed, and killed again in the recovery", "a torn checkpoint, then killed", "a micro-batch that does not fit"),
    )
    known = {one.name: one for one in all_of_them}
    return [known[name] for name in named]


def of_faults(faults: Sequence[Json]) -> list[Rehearsal]:
    """Return one rehearsal for each fault of a user's file, alone; what is to be found is not known."""
    return [Rehearsal(str(fault.get("name", f"fault {at}")), (fault,)) for at, fault in enumerate(faults, 1)]


def _fault(name: str, kind: Json, when: Json, **more: int) -> Json:
    return {"name": name, "when": {"attempt": 1} | when | more, **kind}


def _singly() -> list[Rehearsal]:
    found: list[Rehearsal] = []
    for kind, moments in _WHERE.items():
        for moment in moments:
            fault, cause = _KINDS[kind]
            name, at = f"{kind} {moment}", len(found)
            if "message" not in fault and at % 4 == 3:
                fault = fault | {"message": MISLEADING[at % len(MISLEADING)]}
            found.append(Rehearsal(name, (_fault(name, fault, _MOMENTS[moment]),), cause))
    return found


def _pairs() -> list[Rehearsal]:
    kill, step = _KINDS["killed"][0], _MOMENTS["in the middle of an epoch"]
    found = []
    for kind in ("an abort", "a kernel error", "ended with code 0", "a segfault"):
        fault, cause = _KINDS[kind]
        name = f"{kind}, then killed in the same step"
        found.append(Rehearsal(name, (_fault(kind, fault, step), _fault("killed", kill, step, attempt=2)), cause))
    for moment in ("in a save", "in an evaluation", "in the last step"):
        name = f"killed in the middle of an epoch and {moment}"
        found.append(Rehearsal(name, (_fault("first", kill, step), _fault("second", kill, _MOMENTS[moment], attempt=2))))
    return found


def _particular() -> list[Rehearsal]:
    kill = {"effect": "kill"}
    nan = {"effect": "nan_grad"}
    trial: list[Json] = [{"name": "an abort each time", "when": {"step": 4, "setting": {"attention": "sdpa"}}, "effect": "abort"}]
    return [
        Rehearsal("a kernel that fails in one attention", tuple(trial), "native_crash", remedy=True, same=False),
        Rehearsal(
            "a row that cannot be trained on",
            ({"name": "a row", "when": {"sample": SAMPLE}, "effect": "oom"},),
            same=False,
            remedy=True,
        ),
        Rehearsal("a hang", (_fault("a hang", {"effect": "hang"}, {"step": 6}),), "hang", settings=("run.hang_s=5",)),
        Rehearsal("a NaN that does not come back", (_fault("a NaN", nan, {"step": 4}),), "nonfinite_numerics"),
        Rehearsal(
            "killed, and killed again in the recovery",
            (_fault("first", kill, {"step": 5}), _fault("second", kill, {"phase": "start"}, attempt=2)),
        ),
        Rehearsal("a micro-batch that does not fit", (_fault("too large", {"effect": "oom"}, {"step": 3}),), same=False),
        Rehearsal(
            "a torn checkpoint, then killed", (_fault("torn", {"effect": "torn_checkpoint"}, {}), _fault("killed", kill, {"step": 7}))
        ),
        Rehearsal(
            "a flipped bit in a checkpoint", (_fault("flipped", {"effect": "corrupt_checkpoint"}, {}), _fault("killed", kill, {"step": 8}))
        ),
        Rehearsal("a full disk while saving", (_fault("full", {"effect": "disk_full"}, {"step": 4}),)),
        Rehearsal("killed by the kernel for memory", (_fault("oom killer", {"effect": "host_oom"}, {"step": 4}),)),
        Rehearsal("killed three times", tuple(_fault(f"kill {n}", kill, {"step": 2 + 2 * n}, attempt=n) for n in (1, 2, 3))),
        Rehearsal("a slow step", (_fault("slow", {"effect": "slow", "seconds": 3}, {"step": 4}),)),
        Rehearsal(
            "killed while a fault is looked into", (*trial, _fault("killed", kill, {"step": 7}, attempt=3)), "native_crash", True, False
        ),
    ]
