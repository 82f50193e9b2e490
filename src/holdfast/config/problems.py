"""Say in words what is wrong in a config: the key, its value, its line, the nearest valid key. Reads no file."""

from __future__ import annotations

import difflib
import re
import reprlib
from collections.abc import Sequence
from datetime import date
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from holdfast.base.tasks import kind_named, task_kinds
from holdfast.config.config import Config
from holdfast.config.foreign_keys import FACTORS, NO_KEY, OURS
from holdfast.config.key_lines import key_line

EVERY_KEY = "docs/reference/config.md lists every key, `holdfast schema` as a JSON schema"
_NUMBER = re.compile(
    r"(\d+(?:[.,]\d+)?(?:[eE][+-]?\d+)?)\s*([%kKmM]?)(?: ?(?:steps?|epochs?|tokens?|s|sec|seconds))?"
)  # a comma, a sign, a unit
_KIND = re.compile(r"str|int|bool|constrained-int|(literal|list|dict)\[.*\]")  # pydantic's names for what a value may be
_WRITE = "; write "
_SHOULD = "input should be "
_UNKNOWN = "extra_forbidden"
_ALIKE = 0.75  # of the letters of a key that may stand elsewhere
_MOST_TOLD = 100  # problems of a config
_SHOWN = 60  # characters of a wrong value
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 2 * _SHOWN
_AS_SECTION = {"data": "data: {{files: {}}}", "adapter": "adapter: {{type: {}}}"}  # sections that people write as one value
_INSTEAD_OF = {  # values of other keys
    ("train.weights", "full"): "it says how trained weights are held; `adapter: {type: full}` trains all of them",
    **{("train.frozen", word): "4 bits are nf4 (or fp4): write nf4" for word in ("int4", "4bit", "4-bit", "4", "q4", "nf-4", "bnb-4bit")},
    **{("train.frozen", word): "8 bits are int8: write int8" for word in ("8bit", "8-bit", "8", "q8")},
    **{
        ("data.format", word): "turns are the layout chat: write chat"
        for word in ("sharegpt", "chatml", "openai", "messages", "conversations")
    },
    **{
        ("data.format", word): "pairs need no format: write auto, and train.objective: dpo" for word in ("dpo", "preference", "preferences")
    },
    **{
        (
            "train.objective",
            word,
        ): "holdfast learns from rows, not by rewards of what is sampled; `holdfast run -- python train.py` protects TRL's"
        for word in ("grpo", "ppo", "rloo", "rlhf", "online_dpo", "gspo")
    },
    **{
        (key, word): f"it is a number of steps, and one epoch is the training rows divided by train.effective_batch; {last}"
        for word in ("epoch", "epochs", "each epoch", "every epoch", "1 epoch")
        for key, last in (("evaluate.every", "`holdfast plan` tells the steps"), ("save.every", "leave it out and the run chooses"))
    },
    ("adapter.type", "qlora"): "4 bits are train.frozen: nf4, beside adapter.type lora",
    ("adapter.type", "none"): "`adapter: {type: full}` trains all weights, without an adapter",
}
_PATTERNS = {  # what a text may be that has a form
    "run.name": ": letters, digits, - _ and . only, as it becomes a folder under runs/ (another place is --run DIR); write {0}",
    "notify.sendmail": ": one address, such as me@example.org, without spaces",
}
_NO_SHARE = {"int_parsing": "; it is a count, and no share", "float_parsing": "; a share is below 1, as 0.05 for 5%"}
_PLAINLY = {
    "model_type": "a section of keys is needed",
    "dict_type": "keys with values are needed",
    "string_pattern_mismatch": "it has signs that cannot stand there",
    "too_short": "at least one is needed",
    "invalid_key": "a key is a word; within { } a comma parts entries, so numbers there have a point (0.0002)",
}


def problems_of(
    error: ValidationError, model: type[BaseModel], root: yaml.Node | None = None, given: Sequence[str] = (), task: object = None
) -> list[str]:
    """Say each problem in a line, with the line of its key in the file that `root` was read from; given: keys that stand elsewhere.

    task: of the config; keys that only other tasks have are not offered.
    """
    problems, without = error.errors(), _of_others(task)
    lines: dict[str, str] = {}
    for problem in problems[:_MOST_TOLD]:
        place = _place(problem)
        path = ".".join(map(str, place))
        told = _told(problem, path, place, model, without)
        at = "" if _given(path, given, problem["type"]) else _line_in(root, place)
        if path in lines and (other := told.partition(_SHOULD)[2]) and _SHOULD in lines[path]:  # of the kinds of values it may be
            lines[path] = f"{lines[path].removesuffix(at).partition(_WRITE)[0]} or {other}{at}"
        else:
            lines[path if path and path not in lines else told] = told + at
    rest = [f"and {len(problems) - _MOST_TOLD:,} more"] if len(problems) > _MOST_TOLD else []
    return [*dict.fromkeys(lines.values()), *rest]


