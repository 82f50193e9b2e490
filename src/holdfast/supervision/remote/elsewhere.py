"""A run that is kept at a second place (`save.to`): its states sent there while it trains, and fetched where this machine has none."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from holdfast.base.child import module_command
from holdfast.base.errors import BLOCKED, Stop
from holdfast.base.files import Json, read_json, write_json
from holdfast.base.locks import Tell, taken
from holdfast.base.units import listed, span
from holdfast.checkup.examine import examine
from holdfast.config.config import Config
from holdfast.machine.differences import unlike
from holdfast.machine.machine_file import training_devices
from holdfast.machine.read import read_machine
from holdfast.report.words import shown
from holdfast.run.folder import RunFolder
from holdfast.run.timeline import read_timeline, settings_of_process
from holdfast.supervision.companions.watched import Helper, looking
from holdfast.supervision.remote.lease import free_lease
from holdfast.supervision.remote.state import fetch, is_of_here, read_run_id, states_at, taken_back
from holdfast.supervision.remote.targets import Target, target_of

_AT_ONCE_S, _LAST_WORD_S = 2, 900  # for the last state, at the end of a run: without a word, and at all


@contextlib.contextmanager
def sending(run: RunFolder, address: str | None, keep: int, hang_s: float, tell: Tell, every: int = 1) -> Iterator[None]:
    """Send the run's newest states to `address` while this lasts; at its end the last one is seen there, or it is told.

    keep: states kept there; every: fewest steps between two of a command's callback's.
    """
    if address is None:
        yield
        return

    def ended(silent: float) -> None:
        run.event("state_not_sent", to=address, step=None, reason=f"the process that sends gave no sign of life for {span(silent)}")

    command = module_command("holdfast.supervision.remote.upload", run.path, address, keep, every)
    sender = Helper(command, run.path / "upload.log", hang_s, ended)
    try:
        with looking(sender.look):
            yield
    finally:
        sender.child.terminate()
        code = sender.end(_AT_ONCE_S)
        if code is None:
            tell(f"sending the newest state to {address}")
            code = sender.end(_LAST_WORD_S)
        if code is None:
            sender.child.kill()
            sender.child.wait()
        if code != 0:
            tell(_why_not_there(run, address))


def _why_not_there(run: RunFolder, address: str) -> str:
    known = ("state_sent", "state_not_sent", "lease_lost")
    last = next((event for event in reversed(list(run.events())) if event["event"] in known), {})
    if last.get("event") == "lease_lost":
        return f"the run at {address} went on elsewhere, with {last['holder']}: it was stopped here, and nothing more is sent"
    why = last.get("reason") or f"see {shown(run.path / 'upload.log')}"
    then = "" if run.command_file.exists() else f"; send it with: holdfast move {shown(run.path)} --to {address}"
    return f"the newest state is not at {address}: {why}{then}"


def fetched(path: Path, config: Config, tell: Tell) -> None:
    """Make `path` the run's state at `save.to` where that is newer. What was there is renamed, never deleted.

    Raises Stop(1) where another machine trains the run meanwhile.
    """
    if config.save.to is not None:
        fetch_newer(path, config.save.to, tell, RunFolder.committed, lambda target: int(take_from(target, path, tell)["step"]))


def fetch_newer(path: Path, address: str, tell: Tell, reached: Callable[[RunFolder], int], take: Callable[[Target], int]) -> None:
    """Have `take` make `path` the newest state of a place, where that is newer than what is `reached` here. Raises Stop."""
    target, aside = target_of(address), None
    try:
        here = RunFolder(path)
        free_lease(target, here, tell)
        steps = states_at(target)
        if not steps:
            return
        if here.begun() and not _is_behind(here, target, steps[-1], reached(here)):
            return
        if (taken(here.supervisor_lock) or taken(here.trainer_lock)) and is_of_here(target, steps[-1]):
            return  # what is at work here has sent it, and is ahead of its own journal
        aside = _moved_aside(here, reached(here), tell) if path.exists() and any(path.iterdir()) else None
        step = take(target)
        tell(f"fetched the state after step {step} from {target.address} into {shown(path)}")
    except OSError as error:
        text = f"{target.address} cannot be read: {error.strerror or error}"
        raise Stop(
            BLOCKED, text, "look at the connection and the credentials; without that place the run goes on from what is here"
        ) from None
    except Stop:
        if aside is not None:
            aside.rename(path)
        raise


def take_from(target: Target, path: Path, tell: Tell) -> Json:
    """Fetch the newest state that verifies into `path` and look at this machine for it; return what was found. Raises Stop and OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir() and not any(path.iterdir()):
        path.rmdir()
    step, passed_over = fetch(target, path)
    for one in passed_over:
        tell(f"passed over the state of step {one['state']}: {one['reason']}")
    run = RunFolder(path)
    differing, findings = compared(run, read_machine(path))
    run.event("fetched", step=step, address=target.address, passed_over=passed_over, machine=differing)
    for line in differing:
        tell(f"this machine differs: {line}")
    return {"step": step, "passed_over": passed_over, "differences": differing, "findings": findings}


