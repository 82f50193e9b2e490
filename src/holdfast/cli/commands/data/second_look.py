"""`holdfast data check --second-look MODEL`: have a child process measure each row's loss, and note the rows unlike the others."""

from __future__ import annotations

import importlib.util
import subprocess
import tempfile
from dataclasses import asdict
from pathlib import Path

import numpy as np

from holdfast.base.child import trainer_command
from holdfast.base.errors import BLOCKED, USAGE, Stop
from holdfast.base.files import Json, read_json, write_json
from holdfast.base.versions import install
from holdfast.base_model.folder import read_model
from holdfast.data.files.read import read_unparsed
from holdfast.data.judge.rules import NO_LIMIT, Rules, checks
from holdfast.data.survey.second_look import Odd, SecondLook, look_at
from holdfast.machine.system import usable_threads
from holdfast.supervision.launch import child_environment

_SHOWN = 300  # characters of a row that is quoted


def refuse_second_look(model: str) -> None:
    """Raise Stop(2) or Stop(1) where there can be none, before the rows are checked."""
    read_model(model)
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("transformers") is None:
        raise Stop(USAGE, "--second-look needs torch and transformers", install("train"))


def look_again(model: str, files: list[str], rules: Rules) -> tuple[SecondLook, dict[str, list[Json]]]:
    """Return what was found, and examples by reason. Raises Stop(1) where the model cannot read the rows."""
    facts = read_model(model)
    rules = Rules(rules.layout, min(rules.max_tokens, facts.positions or NO_LIMIT), rules.fields, "cut", rules.redact)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        folder = Path(place)
        request: Json = {"model": model, "files": files, "rules": asdict(rules), "threads": usable_threads()}
        request |= {name: str(folder / f"{name}.{kind}") for name, kind in (("out", "npy"), ("error", "json"))}
        write_json(folder / "request.json", request)
        with (folder / "output.log").open("wb") as log:
            command = trainer_command("losses", folder / "request.json")
            environment = child_environment({"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"})
            code = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment, check=False
            ).returncode
        if code:
            told = read_json(folder / "error.json") or {}
            last = (folder / "output.log").read_text(errors="replace").strip().splitlines()[-1:] or ["it printed nothing"]
            message = told.get("message") or f"the second look ended with exit code {code}: {last[0]}"
            raise Stop(BLOCKED, message, told.get("hint") or "without --second-look the rows are checked all the same")
        found = np.load(folder / "out.npy")
    look = look_at(found, files, [card for card in checks() if card.second_look])
    return look, _examples(look.worst)


def _examples(rows: tuple[Odd, ...]) -> dict[str, list[Json]]:
    """Return the rows as they stand in their files, by reason."""
    texts: dict[tuple[str, int], str] = {}
    for file in dict.fromkeys(row.file for row in rows):
        wanted = {row.line for row in rows if row.file == file}
        for unparsed in read_unparsed(file):
            if unparsed.line in wanted:
                texts[file, unparsed.line] = unparsed.raw[: 4 * _SHOWN].decode("utf-8", "replace")[:_SHOWN]
    found: dict[str, list[Json]] = {}
    for row in rows:
        shown = {"file": row.file, "line": row.line, "detail": row.detail, "text": texts.get((row.file, row.line), "")}
        found.setdefault(row.reason, []).append(shown)
    return found
