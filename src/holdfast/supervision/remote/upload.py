"""Send a run's newest checkpoints to another place, from a process of its own: what fails or hangs there never touches the training.

    python -m holdfast.supervision.remote.upload RUN ADDRESS KEEP [EVERY]

It looks for a checkpoint that was not sent yet, and ends after a last look when it is told to (SIGTERM) or its parent is gone. Meanwhile
it holds the place's lease; where another machine has that, nothing more is sent and the training here is asked to stop. EVERY: of a
command, fewest steps between two states of its callback's.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from holdfast.base.errors import Stop
from holdfast.base.wait import Flag
from holdfast.processes.process import ask_newest_to_stop
from holdfast.run.folder import RunFolder
from holdfast.supervision.remote.lease import Lease
from holdfast.supervision.remote.of_command import CommandSender
from holdfast.supervision.remote.state import Sender
from holdfast.supervision.remote.targets import target_of

LOOK_S, LONGEST_S = 1.0, 60.0  # between looks; between tries while the place cannot be reached


def main(run: RunFolder, address: str, keep: int, every: int = 1) -> int:
    """Send until told to end; 0 where the newest checkpoint is there at the end."""
    told, parent = Flag(), os.getppid()
    signal.signal(signal.SIGTERM, lambda *_: told.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    target, foreign = target_of(address), run.command_file.exists()
    sender = CommandSender(run, target, every=every) if foreign else Sender(run, target)
    with Lease(run, target_of(address)) as lease:
        if _send_until(told, lambda: os.getppid() != parent, sender, lease, keep):
            return 0
    if lease.lost.is_set():
        run.event("lease_lost", to=address, holder=lease.holder)
        if foreign and os.getppid() == parent:
            os.kill(parent, signal.SIGTERM)  # as its user would; a command that were signalled itself would be started again
        while not foreign and not told.is_set() and os.getppid() == parent:  # a trainer that only starts can be asked a little later
            ask_newest_to_stop(run)
            told.wait(LOOK_S)
    return 1


def _send_until(told: Flag, orphaned: Callable[[], bool], sender: Sender, lease: Lease, keep: int) -> bool:
    """Send each new checkpoint until told to end, or the lease is lost; return whether the newest one is there at the end."""
    run, address = sender.run, sender.target.address
    sent: tuple[int, object] | None = None
    wait_s, failure = LOOK_S, ""
    while not lease.lost.is_set():
        last = told.is_set() or orphaned()
        now = sender.newest(last)
        if now is not None and now != sent:
            try:
                lease.beat()
                if lease.lost.is_set():
                    break
                if (state := sender.send(keep)) is not None:
                    run.event(
                        "state_sent",
                        step=state.step,
                        to=address,
                        bytes=state.bytes,
                        new_bytes=state.new_bytes,
                        seconds=round(state.seconds, 3),
                    )
                    sent = sender.marked(state, now)
                wait_s, failure = LOOK_S, ""
            except OSError as error:
                if str(error) != failure:
                    failure = str(error)
                    run.event("state_not_sent", to=address, step=now[0], reason=failure)
                wait_s = min(2 * wait_s, LONGEST_S)
        if last:
            return now is None or (sent is not None and sent[0] >= now[0])
        until = time.monotonic() + wait_s
        while time.monotonic() < until and not told.wait(LOOK_S):  # one that shows no sign for long is taken for one that hangs
            pass
    return False


if __name__ == "__main__":
    try:
        raise SystemExit(main(RunFolder(Path(sys.argv[1])), sys.argv[2], *map(int, sys.argv[3:5])))
    except Stop as stop:
        RunFolder(Path(sys.argv[1])).event("state_not_sent", to=sys.argv[2], reason=str(stop))
        print(f"holdfast: {stop}", file=sys.stderr, flush=True)
        raise SystemExit(stop.code) from None