def _given(path: str, keys: Sequence[str], kind: str) -> bool:
    return any(f"{path}.".startswith(f"{key}.") or (kind == _UNKNOWN and f"{key}.".startswith(f"{path}.")) for key in keys)


def unknown_keys(error: Exception) -> list[str]:
    """Return the keys of a config that there are none of, where nothing else is wrong with it; empty for any other error."""
    problems = error.errors() if isinstance(error, ValidationError) else []
    unknown = [".".join(map(str, _place(problem))) for problem in problems if problem["type"] == _UNKNOWN]
    return unknown if len(unknown) == len(problems) else []


def where_to_look(error: ValidationError) -> str:
    """Return what the config page says of the first key whose value is wrong; how to list all keys where each problem is an unknown one."""
    wrong = [_place(problem)[: -1 if problem["type"] == "missing" else None] for problem in error.errors() if problem["type"] != _UNKNOWN]
    return key_line(wrong[0]) if wrong else EVERY_KEY


def _place(problem: ErrorDetails) -> list[int | str]:
    return [part for part in problem["loc"] if not (isinstance(part, str) and _KIND.fullmatch(part))]


def _of_others(task: object) -> set[str]:
    """Return the sections that other tasks have and this one has not; none where there is no such task."""
    kind = kind_named(task)
    return {name for other in task_kinds() for name in other.sections}.difference(kind.sections) if kind else set()


def _told(problem: ErrorDetails, path: str, place: list[int | str], model: type[BaseModel], without: set[str]) -> str:
    kind, value = problem["type"], problem["input"]
    if kind == _UNKNOWN:
        turned = _turned(place, model) or _without_slips(place, value, model)
        near = turned or ("train.frozen: nf4" if place[-1] == "kind" and value == "qlora" else _nearest(place, model, without))
        why = (NO_KEY | FACTORS).get(str(place[-1]), "") if model is Config and not turned else ""
        more = f"; {why}" if why else f"; did you mean {near}?" if near else ""
        return f"{path}: unknown key (value {_short(value)}){more}"
    if kind == "missing":
        return f"{path}: missing; {_describe(place, model)}"
    message = re.split(", (?:unable to|got a number)", problem["msg"].removeprefix("Value error, "))[0]
    if not path:
        return _PLAINLY.get(kind, message)
    instead = _INSTEAD_OF.get((path, str(value).lower()), "")
    said = instead or _PLAINLY.get(kind) or message[0].lower() + message[1:]
    if path in _AS_SECTION and isinstance(value, str):
        key, _, behind = value.partition(":")  # files:rows.jsonl is a key without its space
        said += f": write `{_AS_SECTION[path].format(behind if f'{key}: ' in _AS_SECTION[path] else value)}`"
    return f"{path}:{'' if isinstance(value, dict) else f' {_short(value)}:'} {said}{'' if instead else _meant(problem)}"


def _meant(problem: ErrorDetails) -> str:
    """Return what was probably meant by a value that is no number, or none of the words it may be, as the end of a sentence."""
    value, kind = problem["input"], problem["type"]
    if kind == "literal_error":
        words = re.findall(r"'([^']*)'", problem["ctx"]["expected"])
        near = difflib.get_close_matches(str(value).lower(), words, 1, 0.6)
        return f"; did you mean {near[0]}?" if near else ""
    if kind == "string_pattern_mismatch":
        return _PATTERNS.get(".".join(map(str, problem["loc"][-2:])), "").format(re.sub(r"[^A-Za-z0-9._-]+", "-", str(value)).strip("-._"))
    if kind == "string_type" and isinstance(value, bool | int | float | date):
        return f"{_WRITE}it in quotes"
    if kind == "int_from_float" and 0 < value < 1:
        return _NO_SHARE["int_parsing"]
    if kind == "int_from_float":
        return f"{_WRITE}{round(value)}"
    if kind not in ("float_parsing", "int_parsing") or not (found := _NUMBER.fullmatch(str(value).strip())):
        return ""
    thousands = kind == "int_parsing" and re.fullmatch(r"[1-9]\d{0,2},\d{3}", found[1])
    number = float(found[1].replace(",", "" if thousands else ".")) * {"%": 0.01, "k": 1000, "m": 1e6}.get(found[2].lower(), 1)
    if found[2] == "%" and (kind == "int_parsing" or number >= 1):
        return _NO_SHARE[kind]
    return f"{_WRITE}{round(number) if kind == 'int_parsing' else f'{number:.10g}'}"


