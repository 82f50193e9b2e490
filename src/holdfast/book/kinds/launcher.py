"""A launcher card: how a training command of somebody else's is known, where its checkpoints are, how it is told to go on from one."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, Field

from holdfast.book.kinds.catalog import Card
from holdfast.book.kinds.failure import Pattern

Strings = Annotated[tuple[str, ...], BeforeValidator(lambda value: (value,) if isinstance(value, str) else tuple(value))]

# What starts another program that stands behind it: the program is looked for at every word then.
_STARTER = re.compile(
    r"env|sh|bash|dash|zsh|ksh|nohup|nice|ionice|time|timeout|exec|setsid|stdbuf|numactl|taskset|srun|sudo|uv|uvx|poetry|pipenv|pdm|hatch|rye|pixi"
    r"|conda|mamba|micromamba|[A-Za-z_]\w*=.*"
)


class ArgumentChange(BaseModel, frozen=True, extra="forbid"):
    """One argument changed: set to `value`, or, where it is given already, multiplied by `factor` (whole numbers, 1 at least)."""

    flag: str = Field(min_length=1)
    value: str | None = None
    factor: float | None = Field(None, gt=0)
    default: int | None = Field(None, description="what the program takes where the argument is not given; needed for a factor then")


class LauncherCard(Card):
    """One way of starting a training. `hits` and `misses` are command lines it is, and is not, to be known by.

    program: a regular expression that must be found in the command; needs: flags it must also hold; unless: one that must not
    be found. checkpoints: the flags that name the folder of checkpoints; config_key: where the command names a YAML file, the
    key of it that does. resume: the flag that names the checkpoint to go on from, empty where there is none;
    resume_only_given: it is replaced, never added. style: how a flag and its value are written. whole: which proof a
    checkpoint needs. callback: whether --callback can be at work in it. changes: arguments by the remedy of the book that they stand for.
    """

    order: int = 50
    program: Pattern
    needs: Strings = ()
    unless: Pattern | None = None
    checkpoints: Strings = ()
    config_key: str = ""
    resume: Strings = ()
    resume_only_given: bool = False
    style: Literal["space", "equals", "key=value"] = "space"
    whole: Literal["trainer", "files"] = "trainer"
    callback: bool = Field(True, description="whether it makes a Trainer of transformers', into which holdfast's callback can be put")
    changes: dict[str, list[ArgumentChange]] = Field(default_factory=dict)

    def matches(self, evidence: str | Sequence[str]) -> bool:
        """Return whether a command, as one line or as words, is started this way."""
        words = shlex.split(evidence) if isinstance(evidence, str) else list(evidence)
        line = " ".join(words)
        starts = range(len(words)) if words and _STARTER.fullmatch(words[0].rpartition("/")[2]) else (0,)
        if not any(self.program.search(" ".join(words[at:])) for at in starts) or (self.unless is not None and self.unless.search(line)):
            return False
        return not self.needs or any(given(words, name) is not None for name in self.needs)

    def details(self) -> Iterator[str]:
        where = " or ".join(f"`{name}`" for name in self.checkpoints) or "not told by the command"
        yield f"Checkpoints: {where}" + (f", or `{self.config_key}` in its YAML file" if self.config_key else "") + ". "
        yield "Resumes by: " + (" or ".join(f"`{name}`" for name in self.resume) or "nothing it takes") + "."
        yield "" if self.callback else " `--callback` finds no transformers Trainer in it: it is watched without."


def _plain(name: str) -> str:
    """Return a flag without dashes and with underscores: --output-dir and output_dir are one."""
    return name.lstrip("-").replace("-", "_")


def place_of(words: Sequence[str], flag: str) -> tuple[int, int, str] | None:
    """Find the last place where a flag is given (`--x v`, `--x=v`, or `x=v` for one without dashes): (first word, words, value)."""
    name, dashed = _plain(flag), flag.startswith("-")
    for at in range(len(words) - 1, -1, -1):
        head, equals, value = words[at].partition("=")
        if dashed != head.startswith("-") or _plain(head) != name:
            continue
        if equals:
            return at, 1, value
        if dashed and at + 1 < len(words) and not re.match(r"--?[A-Za-z]", words[at + 1]):
            return at, 2, words[at + 1]
        if dashed:
            return at, 1, ""
    return None


def given_with_dashes(words: Sequence[str], flag: str) -> bool:
    """Return whether a command gives a flag with dashes within its name: --output-dir for --output_dir."""
    found = place_of(words, flag)
    return found is not None and "-" in words[found[0]].partition("=")[0][2:]


def given(words: Sequence[str], flag: str) -> str | None:
    """Return the value a command gives a flag, empty where the flag stands alone; None where it is not given."""
    found = place_of(words, flag)
    return None if found is None else found[2]


def with_argument(words: Sequence[str], flag: str, value: str, style: str) -> tuple[str, ...]:
    """Return the command with a flag set: in its place where it is given, else at the end."""
    found = place_of(words, flag)
    if found is None:
        return (*words, *([flag, value] if style == "space" else [f"{flag}={value}"]))
    at, count, _ = found
    head, equals, _ = words[at].partition("=")
    return (*words[:at], *([f"{head}={value}"] if equals else [head, value]), *words[at + count :])
