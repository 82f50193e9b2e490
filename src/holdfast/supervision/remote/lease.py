"""Who trains the run of a second place: one machine at a time, though they share neither locks nor a clock.

`lease.json` there says who, and counts on while they live. Whoever comes looks whether that count still moves, never at a time of day:
clocks of two machines may be hours apart. A store has no lock to take, so two that come in the same moment both write; the one whose
name does not stay there hears of it at its next beat, and stops.
"""

from __future__ import annotations

import contextlib
import platform
import secrets
import threading
import time
from typing import Any

import orjson

from holdfast.base.errors import BLOCKED, Stop
from holdfast.base.files import Json, read_json, write_json
from holdfast.base.locks import Tell
from holdfast.run.folder import RunFolder
from holdfast.supervision.remote.targets import Target

LEASE = "lease.json"
BEAT_S = 15.0
_SILENT_BEATS = 6  # after which nobody is there any more
_LONGEST_BEAT_S = 600.0


def lease_at(target: Target) -> Json | None:
    """Return the note there of who trains the run; None where nobody does, or it is no lease. Raises OSError."""
    try:
        value: Any = orjson.loads(target.read(LEASE))
        known = {name: value[name] for name in ("token", "host", "folder", "since", "beat", "beat_s")}
        known["beat_s"] = float(known["beat_s"])
        right = isinstance(known["beat"], int) and 0 < known["beat_s"] <= _LONGEST_BEAT_S
    except (FileNotFoundError, orjson.JSONDecodeError, KeyError, TypeError, ValueError):
        return None
    return known if right else None


def who(lease: Json) -> str:
    """Describe the holder of a lease."""
    return f"{lease['host']} (in {lease['folder']}, since {lease['since']} by its clock)"


def free_lease(target: Target, run: RunFolder, tell: Tell) -> None:
    """Return once nobody else trains the run of this place. Raises Stop(1) where somebody does, OSError where it cannot be read.

    A holder that says nothing for six of its beats is gone: its lease is taken away. One that was only held up finds another's name there
    when it goes on, and stops.
    """
    first = lease_at(target)
    if first is None or _is_ours(first, run):
        return
    silent_s = _SILENT_BEATS * first["beat_s"]
    tell(f"{target.address} is trained by {who(first)}: looking for up to {silent_s:.0f} s whether it still is")
    until = time.monotonic() + silent_s
    while time.monotonic() < until:
        time.sleep(min(first["beat_s"] / 3, 2.0))
        now = lease_at(target)
        if now is None:
            return
        if now != first:
            text = f"the run at {target.address} is being trained by {who(now)}"
            wait = f"once that machine is silent for {silent_s:.0f} s, the same command takes the run over here"
            raise Stop(BLOCKED, text, f"stop it there with holdfast stop; {wait}")
    tell(f"it said nothing for {silent_s:.0f} s: the run is taken over here")
    target.remove(LEASE)


class Lease:
    """Holds the lease of a place for a run while it trains, from a thread of its own; `lost` is set once another has it."""

    def __init__(self, run: RunFolder, target: Target) -> None:
        self.run, self.target = run, target
        self.lost, self.holder = threading.Event(), ""
        self._ended, self._beat, self._at_once = threading.Event(), 0, threading.Lock()
        self._since = time.strftime("%F %T")
        self._thread = threading.Thread(target=self._hold, daemon=True)

    def __enter__(self) -> Lease:
        if _token(self.run) is None:
            write_json(self.run.path / LEASE, {"token": secrets.token_hex(16)})
        with contextlib.suppress(OSError):  # as good as a beat that is missed
            self.beat()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Give it back, so that nobody has to wait for a silence."""
        self._ended.set()
        self._thread.join(2 * BEAT_S)
        with contextlib.suppress(OSError):
            if (now := lease_at(self.target)) is not None and _is_ours(now, self.run):
                self.target.remove(LEASE)

    def beat(self) -> None:
        """See that the lease is still ours, and count on. Raises OSError where the place cannot be reached."""
        with self._at_once:
            now = lease_at(self.target)
            if now is not None and not _is_ours(now, self.run):
                self.holder = who(now)
                self.lost.set()
            if self.lost.is_set():
                return
            self._beat += 1
            facts = _ours(self.run) | {"since": self._since, "beat": self._beat, "beat_s": BEAT_S}
            self.target.put(LEASE, orjson.dumps(facts))

    def _hold(self) -> None:
        while not self._ended.wait(BEAT_S) and not self.lost.is_set():
            with contextlib.suppress(OSError):  # the next one may get through
                self.beat()


def _token(run: RunFolder) -> str | None:
    """Return what tells this folder from a copy of the run elsewhere; it is never sent along."""
    value = (read_json(run.path / LEASE) or {}).get("token")
    return value if isinstance(value, str) else None


def _ours(run: RunFolder) -> Json:
    return {"token": _token(run), "host": platform.node(), "folder": str(run.path)}


def _is_ours(lease: Json, run: RunFolder) -> bool:
    """True if a lease is this folder's own: whoever works here is settled by the folder's lock then. A copy of it is another."""
    ours = _ours(run)
    return ours["token"] is not None and all(lease[name] == value for name, value in ours.items())
