"""The processes of one attempt, one a rank: started together, ended together. Standard library only; decides no restart."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.base.signal_names import at_limit, children_s
from holdfast.callback.standby import READY, STANDBY, TAKEN
from holdfast.processes.rank_environment import listen, rank_variables
from holdfast.processes.tree import bytes_read, cpu_seconds
from holdfast.run.outcomes import kind_by_code

_GRACE_S = {"peer_lost": 5.0, "device_gone": 0.0, "elsewhere": 0.0, None: 0.0}  # for the others to end by themselves; None: it died
_GRACE_DECIDED_S = 30.0
TAKE_S = 5.0  # for it to answer; it has only to open its streams
_LOOK_S, _LONGEST_S = 2.0, 120.0  # for one that still imports: it is ahead of a plain start as long as it reads or computes


class Trainers:
    """Processes that compute nothing without each other. The group of one is the usual case."""

    def __init__(
        self, argv: list[str], devices: Sequence[int], environment: dict[str, str], inherited: tuple[int, ...], **streams: Any
    ) -> None:
        self.codes: dict[int, int] = {}  # by rank, in the order in which the ends were seen
        self.killed: set[int] = set()
        self.limits: dict[int, dict[str, Any]] = {}  # by rank, what is known of a limit that ended it
        self.deadline: float | None = None
        self.sessions = bool(streams.get("start_new_session"))  # each leads one of its own
        size = len(devices)
        if size == 1:
            own = {"LOCAL_RANK": str(devices[0])} if devices[0] else {}
            self.processes = [subprocess.Popen(argv, env=environment | own, pass_fds=inherited, **streams)]
            return
        self.processes = []
        with listen() as meeting:
            for number, device in enumerate(devices):
                variables = rank_variables(number, device, size, meeting, environment)
                descriptors = inherited if number else (*inherited, meeting.fileno())
                try:
                    self.processes.append(subprocess.Popen(argv, env=environment | variables, pass_fds=descriptors, **streams))
                except OSError:  # no process or memory for it: those that are there would wait for it, and hold the lock
                    self.kill()
                    raise

    @property
    def living(self) -> list[int]:
        """Pids of those that have not ended."""
        return [process.pid for rank, process in enumerate(self.processes) if rank not in self.codes]

    def poll(self) -> int | None:
        """Return the exit code of the attempt once all have ended, None before. A rank that died takes the others with it."""
        for rank, process in enumerate(self.processes):
            before = children_s()
            if rank not in self.codes and (code := process.poll()) is not None:
                self.codes[rank], self.limits[rank] = code, at_limit(code, children_s() - before)
        if len(self.codes) == len(self.processes):
            return self.codes[self.guilty]
        if self.codes and (grace := self._grace_s(self.codes[self.guilty])) is not None:
            self.deadline = min(self.deadline or time.monotonic() + grace, time.monotonic() + grace)
            if time.monotonic() >= self.deadline:
                self.kill()
        return None

    @property
    def guilty(self) -> int:
        """The rank whose end was the attempt's: the first that did not merely lose another, and that we did not kill."""
        own = [rank for rank in self.codes if rank not in self.killed]
        died = [rank for rank in own if kind_by_code(self.codes[rank]) not in ("peer_lost", "finished", "interrupted")]
        return (died or own)[0]

    def send_signal(self, number: int) -> None:
        for rank, process in enumerate(self.processes):
            if rank not in self.codes:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number) if self.sessions else process.send_signal(number)

    def kill(self) -> None:
        """End those that live."""
        for rank, process in enumerate(self.processes):
            if rank not in self.codes and rank not in self.killed and process.poll() is None:
                self.killed.add(rank)
                process.kill()

    def tell(self, line: str) -> bool:
        """Write a line to each one's standard input and close it; return whether all are there to read it."""
        for process in self.processes:
            assert process.stdin is not None
            with contextlib.suppress(OSError):
                process.stdin.write(line.encode())
                process.stdin.close()
        return all(process.poll() is None for process in self.processes)

    @staticmethod
    def _grace_s(code: int) -> float | None:
        """Return the seconds until the others are ended; None: they will end by themselves, after what they have to do."""
        kind = kind_by_code(code)
        return None if kind in ("finished", "interrupted") else _GRACE_S.get(kind, _GRACE_DECIDED_S)


class WaitingCommand(Trainers):
    """A command's Python that waits with its imports done (callback/standby.py), the leader of a session; it ends with this process."""

    def __init__(self, orders: dict[str, Any], environment: dict[str, str], lock: int) -> None:
        self.before = environment
        self.heard, answer = os.pipe()
        told = environment | {STANDBY: f"{answer}:{orders['modules']}"}
        streams: dict[str, Any] = {"stdin": subprocess.PIPE, "cwd": orders["folder"], "start_new_session": True}
        super().__init__(orders["argv"], [0], told, (lock, answer), **streams)
        os.close(answer)

    def become(self, launch: dict[str, Any], environment: dict[str, str], terminal: int | None, attempt: Path) -> bool:
        """Give it the attempt; return whether it took it. One that hangs, does not answer or is of another start is gone afterwards."""
        order = {name: launch.get(name) for name in ("argv", "folder", "stdin")} | {
            "before": self.before,
            "environment": environment,
            "terminal": terminal is not None,
            "output": os.ttyname(terminal) if terminal is not None else str(attempt / "output.log"),
        }
        taken = self._is_ready() and self.tell(json.dumps(order) + "\n") and self._answers()
        os.close(self.heard)
        if not taken:
            self.kill()
            self.processes[0].wait()
        return taken

    def _is_ready(self) -> bool:
        pids, worked, until = self.living, (-1.0, 0), time.monotonic() + _LONGEST_S
        while worked != (worked := (cpu_seconds(pids), bytes_read(pids))) and time.monotonic() < until:
            if select.select([self.heard], [], [], _LOOK_S)[0]:
                return os.read(self.heard, 1) == READY
        return False

    def _answers(self) -> bool:
        return bool(select.select([self.heard], [], [], TAKE_S)[0]) and os.read(self.heard, 1) == TAKEN