def _line_in(root: yaml.Node | None, place: list[int | str]) -> str:
    """Return " (line 6)" for the place's key in a YAML text; "" where the text has no such key, as with one given as key=value."""
    line, node = 0, root
    for part in place:
        if isinstance(node, yaml.MappingNode):
            found = [(key, value) for key, value in node.value if key.value == str(part)]
        else:
            found = (
                [(one, one) for one in node.value[part : part + 1]] if isinstance(node, yaml.SequenceNode) and isinstance(part, int) else []
            )
        if not found:
            break
        line, node = found[0][0].start_mark.line + 1, found[0][1]
    return f" (line {line})" if line else ""


def _nearest(place: list[Any], model: type[BaseModel], without: set[str]) -> str:
    """Find the valid key for the last part of `place`: other trainers' name for it, the most like it in its own section, or anywhere.

    without: sections whose keys are not offered.
    """
    if turned := _turned(place, model):
        return turned
    if model is Config and (ours := OURS.get(str(place[-1]), "")) and ours.partition(".")[0] not in without:
        return ours
    section = _section(place[:-1], model)
    here = [name for name in (section.model_fields if section else ()) if len(place) > 1 or name not in without]
    known = [path for path in paths_of(model) if path.partition(".")[0] not in without]
    named = [path for path in known if path.rpartition(".")[2] == str(place[-1])]
    if place[0] == "faults":
        return ""
    if named:  # the key is right and stands in the wrong section
        return " or ".join(named)
    close = difflib.get_close_matches(str(place[-1]), here, 1, 0.5 if len(place) > 1 else _ALIKE)
    if close:
        return ".".join([*map(str, place[:-1]), close[0]])
    everywhere = {path.split(".")[-1]: path for path in known}
    close = difflib.get_close_matches(str(place[-1]), list(everywhere), 1, _ALIKE)
    if close:
        return everywhere[close[0]]
    return f"one of {', '.join(here)}" if here else ""


def _turned(place: list[Any], model: type[BaseModel]) -> str:
    """Find the key of its section that a wrong one is with two neighbouring letters swapped; empty where there is none."""
    section, word = _section(place[:-1], model), str(place[-1])
    swapped = {word[:at] + word[at + 1] + word[at] + word[at + 2 :] for at in range(len(word) - 1)}
    return next((".".join([*map(str, place[:-1]), name]) for name in (section.model_fields if section else ()) if name in swapped), "")


def _without_slips(place: list[Any], value: Any, model: type[BaseModel]) -> str:
    """Find the key that a path means whose sections are parted by too many dots, or by other signs; empty where there is none."""
    parts = [*map(str, place)]
    while isinstance(value, dict) and len(value) == 1:
        ((name, value),) = value.items()
        parts.append(str(name))
    words = [word.lower() for part in parts for word in re.split(r"[\s.:/,>-]+", part) if word]
    known = paths_of(model)
    if len(parts) == 1 and (path := parts[0].replace("_", ".", 1)) in known:
        return path
    return next((".".join(words[:end]) for end in range(len(words), 0, -1) if words != parts and ".".join(words[:end]) in known), "")


def key_named(option: str) -> str:
    """Guess the config's key that an option such as --learning_rate or --steps means; empty where none or several have its name."""
    name = option.lstrip("-").replace("-", "_")
    found = [path for path in paths_of(Config) if path in (name, option.lstrip("-")) or path.split(".")[-1] == name]
    return OURS.get(name) or (found[0] if len(found) == 1 else "")


def _section(place: list[Any], model: type[BaseModel]) -> type[BaseModel] | None:
    current: type[BaseModel] | None = model
    for part in place:
        field = current.model_fields.get(str(part)) if current else None
        annotation = field.annotation if field else None
        current = annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None
    return current


def paths_of(model: type[BaseModel], prefix: str = "") -> list[str]:
    """List every key of a config with its sections, as in train.lr."""
    found = []
    for name, field in model.model_fields.items():
        annotation = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            found += paths_of(annotation, f"{prefix}{name}.")
        found.append(prefix + name)
    return found


def _describe(place: list[Any], model: type[BaseModel]) -> str:
    section = _section(place[:-1], model)
    field = section.model_fields.get(str(place[-1])) if section else None
    return (field.description if field and field.description else "") or "a value is needed"


def _short(value: Any) -> str:
    text = str(value) if isinstance(value, date) else _SHORT.repr(value)
    text = {"None": "null", "True": "true", "False": "false"}.get(text, text)  # as YAML writes them
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
