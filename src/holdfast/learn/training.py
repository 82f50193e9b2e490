"""Have `holdfast train` do a round's training: in processes of its own, which may outlive us and are found again."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import orjson

from holdfast.base.child import module_command
from holdfast.base.errors import DONE, GAVE_UP, INTERRUPTED, OUR_BUG, Stop
from holdfast.base.files import Json
from holdfast.base.locks import taken
from holdfast.run.folder import RunFolder

_LOOK_S = 0.2


def train(config: str, settings: list[str], folder: Path) -> Json:
    """Train to the end, or go on with what a killed call left; summary.json. A run that was given up is an answer, too.

    Raises Stop where it cannot begin (exit codes 1, 2) and where the user stopped it (130): the same call goes on.
    """
    lock = RunFolder(folder).supervisor_lock
    while lock.exists() and taken(lock):  # of a call that was killed, its supervisor may live
        time.sleep(_LOOK_S)
    command = module_command("holdfast", "train", config, *settings, "--run", folder, "--json", "--quiet")
    code, out = _run(command, folder.with_name("training.log"))
    try:
        answer: Json = orjson.loads(out)
    except orjson.JSONDecodeError:
        raise Stop(OUR_BUG, f"holdfast train ended with exit code {code} and no answer", f"read {folder}") from None
    if code == INTERRUPTED:
        raise Stop(INTERRUPTED, "interrupted while the round was training; what was trained is saved", "the same command goes on")
    if code not in (DONE, GAVE_UP):
        raise Stop(code, f"the round's training cannot begin: {answer.get('error')}", answer.get("hint") or "")
    return answer


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
