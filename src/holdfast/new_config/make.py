"""Make a config: from another trainer's file, or from a model and rows. Reads models, rows and the machine; writes the config alone."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from holdfast.base.errors import USAGE, Stop
from holdfast.base.files import Json
from holdfast.base.hub import no_name
from holdfast.base_model.folder import EMBEDDED, hub_name, read_description, refuse_near_embedded
from holdfast.base_model.gguf_file import is_gguf
from holdfast.config.config import Config
from holdfast.config.foreign.convert import convert
from holdfast.config.foreign.keys import Draft
from holdfast.config.foreign.read import read_foreign
from holdfast.config.load import looks_local, near_text
from holdfast.config.rows_elsewhere import elsewhere
from holdfast.data.files.paths import expand
from holdfast.new_config.choose import choose, choose_table, size_in_name
from holdfast.new_config.rows import Fields, InFile, look_at_rows
from holdfast.new_config.write import as_yaml

_ON_THE_HUB = re.compile(r"[\w.-]+/[\w.-]+|(distil)?(gpt2|bert|roberta|xlnet|xlm|albert|camembert|ctrl|t5|openai-gpt)(-[\w.-]+)?")


@dataclass
class ConfigDraft:
    """A config in the making. keys: the account of another trainer's keys; tree: dotted keys of ours; refused: why nothing is written."""

    tree: dict[str, Any]
    reasons: dict[str, str]
    head: list[str]
    keys: list[Json] = field(default_factory=list)
    todo: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    program: str = ""
    files: tuple[InFile, ...] = ()
    fields: Fields = ()

    def text(self) -> str:
        return as_yaml(self.tree, self.reasons, self.head)

    def sections(self) -> dict[str, Any]:
        return Draft("", self.tree).as_tree()


def from_file(file: Path, data: list[str], model: str | None, goal: str, fields: Fields = ()) -> ConfigDraft:
    """Translate another trainer's file. Raises Stop(2) where it is none."""
    source, known = read_foreign(file)
    if model:
        _size(model)
    draft = convert(source, data or None, model, known)
    for ours, theirs in fields:
        draft.tree[f"data.fields.{ours}"], draft.reasons[f"data.fields.{ours}"] = theirs, "--field"
    counts = {fate: sum(row.fate == fate for row in draft.rows) for fate in ("carried", "changed", "not_carried")}
    head = [
        f"Made of {file.name}, a {source.kind} of {source.program}, by `holdfast init --from`: of {len(draft.rows)} keys "
        f"{counts['carried']} were carried, {counts['changed']} changed, {counts['not_carried']} not carried.",
        *([f"Goal: {goal}"] if goal else []),
        *(f"To do: {one}" for one in draft.todo),
    ]
    return ConfigDraft(draft.tree, draft.reasons, head, [row.as_json() for row in draft.rows], draft.todo, draft.refused, draft.program)


def from_answers(model: str | None, data: list[str], goal: str, fields: Fields = ()) -> ConfigDraft:
    """Look at rows and model and choose. Raises Stop(2) where one is missing."""
    files = expand(data)
    if not files:
        raise Stop(USAGE, "no rows are named", "holdfast init --model MODEL --data rows.jsonl --out my-run.yaml")
    params, positions = _size(model) if model else (None, None)
    rows = look_at_rows(files, model, fields)
    if rows.kind == "table" and not model:
        choice = choose_table(files, rows, goal)
    else:
        if not model:
            raise Stop(
                USAGE,
                "no model is named, and these rows are for a language model",
                "add --model FOLDER or a hub name, or --model tiny to try",
            )
        if rows.rows == 0:
            why = f" ({rows.why})" if rows.why else ": there is none in it" if len(files) == 1 else ": there is none in them"
            again = "type `holdfast init` again with these --field options; or see each row: " if "--field " in why else ""
            raise Stop(USAGE, f"no row of {', '.join(files)} can be trained on{why}", f"{again}holdfast data check {shlex.join(files)}")
        choice = choose(model, params, files, rows, goal, positions)
        for ours, theirs in fields:
            choice.set(f"data.fields.{ours}", theirs, "--field")
    if any(map(elsewhere, data)):
        choice.tree["data.files"] = data
    head = ["Made by `holdfast init`.", *([f"Goal: {goal}"] if goal else []), *(f"To do: {one}" for one in choice.todo)]
    return ConfigDraft(choice.tree, choice.reasons, head, todo=choice.todo, files=rows.files, fields=fields)


def _size(model: str) -> tuple[int | None, int | None]:
    """Return parameters and positions of a local model; of one on the hub, as its name tells. Raises Stop where it is damaged."""
    if model in EMBEDDED or Path(model).expanduser().is_dir() or (is_gguf(model) and Path(model).expanduser().is_file()):
        facts = read_description(str(Path(model).expanduser()) if model not in EMBEDDED else model)
        return facts.parameters() or size_in_name(model), facts.positions
    if Path(model).expanduser().is_file():
        raise no_name(model, "model", "a folder")
    if looks_local(model) or ("/" in model and Path(model).parent.is_dir()):
        kind = "file" if is_gguf(model) else "folder"
        raise Stop(USAGE, f"--model {model}: no such {kind}{near_text(Path(model))}", f"the current folder is {Path.cwd()}")
    refuse_near_embedded(model)
    if not _ON_THE_HUB.fullmatch(hub_name(model)[0]):
        raise no_name(model, "model", "a folder")
    return size_in_name(model), None


def checked(made: ConfigDraft) -> Config:
    """Return the config as holdfast takes it. Raises Stop(2) with what is wrong."""
    try:
        return Config.model_validate(made.sections())
    except ValidationError as error:
        lines = [f"  - {'.'.join(map(str, one['loc']))}: {one['msg'].removeprefix('Value error, ')}" for one in error.errors()]
        raise Stop(
            USAGE, "what it asks for does not go together in holdfast\n" + "\n".join(lines), "change that in the original", None
        ) from None
