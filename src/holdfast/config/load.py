"""Load a config file with its overrides and report every problem at once. The model of a config is config/config.py."""

from __future__ import annotations

import difflib
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from holdfast.base.disk import place_of
from holdfast.base.errors import USAGE, Stop
from holdfast.base.file_errors import at_place
from holdfast.base.inert import refuse_unwritable_name
from holdfast.base.safe_open import read_small
from holdfast.base.tasks import task_kinds
from holdfast.base.units import counted
from holdfast.base_model.folder import EMBEDDED, hub_name
from holdfast.base_model.gguf_file import is_gguf
from holdfast.config.config import Config
from holdfast.config.faults import Fault, FaultFile
from holdfast.config.foreign_keys import program_of, translated
from holdfast.config.problems import EVERY_KEY, problems_of, where_to_look
from holdfast.config.rows_elsewhere import elsewhere, with_rows_here, with_rows_named
from holdfast.config.yaml_tree import in_one_line, mappings, repeated, root_of, value_of

_INSTEAD = {"train.steps": "train.epochs", "train.epochs": "train.steps"}  # an override of one stands instead of the file's other
_SHOWN = 5  # files of a pattern
_FAULTS = "docs/reference/faults.md shows the language"
_OF_ROWS = (".jsonl", ".ndjson", ".csv", ".tsv", ".parquet", ".arrow")


def load_config(file: Path, overrides: list[str] | None = None, need_rows: bool = True, fetch: bool | None = None) -> Config:
    """Read `file`, apply `key.path=value` overrides (values are YAML), make paths absolute.

    Paths are looked up beside the config file first, then in the current folder. Raises Stop(2) naming every problem: path of
    the key, value found, what is expected, nearest valid key. need_rows: files of rows that are missing are problems. fetch: rows that
    are elsewhere are fetched, else data.files has their names (default: as need_rows).
    """
    refuse_unwritable_name(file.resolve())
    tree = read_yaml(file)
    if program := program_of(tree):
        told = "\n".join(f"  - {line}" for line in translated(tree))
        hint = f"holdfast init --from {file} --out NEW.yaml writes a config of it, and says what became of each key"
        raise Stop(USAGE, f"{file}: this is a config of {program}, not of holdfast\n{told}", hint)
    problems = _apply_overrides(tree, overrides or [])
    config: Config | None = None
    look = EVERY_KEY
    try:
        config = Config.model_validate(tree)
    except ValidationError as error:
        given = [one.partition("=")[0] for one in overrides or []]
        found = problems_of(error, Config, root_of_file(file), given, tree.get("task", task_kinds()[0].name))
        wrong = tuple(f": {line.partition(':')[0]} is not a section" for line in found)  # told of the file, and once
        problems = [one for one in problems if not one.endswith(wrong)] + found
        look = where_to_look(error)
    missing = _missing_files(tree, file.parent) if need_rows else []
    problems += missing
    if problems or config is None:
        count = counted(len(problems), "problem")
        places = " and in ".join(dict.fromkeys(map(str, (file.parent.resolve(), Path.cwd()))))
        hint = look if len(problems) > len(missing) else f"correct the path; a relative one is looked up in {places}"
        raise Stop(USAGE, f"{file}: {count} in the config\n" + "\n".join(f"  - {p}" for p in problems), hint)
    if tree.get("task", config.task) != config.task:
        _tell(f"task: {tree['task']} is called task: {config.task} now; both mean the same")
    if isinstance(tree.get("train"), dict) and "shards" in tree["train"]:
        _tell("train.shards is called train.reduction_parts now; both mean the same")
    config = with_rows_named(_with_absolute_paths(config, file.parent))
    return with_rows_here(config) if (need_rows if fetch is None else fetch) else config


def load_faults(file: Path) -> list[Fault]:
    """Read a fault list (`faults:` in YAML, or the list alone). Raises Stop(2)."""
    tree = read_yaml(file, allow_list=True, keys=_FAULTS)
    try:
        return FaultFile.model_validate(tree).faults
    except ValidationError as error:
        problems = problems_of(error, FaultFile, root_of_file(file))
        raise Stop(USAGE, f"{file}:\n" + "\n".join(f"  - {p}" for p in problems), _FAULTS) from error


