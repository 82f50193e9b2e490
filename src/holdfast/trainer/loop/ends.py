"""How an attempt ends of an error: its kind, what is said, and the account that is left in result.json. One table."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable
from typing import Any, NamedTuple

from holdfast.base.errors import DeviceGone
from holdfast.base.file_errors import fact_of, remedy_of
from holdfast.base.files import Json, takes_nothing, write_json
from holdfast.processes.rank_environment import device_number
from holdfast.run.outcomes import DISK_TAKES_NOTHING, EndingKind, exit_code
from holdfast.trainer.common.job import Job
from holdfast.trainer.common.oom import OutOfMemory
from holdfast.trainer.common.refuse import Refusal
from holdfast.trainer.distributed.rank import PeerLost
from holdfast.trainer.loop.pressure import BeginAgain
from holdfast.trainer.state.start import DamagedState, NoState


class EndReport(NamedTuple):
    """said: lines for the log; facts: for result.json, None where the exit code says it alone."""

    said: str
    facts: Json | None


ENDS: tuple[tuple[type[Exception], EndingKind, Callable[[Job, Any], EndReport]], ...] = (
    (Refusal, "refused", lambda _, error: EndReport(str(error), {"cause": error.cause, "reason": str(error), "hint": error.hint})),
    (DeviceGone, "device_gone", lambda job, error: EndReport(str(error), _told(error) | {"rank": job.rank, "device": device_number()})),
    (PeerLost, "peer_lost", lambda _, error: EndReport(f"the ranks are not all there any more: {error}", None)),
    (NoState, "no_state", lambda job, error: EndReport(str(error), {"step": job.run.committed()} | _told(error))),
    (DamagedState, "damaged", lambda _, error: _describe_damage(error)),
    (FloatingPointError, "nonfinite", lambda job, error: EndReport(str(error), {"step": job.run.committed() + 1} | _told(error))),
    (OutOfMemory, "out_of_memory", lambda job, error: _out_of_memory(job, error)),
    (BeginAgain, "out_of_memory", lambda _, error: EndReport(str(error), _told(error) | {"again": True})),
    (OSError, "disk_full", lambda _, error: EndReport(_of_a_disk(error), None)),
)


def end_of(job: Job, error: Exception) -> int | None:
    """Report what an error means for the attempt; return its exit code, None where the table has no such error."""
    for kind_of_error, kind, account in ENDS:
        if isinstance(error, kind_of_error) and (kind != "disk_full" or (takes_nothing(error) and not _is_faulty(error))):
            said, facts = account(job, error)
            job.say(f"holdfast: {said}")
            return end(job, kind, **facts) if facts is not None else exit_code(kind)
    return None


def _is_faulty(error: Exception) -> bool:
    """Return whether the disk failed or refuses access, which another attempt may not meet, rather than being full."""
    return isinstance(error, OSError) and error.errno in (errno.EIO, errno.EACCES)


def end(job: Job, kind: EndingKind, **facts: Any) -> int:
    """Leave the attempt's own account and its exit code. Where ranks end alike, the first one's account stands."""
    if job.rank and ((job.folder / "result.json").exists() or kind in ("finished", "interrupted")):
        return exit_code(kind)
    job.leave_another_run()
    with contextlib.suppress(OSError):  # the exit code says the same, in one number
        write_json(job.folder / "result.json", {"kind": kind, **facts})
    return exit_code(kind)


def _of_a_disk(error: OSError) -> str:
    """Say why a disk takes nothing, and what to do: it may have room, and a limit of this user's or of the process be reached."""
    place = f"'{error.filename2 or error.filename}'" if error.filename else "the run or its snapshots"
    return f"{DISK_TAKES_NOTHING}: {fact_of(error, place)} ({error.strerror}): {remedy_of(error)}"


def _told(error: Exception) -> Json:
    return {"reason": str(error)}


def _out_of_memory(job: Job, full: OutOfMemory) -> EndReport:
    """Describe what did not fit although everything was tried; a sample alone is named, because no setting can help it."""
    step, batch = job.run.committed() + 1, full.batch
    if batch is None:
        reason = f"{full.what} does not fit into memory: {full}"
        return EndReport(f"out of memory before or in step {step}: {reason}", {"reason": reason, "device": full.device})
    reason = f"one sample of {batch.tokens} tokens does not fit into memory: {batch.sources[0]}"
    facts = {"reason": reason, "device": full.device, "step": step, "samples": list(batch.numbers)}
    return EndReport(f"out of memory at step {step}: {reason} ({full})", facts)


def _describe_damage(error: DamagedState) -> EndReport:
    """Describe a state that training cannot have produced, with each newer one that was rejected before it."""
    assert error.found.snapshot is not None
    return EndReport("\nholdfast: ".join(error.told), {"step": error.found.snapshot.step, "sound": error.sound, "damaged": error.told})
