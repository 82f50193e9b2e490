"""Send a run's newest checkpoints to another place, from a process of its own: what fails or hangs there never touches the training.

    python -m holdfast.world.upload RUN ADDRESS KEEP

It looks for a checkpoint that was not sent yet, and ends after a last look when it is told to (SIGTERM) or its parent is gone.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

from holdfast.core.errors import Stop
from holdfast.core.run.checkpoint import checkpoint_steps
from holdfast.core.run.folder import RunFolder
from holdfast.world.state_away import Sender
from holdfast.world.targets import target_of

LOOK_S, LONGEST_S = 1.0, 60.0  # between looks; between tries while the place cannot be reached


def main(run: RunFolder, address: str, keep: int) -> int:
    """Send until told to end; 0 where the newest checkpoint is there at the end."""
    told, parent = threading.Event(), os.getppid()
    signal.signal(signal.SIGTERM, lambda *_: told.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sender = Sender(run, target_of(address))
    sent: tuple[int, bool] | None = None
    wait_s, failure = LOOK_S, ""
    while True:
        last = told.is_set() or os.getppid() != parent
        steps = checkpoint_steps(run)
        now = (steps[-1], run.summary_file.exists()) if steps else None
        if now is not None and now != sent:
            try:
                state = sender.send(keep)
                if state is not None:
                    run.event(
                        "state_sent",
                        step=state.step,
                        to=address,
                        bytes=state.bytes,
                        new_bytes=state.new_bytes,
                        seconds=round(state.seconds, 3),
                    )
                    sent = (state.step, now[1])
                wait_s, failure = LOOK_S, ""
            except OSError as error:
                if str(error) != failure:
                    failure = str(error)
                    run.event("state_not_sent", to=address, step=now[0], reason=failure)
                wait_s = min(2 * wait_s, LONGEST_S)
        if last:
            return 0 if now is None or (sent is not None and sent[0] >= now[0]) else 1
        told.wait(wait_s)


if __name__ == "__main__":
    try:
        raise SystemExit(main(RunFolder(Path(sys.argv[1])), sys.argv[2], int(sys.argv[3])))
    except Stop as stop:
        RunFolder(Path(sys.argv[1])).event("state_not_sent", to=sys.argv[2], reason=str(stop))
        print(f"holdfast: {stop}", file=sys.stderr, flush=True)
        raise SystemExit(stop.code) from None