def read_yaml(file: Path, allow_list: bool = False, keys: str = EVERY_KEY) -> dict[str, Any]:
    """Read a mapping of keys from a YAML file; keys: where they are told, for who gave something else. Raises Stop(2)."""
    if file.suffix in _OF_ROWS and file.is_file():
        text = f"{file} is a file of rows; a config is a YAML file that names it"
        raise Stop(USAGE, text, f"write `data: {{files: {file}}}` and a `model:` into one; {EVERY_KEY}")
    try:
        text = read_small(file).decode("utf-8-sig")
    except FileNotFoundError:
        raise Stop(USAGE, f"{file}: no such file", _near(file)) from None
    except IsADirectoryError:
        raise Stop(USAGE, *_about_folder(file)) from None
    except UnicodeDecodeError as error:
        raise Stop(USAGE, f"{file}: not readable as text ({error})", "a config is a UTF-8 YAML file") from None
    except OSError as error:
        raise at_place(error, file, "cannot be read", "a config is a UTF-8 YAML file", code=USAGE) from None
    try:
        root, values = root_of(text, slowly=True)
        tree = values()
    except yaml.YAMLError as error:
        raise Stop(USAGE, f"{file}: not valid YAML: {in_one_line(error)}", "check indentation and quotes at that line") from None
    twice = [(".".join(map(str, (*keys, name))), lines) for keys, mapping in mappings(root) for name, *lines in repeated(mapping)]
    if twice:
        told = "; ".join(f"duplicate key {name}, in lines {first} and {again}" for name, (first, again) in twice)
        raise Stop(USAGE, f"{file}: {told}", "keep one of them")
    if allow_list and isinstance(tree, list):
        return {"faults": tree}
    if joined := re.match(r"([\w.]+):(?!//)(\S+)", tree if isinstance(tree, str) else ""):
        assert root is not None
        where = f"line {root.start_mark.line + 1}: a space is missing behind `{joined[1]}:`"
        raise Stop(USAGE, f"{file}: {where}", f"write `{joined[1]}: {joined[2]}`")
    if not isinstance(tree, dict):
        raise Stop(USAGE, f"{file}: holds {_kind(tree)}, a mapping of keys is needed", keys)
    return tree


def root_of_file(file: Path) -> yaml.Node | None:
    """Return the nodes of a YAML file that was read, whose lines `problems_of` names."""
    return root_of(read_small(file).decode("utf-8-sig"), slowly=True)[0]


def _about_folder(folder: Path) -> tuple[str, str]:
    """Return (message, hint) for a folder where a config is needed: a run folder goes on from its own copy of the config."""
    if (folder / "run.json").exists() and (folder / "config.yaml").exists():
        return (
            f"{folder} is a run folder, a config is needed",
            f"to resume that run: holdfast train {folder}/config.yaml --run {folder}",
        )
    found = sorted(entry.name for pattern in ("*.yaml", "*.yml") for entry in folder.glob(pattern))
    return f"{folder} is a folder, a YAML file is needed", f"try {folder / found[0]}" if found else "there is no YAML file in it"


@cache
def _tell(text: str) -> None:
    """Say on standard error what an older name is called now, once in a process."""
    print(f"holdfast: {text}", file=sys.stderr)


def _apply_overrides(tree: dict[str, Any], overrides: list[str]) -> list[str]:
    if "=" in overrides:
        at = overrides.index("=")
        apart, meant = (between.join(overrides[max(at - 1, 0) : at + 2]) for between in (" ", ""))
        return [f"override {apart!r}: write it without spaces, {meant}"]
    problems = []
    for override in overrides:
        key, sign, text = override.partition("=")
        if not sign or not key:
            problems.append(f"override {override!r}: write key=value, for example train.lr=1e-4")
            continue
        node = tree
        *parents, last = key.split(".")
        for parent in parents:
            child = node.setdefault(parent, {})
            if not isinstance(child, dict):
                problems.append(f"override {override!r}: {parent} is not a section")
                break
            node = child
        else:
            node[last] = _yaml_value(text)
            if key in _INSTEAD and node[last] is not None and not any(other.startswith(_INSTEAD[key] + "=") for other in overrides):
                node.pop(_INSTEAD[key].split(".")[-1], None)
    return problems


def _yaml_value(text: str) -> Any:
    try:
        return value_of(text)
    except yaml.YAMLError:
        return text


