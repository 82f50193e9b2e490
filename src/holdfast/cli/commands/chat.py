"""`holdfast chat RUN`: talk to the base and the tuned model side by side."""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path

from holdfast.base.child import trainer_command
from holdfast.base.errors import BLOCKED, DONE, Stop
from holdfast.base.files import Json
from holdfast.base.tasks import kind_of
from holdfast.run.folder import RunFolder
from holdfast.run.snapshots.memory_places import SHARED_MEMORY, sweep
from holdfast.supervision.launch import child_environment, trainer_launch

EXAMPLE = "holdfast chat runs/quickstart"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_folder", type=Path, metavar="RUN", help="a finished run")


def run(arguments: argparse.Namespace) -> tuple[int, Json]:
    sweep(SHARED_MEMORY)
    folder = RunFolder(arguments.run_folder.resolve()).existing()
    folder.refuse_foreign()
    if not (kind := kind_of(folder.config())).chats:
        raise Stop(BLOCKED, f"{folder.path} trained {kind.what}, which nobody can talk to", "its report says how to use what it made")
    if not folder.artifact.exists():
        raise Stop(
            BLOCKED, f"{folder.path} has no adapter or model yet: the run is not finished", "finish it with the command that began it"
        )
    environment = child_environment(trainer_launch(folder).env)
    code = subprocess.run(trainer_command("chat", folder.path), env=environment, check=False).returncode
    if code:
        raise Stop(BLOCKED, f"the chat ended with exit code {code}", "the lines above say why")
    return DONE, {}
