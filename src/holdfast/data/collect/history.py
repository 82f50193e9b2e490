"""Commands from a shell's history: bash, zsh and fish, by the form of the file. Only what its owner hands over on purpose.

A command with a comment, beside it or in the line before, becomes an instruction row; any other a row of plain text.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path

from holdfast.data.collect.record import Record, Unusable

KIND = "shell"
_STAMP = re.compile(r"#\d{9,}$")
_ZSH = re.compile(r": \d+:\d+;")
_BESIDE = re.compile(r"^(?P<command>.*\S)\s+#\s+(?P<comment>\S.*)$", re.S)
_TRIVIAL = {
    "cd",
    "ls",
    "ll",
    "la",
    "pwd",
    "exit",
    "logout",
    "clear",
    "history",
    "fg",
    "bg",
    "jobs",
    "q",
    "whoami",
    "date",
    "top",
    "htop",
    "reset",
}


def is_history(path: Path, head: str) -> bool:
    """True if a file is a shell history, by its name or its first line."""
    return path.name.endswith("_history") or head.startswith("- cmd: ") or bool(_ZSH.match(head))


def text_of(data: bytes) -> str:
    """Decode a history file; zsh writes some bytes as 0x83 and the byte with one bit changed (Src/utils.c, unmetafy)."""
    if b"\x83" in data and _ZSH.search(data.decode("utf-8", "replace")):
        data = re.sub(rb"\x83(.)", lambda found: bytes([found[1][0] ^ 32]), data, flags=re.S)
    return data.decode("utf-8", "replace")


def records(text: str, file: str) -> Iterator[Record | Unusable]:
    """Yield a record for each command."""
    lines = text.splitlines()
    if any(line.startswith("- cmd: ") for line in lines[:20]):
        commands = _fish(lines)
    elif any(_ZSH.match(line) for line in lines):
        commands = _zsh(lines)
    else:
        commands = _bash(lines)
    comment = ""
    for number, command in commands:
        command = command.strip()
        if not command:
            continue
        place = f"{file}:{number}"
        if command.startswith("#"):
            comment = command.lstrip("# ").strip()
            continue
        beside = _BESIDE.match(command) if "\n" not in command else None
        beside = beside if beside and _is_whole(beside["command"]) else None
        told, comment = (beside["comment"].strip() if beside else comment), ""
        bare = beside["command"] if beside else command
        words = bare.split()
        if len(words) == 1 or (words[0] in _TRIVIAL and len(words) <= 2):
            yield Unusable(place, command, "trivial", "one word, or a step from folder to folder")
        elif told:
            yield Record(place, {"instruction": told, "input": "", "output": bare}, command, KIND, consent=True)
        else:
            yield Record(place, {"text": command}, command, KIND, consent=True)


def _is_whole(command: str) -> bool:
    """True if no quote is open at the end of a command: a # inside of one begins no comment."""
    try:
        return bool(shlex.split(command))
    except ValueError:
        return False


def _bash(lines: list[str]) -> Iterator[tuple[int, str]]:
    """Yield (line, command) of one command a line; between time stamps (HISTTIMEFORMAT) all lines are one command."""
    if not any(_STAMP.match(line) for line in lines):
        yield from enumerate(lines, 1)
        return
    begun: tuple[int, list[str]] = (1, [])
    stamped = False
    for number, line in enumerate(lines, 1):
        if _STAMP.match(line):
            yield begun[0], "\n".join(begun[1])
            begun, stamped = (number + 1, []), True
        elif stamped:
            begun[1].append(line)
        else:
            yield number, line
    yield begun[0], "\n".join(begun[1])


def _zsh(lines: list[str]) -> Iterator[tuple[int, str]]:
    """Yield (line, command) of `: time:seconds;command`, or the command alone; a line that ends in a backslash goes on."""
    waiting: list[str] = []
    first = 1
    for number, line in enumerate(lines, 1):
        if not waiting:
            first = number
            line = _ZSH.sub("", line, count=1)
        if line.endswith("\\") and not line.endswith("\\\\"):
            waiting.append(line[:-1])
            continue
        yield first, "\n".join([*waiting, line])
        waiting = []
    if waiting:
        yield first, "\n".join(waiting)


def _fish(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(lines, 1):
        if line.startswith("- cmd: "):
            yield number, re.sub(r"\\([\\n])", lambda found: "\n" if found[1] == "n" else "\\", line.removeprefix("- cmd: "))