def _missing_files(tree: dict[str, Any], folder: Path) -> list[str]:
    data = tree.get("data")
    problems = []
    found: dict[object, str] = {}
    for key in ("files", "held_out_files"):
        files = data.get(key) if isinstance(data, dict) else None
        files = [files] if isinstance(files, str) else files if isinstance(files, list) else []
        for number, name in enumerate(files):
            path = find_path(name, folder) if isinstance(name, str) else folder / __file__
            if path is None and elsewhere(name, folder):
                continue
            if path is None and (meant := _matching(str(name), folder)):
                problems.append(f"data.{key}[{number}]: {name} is a pattern, and a config names each file: [{', '.join(meant)}]")
            elif path is None:
                problems.append(f"data.{key}[{number}]: {name}: no such file{near_text(folder / name)}")
            elif path.is_dir():
                problems.append(f"data.{key}[{number}]: {name} is a folder; name the files in it")
            elif not path.is_file():
                problems.append(f"data.{key}[{number}]: {name} is a pipe or a device; write its rows into a file first")
            elif (first := found.setdefault(place_of(path), f"{key}[{number}]")) != f"{key}[{number}]":
                why = "to draw its rows more often: data.weights" if first.startswith(key) else "rows that are learned judge nothing"
                problems.append(f"data.{key}[{number}]: {name} is also in data.{first}; {why}")
    adapter = tree.get("adapter")
    start = adapter.get("start") if isinstance(adapter, dict) else None
    if isinstance(start, str) and find_path(start, folder) is None:
        problems.append(f"adapter.start: {start}: no such folder{near_text(folder / start)}")
    model = tree.get("model")
    if isinstance(model, str) and looks_local(model) and find_path(model, folder) is None:
        problems.append(f"model: {model}: no such {'file' if is_gguf(model) else 'folder'}{near_text(folder / model)}")
    return problems


def _matching(name: str, folder: Path) -> list[str]:
    """Return the first files that a pattern means; none where it is no pattern, or means none."""
    if not set(name) & {"*", "?", "["}:
        return []
    path = Path(name)
    anchor = Path(path.anchor) if path.anchor else folder
    try:
        found = sorted(str(one if path.anchor else one.relative_to(folder)) for one in anchor.glob(str(path.relative_to(path.anchor))))
    except (OSError, ValueError, NotImplementedError):
        return []
    return [*found[:_SHOWN], *["..."] * (len(found) > _SHOWN)]


def missing_rows(config: Config) -> list[str]:
    """Name the files of rows that a config names and nobody has, each with the near one beside it."""
    names = [name for name in (*config.data.files, *config.data.held_out_files) if not elsewhere(name) and not Path(name).exists()]
    return [f"{name}: no such file{near_text(Path(name))}" for name in names]


def looks_local(model: str) -> bool:
    """True if `model` can only be meant as a folder or a file: hub names are `name` or `owner/name`, with or without @REVISION."""
    return model.startswith((".", "/", "~")) or is_gguf(model) or ("://" not in model and hub_name(model)[0].count("/") > 1)


def find_path(name: str, folder: Path) -> Path | None:
    try:
        path = Path(name).expanduser()
        return next((candidate.resolve() for candidate in (folder / path, path) if candidate.exists()), None)
    except (OSError, RuntimeError, ValueError):  # no name of a file: too long, of nobody's home
        return None


def _with_absolute_paths(config: Config, folder: Path) -> Config:
    data: dict[str, Any] = {
        key: [str(find_path(name, folder) or name) for name in getattr(config.data, key)] for key in ("files", "held_out_files")
    }
    data["weights"] = {str(find_path(name, folder) or name): weight for name, weight in config.data.weights.items()}
    start = config.adapter.start
    adapter = config.adapter.model_copy(update={"start": str(find_path(start, folder) or start)}) if start else config.adapter
    model = config.model
    if model not in ("", *EMBEDDED) and (found := find_path(model, folder)):
        model = str(_under_its_name(Path(model).expanduser(), folder) or found)
    return config.model_copy(update={"data": config.data.model_copy(update=data), "model": model, "adapter": adapter})


def _under_its_name(path: Path, folder: Path) -> Path | None:
    """Return the absolute path of a link under the link's own name; None for what is no link."""
    there = next((candidate for candidate in (folder / path, path) if candidate.exists()), path)
    return there.parent.resolve() / there.name if there.is_symlink() and there.name else None


def _near(path: Path) -> str:
    text = near_text(path)
    return text.strip("; ") or f"the current folder is {Path.cwd()}"


def near_text(path: Path) -> str:
    """Return which name beside a missing path is most like it, as the end of a sentence; empty where none is."""
    try:
        names = [entry.name for entry in path.parent.iterdir()]
    except OSError:
        return ""
    close = difflib.get_close_matches(path.name, names, 1, 0.6)
    return f"; did you mean {path.parent / close[0]}?" if close else ""


def _kind(value: Any) -> str:
    return "nothing" if value is None else "text" if isinstance(value, str) else f"a {type(value).__name__}"
