"""Prompts with what their answers should be: read from a file with every mistake at once, and held against answers.

One JSON object a line: `prompt` or `messages`, and one or more of EXPECTATIONS. An answer passes when all of them hold.
"""

from __future__ import annotations

import json
import math
import re
import resource
import shutil
import subprocess
import tempfile
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.base.errors import USAGE, Stop
from holdfast.base.file_errors import at_place
from holdfast.base.files import Json
from holdfast.base.safe_open import LARGEST_JSON, read_small
from holdfast.base.units import counted
from holdfast.base.versions import install
from holdfast.base_model.module_pattern import refused

EXPECTATIONS = ("equals", "contains", "regex", "json", "json_schema", "runs", "number")
_OTHER = ("prompt", "messages", "tolerance", "id", "cluster")
_FENCE = re.compile(r"```[^\n`]*\n(.*?)```", re.S)
_SPACES = "\u00a0\u2009\u202f"  # those that part thousands and break no line
_NUMBER = re.compile(
    r"(?P<sign>(?<![\w)\]])[-\u2212])?"  # behind a letter or a digit it is a hyphen: GPT-4, 3-5, 2026-11-28
    r"(?P<number>(?P<comma>\d{1,3}(?:\.\d{3})+,\d+|(?<![\d,\[])\d+,(?:\d{1,2}|\d{4,})(?![\d,]))"  # 1.250,50 and 3,14, no [1,2]
    rf"|\d+(?:[,{_SPACES}]\d{{3}})*(?:\.\d+)?|(?<!\w)\.\d+)(?P<power>[eE][+-]?\d+)?"
)
_SHELLS = "/usr/bin:/bin"
_PARSE_S, _PARSE_BYTES = 5, 1 << 28
_SHOWN = 10  # mistakes


@dataclass(frozen=True)
class Prompt:
    """line: in the file; messages: the conversation up to the answer; expected: by the name of the expectation; cluster: the name that
    prompts have which belong together, None where it was given none."""

    line: int
    messages: tuple[tuple[str, str], ...]
    expected: Json
    tolerance: float
    cluster: str | None


def read_prompts(file: Path) -> list[Prompt]:
    """Read the prompts of a file. Raises Stop(2) with every mistake in it."""
    try:
        lines = read_small(file, LARGEST_JSON).decode("utf-8-sig").split("\n")
    except OSError as error:
        hint = "one JSON object a line, as in docs/how-to/compare-models.md"
        raise at_place(error, file, "cannot be read", hint, code=USAGE) from None
    except UnicodeDecodeError:
        raise Stop(USAGE, f"--prompts {file} is not UTF-8", "one JSON object a line, as in docs/how-to/compare-models.md") from None
    prompts, mistakes = [], []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            prompts.append(_prompt(number, json.loads(line)))
        except ValueError as error:
            told = f"not JSON ({error})" if isinstance(error, json.JSONDecodeError) else str(error)
            mistakes.append(f"  line {number}: {told}")
    if mistakes:
        more = [f"  and {len(mistakes) - _SHOWN} more"] if len(mistakes) > _SHOWN else []
        listed = "\n".join([*mistakes[:_SHOWN], *more])
        raise Stop(USAGE, f"{file} has {counted(len(mistakes), 'mistake')}:\n{listed}", "fix these lines; nothing was measured")
    if not prompts:
        raise Stop(USAGE, f"{file} has no prompt", "one JSON object a line, as in docs/how-to/compare-models.md")
    return prompts


def _prompt(number: int, row: Any) -> Prompt:
    if not isinstance(row, dict):
        raise ValueError("not a JSON object")
    if unknown := sorted(set(row) - {*EXPECTATIONS, *_OTHER}):
        raise ValueError(f"unknown key {', '.join(unknown)}; expectations are {', '.join(EXPECTATIONS)}")
    if ("prompt" in row) == ("messages" in row):
        raise ValueError("give prompt or messages, one of the two")
    turns = [("user", row["prompt"])] if "prompt" in row else _turns(row["messages"])
    if not all(isinstance(text, str) and text for _, text in turns):
        raise ValueError("a prompt is a text that is not empty")
    expected = {name: row[name] for name in EXPECTATIONS if name in row}
    if not expected:
        raise ValueError(f"nothing is expected of it: one of {', '.join(EXPECTATIONS)}")
    for name, value in expected.items():
        if told := _CHECKS[name](value):
            raise ValueError(f"{name}: {told}")
    tolerance = row.get("tolerance", 1e-6)
    if not _is_finite(tolerance) or tolerance < 0:
        raise ValueError("tolerance: a number that is not negative")
    cluster = row.get("cluster")
    return Prompt(number, tuple(turns), expected, float(tolerance), None if cluster is None else str(cluster))


def _turns(value: Any) -> list[tuple[str, Any]]:
    if not isinstance(value, list) or not value or not all(isinstance(turn, dict) for turn in value):
        raise ValueError("messages: a list of {role, content}")
    turns = [(str(turn.get("role")), turn.get("content")) for turn in value]
    if turns[-1][0] != "user" or not {role for role, _ in turns} <= {"system", "user", "assistant"}:
        raise ValueError("messages: roles are system, user and assistant, and the last is user")
    return turns


