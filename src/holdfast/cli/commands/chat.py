"""`holdfast chat RUN`: talk to the base and the tuned model side by side."""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path

from holdfast.base.child import trainer_command
from holdfast.base.errors import BLOCKED, DONE, USAGE, Stop
from holdfast.base.files import Json
from holdfast.base.tasks import kind_of
from holdfast.run.folder import RunFolder
from holdfast.run.snapshots.memory_places import SHARED_MEMORY, sweep
from holdfast.supervision.launch import child_environment, trainer_launch

EXAMPLE = "holdfast chat runs/quickstart"
_LONGEST = 512  # tokens of an answer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_folder", type=Path, metavar="RUN", help="a finished run")
    parser.add_argument("prompt", nargs="*", metavar="PROMPT", help="answer this once and end; without it each line that is typed")
    parser.add_argument("--max-new-tokens", type=int, metavar="N", help="longest answer (default: 512); one that was cut off ends with […]")
    parser.add_argument("--no-history", action="store_true", help="each line is a question of its own; by default both sides remember")
    parser.add_argument("--only", choices=("base", "tuned"), help="ask one of the two")
    parser.add_argument("--system", metavar="TEXT", help="a system message before the conversation")


def run(arguments: argparse.Namespace) -> tuple[int, Json]:
    if arguments.max_new_tokens is not None and arguments.max_new_tokens < 1:
        raise Stop(USAGE, f"--max-new-tokens {arguments.max_new_tokens}: at least 1 is needed", "leave it out for 512")
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
    environment["HOLDFAST_CHAT"] = json.dumps(
        {
            "prompt": " ".join(arguments.prompt),
            "longest": arguments.max_new_tokens or _LONGEST,
            "history": not arguments.no_history,
            "only": arguments.only,
            "system": arguments.system,
        }
    )
    code = subprocess.run(trainer_command("chat", folder.path), env=environment, check=False).returncode
    if code:
        raise Stop(BLOCKED, f"the chat ended with exit code {code}", "the lines above say why")
    return DONE, {}
