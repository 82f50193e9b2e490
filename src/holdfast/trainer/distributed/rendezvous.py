"""Where ranks meet: a store of torch.distributed, on a socket of ours or at the address that another launcher gave. Decides nothing."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from functools import cache
from typing import Any

import torch.distributed as dist

from holdfast.base.errors import error_message
from holdfast.processes.rank_environment import STARTED_BY, STORE_DESCRIPTOR
from holdfast.trainer.common.refuse import Refusal
from holdfast.trainer.distributed.rank import PeerLost

_JOIN = timedelta(minutes=10)
_LOOK_S = 0.1
_TAKEN_S = 10.0  # the first rank of an attempt that has just ended may still be letting go of its port
_ATTEMPT = "holdfast/attempt"


def store_of(number: int, attempt: int) -> Any:
    """Open the store in which the ranks of `attempt` meet. Raises PeerLost where they do not, Refusal where they cannot."""
    try:
        if STARTED_BY in os.environ:
            return _own_store(number)
        if number == 0:
            _listening().set(_ATTEMPT, str(attempt))
        return dist.PrefixStore(f"holdfast/{attempt}", _launchers_store())  # type: ignore[attr-defined]
    except (RuntimeError, OSError) as error:  # dist.DistError is a RuntimeError
        raise PeerLost(f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}: {error_message(error)}") from None


def announced(at_least: int) -> int:
    """Wait for the first rank to be in attempt `at_least` or a later one; return its number. Raises PeerLost.

    Needed because torchrun's store outlives attempts.
    """
    deadline = time.monotonic() + _JOIN.total_seconds()
    try:
        while (number := int(_launchers_store().get(_ATTEMPT))) < at_least and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
        return number
    except (RuntimeError, OSError) as error:
        raise PeerLost(f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}: {error_message(error)}") from None


def _listening() -> Any:
    """Listen at the launcher's address, as the first rank does. Raises Refusal where another program keeps listening there."""
    deadline = time.monotonic() + _TAKEN_S
    while True:
        try:
            return _launchers_store()
        except RuntimeError as error:
            if "EADDRINUSE" not in str(error):
                raise
        if time.monotonic() > deadline:
            port = os.environ["MASTER_PORT"]
            text = f"port {port}, where the launcher has the ranks meet (MASTER_PORT), is taken on this machine by another program"
            hint = f"start with another port, or end what listens there (ss -ltnp 'sport = :{port}'); the same command goes on with the run"
            raise Refusal("launch_misconfigured", text, hint)
        time.sleep(_LOOK_S)


@cache
def _launchers_store() -> Any:
    """Connect to torchrun's own store where it keeps one, else to the first rank's, at the launcher's address."""
    store, _, _ = next(dist.rendezvous("env://", int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), timeout=_JOIN))  # type: ignore[attr-defined]
    store.set_timeout(_JOIN)
    return store


def _own_store(number: int) -> Any:
    """Open the store on the shim's socket, which listened before any rank was started: no port is guessed, none can be taken meanwhile."""
    listening = os.environ.get(STORE_DESCRIPTOR)
    return dist.TCPStore(  # type: ignore[attr-defined]
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        int(os.environ["WORLD_SIZE"]),
        is_master=number == 0,
        timeout=_JOIN,
        wait_for_workers=False,
        master_listen_fd=int(listening) if listening and number == 0 else None,
    )
