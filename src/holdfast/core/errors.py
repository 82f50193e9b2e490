"""The one error a user meets, and the exit codes. Printing it is cli.py's job."""

from __future__ import annotations

DONE = 0
BLOCKED = 1
USAGE = 2
GAVE_UP = 3
OUR_BUG = 70
INTERRUPTED = 130


class Stop(Exception):
    """End the command with `code`; `message` states the fact and its numbers, `hint` the next command or edit."""

    def __init__(self, code: int, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.code, self.message, self.hint = code, message, hint

    def __str__(self) -> str:
        return self.message if not self.hint else f"{self.message}\n  -> {self.hint}"
