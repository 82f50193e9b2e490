"""Have `holdfast train` do a round's training: in processes of its own, which may outlive us and are found again."""

from __future__ import annotations

import subprocess
import sys
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
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=sys.stderr, check=False)
    try:
        answer: Json = orjson.loads(done.stdout)
    except orjson.JSONDecodeError:
        raise Stop(OUR_BUG, f"holdfast train ended with exit code {done.returncode} and no answer", f"read {folder}") from None
    if done.returncode == INTERRUPTED:
        raise Stop(INTERRUPTED, "interrupted while the round was training; what was trained is saved", "the same command goes on")
    if done.returncode not in (DONE, GAVE_UP):
        raise Stop(done.returncode, f"the round's training cannot begin: {answer.get('error')}", answer.get("hint") or "")
    return answer
