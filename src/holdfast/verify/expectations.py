"""Prompts with what their answers should be: read from a file with every mistake at once, and held against answers.

One JSON object a line: `prompt` or `messages`, and one or more of EXPECTATIONS. An answer passes when all of them hold.
"""

from __future__ import annotations

import json
import math
import re
import resource
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.base.errors import USAGE, Stop
from holdfast.base.file_errors import at_place
from holdfast.base.files import Json
from holdfast.base.safe_open import LARGEST_JSON, read_small
from holdfast.base.versions import install
from holdfast.base_model.module_pattern import refused

EXPECTATIONS = ("equals", "contains", "regex", "json", "json_schema", "runs", "number")
_OTHER = ("prompt", "messages", "tolerance", "id", "cluster")
_FENCE = re.compile(r"```[\w+-]*\n(.*?)```", re.S)
_NUMBER = re.compile(r"-?\d+(?:,\d{3})*(?:\.\d+)?(?:[eE][+-]?\d+)?")
_PARSE_S, _PARSE_BYTES = 5, 1 << 28
_SHOWN = 10  # mistakes


@dataclass(frozen=True)
class Prompt:
    """line: in the file; messages: the conversation up to the answer; expected: by the name of the expectation."""

    line: int
    messages: tuple[tuple[str, str], ...]
    expected: Json
    tolerance: float
    cluster: str


def read_prompts(file: Path) -> list[Prompt]:
    """Read the prompts of a file. Raises Stop(2) with every mistake in it."""
    try:
        lines = read_small(file, LARGEST_JSON).decode("utf-8").splitlines()
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
        raise Stop(USAGE, f"{file} has {len(mistakes)} mistakes:\n{listed}", "fix these lines; nothing was measured")
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
    if not isinstance(tolerance, int | float) or not math.isfinite(tolerance) or tolerance < 0:
        raise ValueError("tolerance: a number that is not negative")
    return Prompt(number, tuple(turns), expected, float(tolerance), str(row.get("cluster", number)))


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
    except ImportError:
        return f"jsonschema is not installed: {install('ship')}"
    try:
        jsonschema.validators.validator_for(value).check_schema(value)
    except jsonschema.exceptions.SchemaError as error:
        return f"not a JSON schema: {error.message}"
    return None


_CHECKS: dict[str, Callable[[Any], str | None]] = {
    "equals": _texts,
    "contains": _texts,
    "regex": _pattern,
    "json": lambda value: None if value is True else "true, or leave it out",
    "json_schema": _schema,
    "runs": lambda value: None if value in ("bash", "sh") else "bash or sh: the command is parsed and never run",
    "number": lambda value: None if isinstance(value, int | float) and not isinstance(value, bool) else "a number",
}


def failed(prompt: Prompt, answer: str) -> list[str]:
    """Return the names of the expectations that the answer does not meet; none where it passes."""
    return [name for name, value in prompt.expected.items() if not _holds(name, value, prompt.tolerance, answer)]


def _holds(name: str, value: Any, tolerance: float, answer: str) -> bool:
    if name == "equals":
        return answer.strip() in [text.strip() for text in (value if isinstance(value, list) else [value])]
    if name == "contains":
        return all(text in answer for text in (value if isinstance(value, list) else [value]))
    if name == "regex":
        return re.search(value, answer) is not None
    if name == "number":
        found = _NUMBER.findall(answer)
        return bool(found) and abs(float(found[-1].replace(",", "")) - value) <= tolerance
    if name == "runs":
        return parses(without_fence(answer), value)
    try:
        parsed = json.loads(without_fence(answer))
    except (ValueError, RecursionError):
        return False
    return True if name == "json" else _meets(parsed, value)


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
                env={"PATH": "/usr/bin:/bin"},
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