def _texts(value: Any) -> str | None:
    texts = value if isinstance(value, list) else [value]
    return None if texts and all(isinstance(text, str) and text for text in texts) else "a text, or a list of texts"


def _pattern(value: Any) -> str | None:
    return (refused(value) if isinstance(value, str) else "a pattern (regular expression)") or None


def _schema(value: Any) -> str | None:
    if not isinstance(value, dict | bool):
        return "a JSON schema is an object"
    try:
        import jsonschema
        from jsonschema_specifications import REGISTRY
        from referencing import Resource
        from referencing.exceptions import Unresolvable
        from referencing.jsonschema import DRAFT202012
    except ImportError:
        return f"jsonschema is not installed: {install('ship')}"
    try:
        jsonschema.validators.validator_for(value).check_schema(value)
    except jsonschema.exceptions.SchemaError as error:
        return f"not a JSON schema: {error.message}"
    root = Resource.from_contents(value, default_specification=DRAFT202012)
    resolver = REGISTRY.resolver_with_root(root)
    for name in _references(value):
        try:
            resolver.lookup(name)
        except Unresolvable:
            return f"a schema that has what it refers to in itself; {name} is not there"
    return None


def _references(schema: Any) -> Iterator[str]:
    """Yield what a schema refers to; a part of it that has a name of its own is not looked into."""
    if isinstance(schema, dict):
        if isinstance(name := schema.get("$ref"), str):
            yield name
        schema = [one for key, one in schema.items() if key not in _VALUES and not (isinstance(one, dict) and "$id" in one)]
    for one in schema if isinstance(schema, list) else ():
        yield from _references(one)


_VALUES = ("const", "enum", "default", "examples")  # of a JSON schema


def _shell(value: Any) -> str | None:
    if value not in ("bash", "sh"):
        return "bash or sh: the command is parsed and never run"
    return None if shutil.which(value, path=_SHELLS) else f"{value} is not in {_SHELLS.replace(':', ' or ')} here, and no other parses it"


def _is_finite(value: Any) -> bool:
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # of a whole number beyond a float's
        return False


_CHECKS: dict[str, Callable[[Any], str | None]] = {
    "equals": _texts,
    "contains": _texts,
    "regex": _pattern,
    "json": lambda value: None if value is True else "true, or leave it out",
    "json_schema": _schema,
    "runs": _shell,
    "number": lambda value: None if _is_finite(value) else "a number",
}


def failed(prompt: Prompt, answer: str) -> list[str]:
    """Return the names of the expectations that the answer does not meet; none where it passes."""
    return [name for name, value in prompt.expected.items() if not _holds(name, value, prompt.tolerance, answer)]


def _holds(name: str, value: Any, tolerance: float, answer: str) -> bool:
    if name in ("equals", "contains"):
        texts, given = [_composed(text) for text in (value if isinstance(value, list) else [value])], _composed(answer)
        return given.strip() in [text.strip() for text in texts] if name == "equals" else all(text in given for text in texts)
    if name == "regex":
        return re.search(value, answer) is not None
    if name == "number":
        found = last_number(answer)
        return found is not None and abs(found - value) <= tolerance
    if name == "runs":
        return parses(without_fence(answer), value)
    try:
        parsed = json.loads(without_fence(answer), parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return False
    return True if name == "json" else _meets(parsed, value)


def _composed(text: str) -> str:
    """Return a text with each letter and its accents as one character: two ways of writing the same one are equal."""
    return unicodedata.normalize("NFC", text)


def last_number(answer: str) -> float | None:
    """Return the last number of a text; None without one. A comma before three digits parts thousands, any other is a decimal one."""
    found = [*_NUMBER.finditer(answer)]
    if not found:
        return None
    sign, number, comma, power = found[-1].group("sign", "number", "comma", "power")
    plain = comma.replace(".", "").replace(",", ".") if comma else re.sub(f"[,{_SPACES}]", "", number)
    return float(("-" if sign else "") + plain + (power or ""))


def _refuse_constant(text: str) -> None:
    """Raise ValueError for NaN and Infinity, which Python's json takes and JSON has not."""
    raise ValueError(f"{text} is not JSON")


def _meets(parsed: Any, schema: Any) -> bool:
    import jsonschema

    return bool(jsonschema.validators.validator_for(schema)(schema).is_valid(parsed))


def without_fence(answer: str) -> str:
    """Return the text in the first code fence of an answer, else all of it."""
    fenced = _FENCE.search(answer)
    return (fenced[1] if fenced else answer).strip()


def parses(command: str, shell: str) -> bool:
    """True if a shell can parse a command. It is never run: the shell reads it with -n, without environment, in an empty folder."""
    if not command or "\0" in command:
        return False
    given = [shell, "-n"] if shell == "sh" else [shell, "--noprofile", "--norc", "-n"]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        try:
            done = subprocess.run(
                given,
                input=command.encode("utf-8", "surrogatepass"),
                capture_output=True,
                cwd=place,
                env={"PATH": _SHELLS},
                timeout=_PARSE_S,
                preexec_fn=_bounded,
                check=False,
            )
        except (subprocess.TimeoutExpired, OSError):
            return False
    return done.returncode == 0


def _bounded() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (_PARSE_S, _PARSE_S))
    resource.setrlimit(resource.RLIMIT_AS, (_PARSE_BYTES, _PARSE_BYTES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
