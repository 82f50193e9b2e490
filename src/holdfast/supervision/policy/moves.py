"""The moves a supervisor has after an attempt has ended. All frozen, and each whole: carrying one out needs no more thought."""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.base.files import Json
from holdfast.config.settings import PartialSettings


@dataclass(frozen=True)
class Move:
    """reason: why, in words; evidence: what trials saw; remedy: its name in the records."""

    reason: str
    evidence: str = ""
    remedy: str = "none"

    @property
    def goes_on(self) -> bool:
        """Whether another attempt is started."""
        return True


@dataclass(frozen=True)
class Resume(Move):
    """Start again as it is, from the newest state."""

    remedy: str = "resume"


@dataclass(frozen=True)
class TryRemedy(Resume):
    """Start again with something changed that is known to help; what, the user of the policy says."""


@dataclass(frozen=True)
class Wait(Move):
    """Look for the GPU again. `again`: that it is looked for was told before."""

    remedy: str = "wait"
    again: bool = False


@dataclass(frozen=True)
class LeaveGpu(Move):
    """Go on on the CPU."""

    remedy: str = "cpu"


@dataclass(frozen=True)
class Accept(Move):
    """Nothing can be done about the course of the loss: the run goes on as it is."""


@dataclass(frozen=True, kw_only=True)
class Change(Move):
    """Go on under `settings` from a step on, without the rows in `quarantined` (lines of quarantine.jsonl).

    step: the one that fails; cause: why; seen: in which trials the change helped.
    """

    from_step: int
    settings: PartialSettings
    step: int
    cause: str
    seen: str
    quarantined: tuple[Json, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RollBack(Move):
    """Take the steps after `to` back, and go on from there under `settings`, without the rows in `quarantined`."""

    to: int
    remedy: str = "rollback"
    settings: PartialSettings = field(default_factory=dict)
    quarantined: tuple[Json, ...] = ()


@dataclass(frozen=True)
class GiveUp(Move):
    """Another attempt would meet the same."""

    @property
    def goes_on(self) -> bool:
        return False


@dataclass(frozen=True)
class StopRequested:
    """Asked for by the user; nothing is decided. `earlier`: by an earlier command, so that this one goes on."""

    earlier: bool = False


@dataclass(frozen=True)
class Done:
    """It ended well; nothing is decided."""
