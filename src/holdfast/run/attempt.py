"""How an attempt was started (launch.json) and dealt with (wreck.json). Old folders stay readable: what they lack is unknown."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from holdfast.base.files import Json, read_json, write_json
from holdfast.run.folder import RunFolder
from holdfast.run.types import Ending, FailureReport, Launch

_LAUNCH, _WRECK = "launch.json", "wreck.json"


@dataclass(frozen=True)
class LaunchSpec:
    """What an attempt was started with: the whole of launch.json in `facts`."""

    facts: Json

    @property
    def started(self) -> float | None:
        """Seconds since the epoch."""
        return self.facts.get("started")

    @property
    def settings(self) -> Json:
        return self.facts.get("settings") or {}

    @property
    def committed_before(self) -> int:
        """The run's last committed step when the attempt was started."""
        return int(self.facts.get("committed_before", 0))

    @property
    def trainer_lock(self) -> str | None:
        return self.facts.get("trainer_lock")

    @property
    def ranks(self) -> int:
        """Processes that trained together."""
        return int(self.facts.get("ranks", 1))

    @property
    def devices(self) -> list[int]:
        """The devices of the ranks that were started here, by their numbers."""
        return list(self.facts.get("devices") or [0])

    @property
    def faults(self) -> Path | None:
        """The file of the faults that are to happen."""
        return Path(self.facts["faults"]) if self.facts.get("faults") else None


@dataclass(frozen=True)
class ClosedAttempt:
    """How an attempt ended and what was decided: the whole of wreck.json in `facts`. A damaged file shows when it is asked."""

    facts: Json

    @property
    def ending(self) -> Ending:
        tree = self.facts["ending"]
        return Ending(**{field.name: tree[field.name] for field in fields(Ending) if field.name in tree})

    @property
    def failure_report(self) -> FailureReport | None:
        """None where the run was at its end, and nothing was collected."""
        if "attempt" not in self.facts or "kind" not in self.facts.get("ending", {}):
            return None
        values: dict[str, Any] = {field.name: self.facts.get(field.name) for field in fields(FailureReport)}
        lists = {name: tuple(self.facts.get(name) or ()) for name in ("lines", "samples")}
        return FailureReport(**(values | lists | {"ending": self.ending}))

    @property
    def step(self) -> int | None:
        return self.facts.get("step")

    @property
    def cause(self) -> str:
        return str(self.facts["diagnosis"]["cause"])

    @property
    def decided(self) -> bool:
        """Whether something was decided; not where the user stopped the run."""
        return "decision" in self.facts

    @property
    def goes_on(self) -> bool:
        """Whether another attempt was to follow."""
        return bool(self.facts.get("decision", {}).get("go_on"))

    @property
    def remedy(self) -> str:
        return str(self.facts["decision"]["remedy"])

    @property
    def progressed(self) -> bool:
        """Whether it committed a step."""
        return bool(self.facts["committed_after"] > self.facts["committed_before"])

    @property
    def trials(self) -> int:
        """How often the lab tried its step."""
        return int((self.facts.get("verdict") or {}).get("trials", 0))

    @property
    def by_chance(self) -> bool:
        """Whether the lab saw the step go through as it is."""
        odds = (self.facts.get("verdict") or {}).get("odds")
        return odds is not None and odds[0] < odds[1]


def write_launch_spec(folder: Path, launch: Launch, argv: list[str], **orders: Any) -> None:
    """Write launch.json: how the attempt in `folder` is started, and what it is told."""
    entry = {"argv": argv, "env": launch.env, "settings": launch.settings.as_json(), "ranks": launch.ranks, "devices": launch.devices}
    write_json(folder / _LAUNCH, entry | orders)


def read_launch_spec(folder: Path) -> LaunchSpec | None:
    """Read the orders of the attempt in `folder`; None where none are written, or they are torn."""
    facts = read_json(folder / _LAUNCH)
    return None if facts is None else LaunchSpec(facts)


def close(folder: Path, facts: Json) -> None:
    """Write wreck.json: the attempt in `folder` is dealt with."""
    write_json(folder / _WRECK, facts)


def is_closed(folder: Path) -> bool:
    """True if the attempt in `folder` was dealt with."""
    return (folder / _WRECK).exists()


def closed(folder: Path) -> ClosedAttempt | None:
    """Read how the attempt in `folder` was dealt with; None where it was not, or the file is torn."""
    facts = read_json(folder / _WRECK)
    return ClosedAttempt(facts) if facts else None


def closed_attempts(run: RunFolder) -> Iterator[tuple[int, ClosedAttempt]]:
    """Yield number and end of each attempt that was dealt with, oldest first."""
    for number in run.attempts():
        if found := closed(run.attempt(number)):
            yield number, found
