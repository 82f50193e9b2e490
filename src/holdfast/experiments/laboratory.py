"""Experiments with a run that has not begun, in throw-away children: ask for one, get what came of it. Concludes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.base.child import with_env
from holdfast.base.files import Json, read_json, write_json
from holdfast.experiments.hosts import Host
from holdfast.experiments.replay import START_S, new_folder
from holdfast.run.folder import RunFolder

STEP_S = 600.0  # most seconds of one experiment, where nothing shorter is asked for


class Laboratory:
    """The children of one prepared run, a living one at a time; one that crashes or hangs is gone, and the next question gets another.

    `environment`: of the children; `faults`: the file with what is to break, for rehearsals. `most_s`: patience with one experiment.
    """

    def __init__(
        self,
        run: RunFolder,
        environment: dict[str, str],
        faults: str | None,
        tell: Callable[[str], None],
        most_s: float = STEP_S,
        start_s: float = START_S,
    ) -> None:
        self.run, self.environment, self.faults, self.tell = run, environment, faults, tell
        self.most_s, self.start_s = most_s, start_s
        self.host: Host | None = None
        self.key = ""
        self.asked = self.started = 0

    def __enter__(self) -> Laboratory:
        return self

    def __exit__(self, *_: object) -> None:
        self.let_go()

    def let_go(self) -> None:
        """End the living child, so that the next question is asked in a fresh process. Raises Stuck."""
        if self.host is not None:
            host, self.host = self.host, None
            host.close()

    def ask(self, kind: str, *, env: dict[str, str | None] | None = None, most_s: float | None = None, **request: Any) -> Json:
        """Run an experiment and return its outcome: `ending` is "finished" or how it failed; `folder` holds what it kept. Raises Stuck."""
        folder = new_folder(self.run)
        self.asked += 1
        write_json(folder / "request.json", {"kind": kind, "attempt": 1, "faults": self.faults, "env": env or {}, **request})
        began = time.monotonic()
        ending = self._of(env or {}).ask(folder, self.start_s, most_s or self.most_s)
        outcome = read_json(folder / "outcome.json") or {"ending": ending}
        outcome |= {"seconds_in_all": round(time.monotonic() - began, 3), "folder": str(folder)}
        if outcome["ending"] != "finished":
            outcome["log"] = last_words(folder / "output.log")
        write_json(folder / "trial.json", outcome)
        return outcome

    def _of(self, env: dict[str, str | None]) -> Host:
        key = str(sorted(env.items()))
        if self.host is not None and (key != self.key or not self.host.alive()):
            self.let_go()
        if self.host is None:
            self.host, self.key = Host(self.run, with_env(self.environment, env), "laboratory"), key
            self.started += 1
        return self.host


def last_words(log: Path, most: int = 3) -> list[str]:
    """Return the last lines of a child's log that say something."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    return [line.strip()[:300] for line in lines if line.strip() and not line.startswith(("  File", "Extension modules"))][-most:]


def finished(outcome: Json) -> bool:
    """Return whether an experiment came to its end, whatever it found."""
    return bool(outcome["ending"] == "finished")


def succeeded(outcome: Json) -> bool:
    """Return whether an experiment finished, and all its numbers are finite."""
    return finished(outcome) and bool(outcome["finite"])


def how(outcome: Json) -> str:
    """Say how an experiment failed."""
    said = next((line for line in reversed(outcome.get("log") or []) if not line.startswith("Current thread")), "")
    return f"{outcome['ending']}{f' ({said})' if said and said not in outcome['ending'] else ''}"
