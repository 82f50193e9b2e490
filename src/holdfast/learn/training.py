"""Have `holdfast train` do a round's training: in processes of its own, which may outlive us and are found again."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import orjson

from holdfast.base.child import module_command
from holdfast.base.errors import BLOCKED, DONE, GAVE_UP, INTERRUPTED, OUR_BUG, Stop
from holdfast.base.files import Json, read_json
from holdfast.base.locks import taken
from holdfast.run.attempt import closed_attempts
from holdfast.run.folder import RunFolder

_LOOK_S = 0.2
_OF_THE_MACHINE = ("disk_full", "device_gone", "peer_lost", "stuck")  # endings that say nothing of the rows


def train(config: str, settings: list[str], folder: Path) -> Json:
    """Train to the end, or go on with what a killed call left; summary.json. A run that was given up for its steps is an answer, too.

    Raises Stop where it cannot begin (exit codes 1, 2), where the user stopped it (130) and where a disk or a device ended it (3): the
    same call goes on.
    """
    lock = RunFolder(folder).supervisor_lock
    command = module_command("holdfast", "train", config, *settings, "--run", folder, "--json", "--quiet")
    while True:
        while lock.exists() and taken(lock):  # of a call that was killed, its supervisor may live
            time.sleep(_LOOK_S)
        code, out = _run(command, folder.with_name("training.log"))
        if code != BLOCKED or not taken(lock):  # one that was just being started holds it only now
            break
    try:
        answer: Json = orjson.loads(out)
    except orjson.JSONDecodeError:
        raise Stop(OUR_BUG, f"holdfast train ended with exit code {code} and no answer", f"read {folder}") from None
    if code == INTERRUPTED:
        raise Stop(INTERRUPTED, "interrupted while the round was training; what was trained is saved", "the same command goes on")
    if code not in (DONE, GAVE_UP):
        raise Stop(code, f"the round's training cannot begin: {answer.get('error')}", answer.get("hint") or "")
    if code == GAVE_UP and not _is_of_its_steps(RunFolder(folder), answer):
        text = f"the round's training did not come to its end: {answer.get('reason') or answer.get('error')}"
        raise Stop(GAVE_UP, text, "put that right, then repeat the command: the round goes on")
    return answer


def _is_of_its_steps(run: RunFolder, answer: Json) -> bool:
    """True if a run was given up for what its steps did, as its summary says; False where a disk or a device stood in its way."""
    if answer.get("reason") != (read_json(run.summary_file) or {}).get("reason"):  # nothing could be decided, or written down
        return False
    reports = [one.failure_report for _, one in closed_attempts(run)]
    last = reports[-1] if reports else None
    return last is None or not (last.disk_is_full or last.ending.kind in _OF_THE_MACHINE)


def _run(command: list[str], log: Path) -> tuple[int, bytes]:
    """Run a command; return its exit code and stdout; its stderr goes to the log.

    A signal that asks us to stop is passed on to it, once for each, and its end waited for. It has a session of its own, so
    that Ctrl-C does not reach it twice.
    """
    children: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, _: object) -> None:
        for child in children:
            child.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with log.open("ab") as said:
            child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said, start_new_session=True)
        children.append(child)
        out, _ = child.communicate()
        return child.returncode, out
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