def compared(run: RunFolder, machine: Json) -> tuple[list[str], list[Json]]:
    """Return how another machine differs from the run's, and what the doctor says there; the run's machine becomes that one.

    Raises Stop(1) where the run cannot go on there.
    """
    differing, findings = judged(run, machine)
    write_json(run.machine_file, machine)
    return differing, findings


def judged(run: RunFolder, machine: Json) -> tuple[list[str], list[Json]]:
    """Return the same as `compared`, and write nothing."""
    before = read_json(run.machine_file) or {}
    found = examine(machine, run.config(), run.plan())
    if blocking := [finding for finding in found if finding.severity == "block"]:
        raise Stop(BLOCKED, "\n".join(one.message for one in blocking), "\n  -> ".join(one.fix for one in blocking))
    device = settings_of_process(read_timeline(run.timeline_file)).device
    if device == "cuda" and not training_devices(machine):
        text = "the run computes on a GPU, and that machine has none that training could use"
        raise Stop(BLOCKED, text, "take a machine with one: holdfast doctor says there what is missing")
    differing = unlike(before, machine)
    return differing, [{"id": one.id, "severity": one.severity, "message": one.message} for one in found if one.severity == "warn"]


def _is_behind(here: RunFolder, target: Target, step: int, reached: int) -> bool:
    """True if the state over there is a later one of the same run, and was not taken back here since.

    Raises Stop(1) where another run's is there.
    """
    other, own = read_run_id(target), (read_json(here.path / "run.json") or {}).get("id")
    if own is not None and other != own:
        text = f"{target.address} holds another run than {here.path} ({listed([str(other)[:12], str(own)[:12]])})"
        raise Stop(BLOCKED, text, "give each run a place of its own: another save.to or --to, or another --run")
    return step > reached and not taken_back(here, target, step)


def _moved_aside(here: RunFolder, step: int, tell: Tell) -> Path:
    """Rename a run folder whose run went on elsewhere. Raises Stop(1) where somebody works on it."""
    if taken(here.supervisor_lock) or taken(here.trainer_lock):
        name = shown(here.path)
        text = f"the run went on elsewhere, and {name} is still at work here, at step {step}"
        raise Stop(BLOCKED, text, f"see what it does: holdfast status {name}; end it: holdfast stop {name}; then repeat the command")
    aside = next(
        place
        for number in range(1000)
        if not (place := here.path.with_name(f"{here.path.name}.behind-{step}{f'-{number}' if number else ''}")).exists()
    )
    here.path.rename(aside)
    tell(f"the run went on elsewhere; what was here, up to step {step}, is kept as {shown(aside)}")
    return aside
