"""The commands in what a shell is given as one text (`bash -c "cd code && python train.py ... 2>&1 | tee log"`). Pure; expands nothing."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

_SHELLS = {"sh", "bash", "dash", "zsh", "ksh"}
_TEXT_FOLLOWS = re.compile(r"-[a-z]*c")
_BLANK = re.compile(r"(?:[ \t]|\\\n)+")
_WORD = re.compile(r"""(?:\\[^\n]|'[^']*'|"(?:[^"\\]|\\.)*"|[^\s'"\\;&|<>()])+""", re.DOTALL)
_REDIRECTED = re.compile(r"\d*[<>]")
_EXPANDED = re.compile(r"[$`*?~]")  # what a shell makes something else of
_ALL_ARGUMENTS = re.compile(r"\$[@*]")


@dataclass(frozen=True)
class Inside:
    """One command: its words, and where it stands.

    outer, at, span: the whole command, the word of it that is a shell's text, and the command's place in that; at is None where
    the whole command is meant. folder: where a `cd` before it leads, as far as it is told. raw: each word as it was written.
    """

    words: tuple[str, ...]
    outer: tuple[str, ...]
    at: int | None = None
    span: tuple[int, int] = (0, 0)
    folder: str = ""
    raw: tuple[str, ...] = ()

    def around(self, words: Sequence[str]) -> tuple[str, ...]:
        """Return the whole command with other words in place of these; those that are the same stay as they were written."""
        if self.at is None:
            return tuple(words)
        written = dict(zip(self.words, self.raw, strict=True))
        text, (start, stop) = self.outer[self.at], self.span
        now = " ".join(written.get(word) or shlex.quote(word) for word in words)
        return (*self.outer[: self.at], text[:start] + now + text[stop:], *self.outer[self.at + 1 :])

    def place(self, value: str) -> str | None:
        """Return a path it names, as seen from where the whole command is started; None where that is for the shell to know."""
        if self.at is None:
            return value
        if _EXPANDED.search(value) or (_EXPANDED.search(self.folder) and not PurePath(value).is_absolute()):
            return None
        return str(PurePath(self.folder, value))


def commands_in(words: Sequence[str]) -> list[Inside]:
    """Return the commands that a shell is given as one text; the command itself where it is given none, or passes its own arguments on."""
    at = _text_at(words)
    if at is None or _ALL_ARGUMENTS.search(words[at]):
        return [Inside(tuple(words), tuple(words))]
    text, folder, found, here = words[at], "", [], 0
    while here < len(text):
        if blank := _BLANK.match(text, here):
            here = blank.end()
            continue
        raw: list[str] = []
        begin = stop = here
        while (word := _WORD.match(text, here)) and not (raw and _REDIRECTED.match(text, here)):
            raw.append(word[0])
            stop = word.end()
            blank = _BLANK.match(text, stop)
            here = blank.end() if blank else stop
        if not raw:
            here += 1  # what stands between commands
            continue
        plain = tuple(_plain(word) for word in raw)
        if plain[0] == "cd" and len(plain) > 1:
            folder = str(PurePath(folder, plain[1]))
        else:
            found.append(Inside(plain, tuple(words), at, (begin, stop), folder, tuple(raw)))
        here = _behind_redirections(text, here)
    return found


def _text_at(words: Sequence[str]) -> int | None:
    """Return the index of the word that is the text for a shell to carry out; None where there is none."""
    for at, word in enumerate(words[:-2]):
        if PurePath(word).name in _SHELLS:
            for flag in range(at + 1, len(words) - 1):
                if _TEXT_FOLLOWS.fullmatch(words[flag]):
                    return flag + 1
                if not words[flag].startswith("-"):
                    break
    return None


def _plain(raw: str) -> str:
    """Return a word without its quotes; one that the shell expands stays as it is written."""
    if "$" in raw or "`" in raw:
        return raw
    try:
        return "".join(shlex.split(raw)) if raw.strip() else raw
    except ValueError:
        return raw


def _behind_redirections(text: str, here: int) -> int:
    """Return the position behind the redirections of a command: `> log`, `2>&1`."""
    while _REDIRECTED.match(text, here):
        skipped = re.compile(r"\d*[<>]+[&|]?[ \t]*").match(text, here)
        assert skipped is not None
        target = _WORD.match(text, skipped.end())
        here = target.end() if target else skipped.end()
        blank = _BLANK.match(text, here)
        here = blank.end() if blank else here
    return here
