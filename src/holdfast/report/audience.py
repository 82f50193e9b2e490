"""Whom a run is told to: what its supervisor asks of a terminal, a notebook's cell, or whoever else listens. Prints nothing itself."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from holdfast.base.files import Json
from holdfast.config.config import Config
from holdfast.processes.attempt import Attempt
from holdfast.run.folder import RunFolder


class Audience(Protocol):
    """Whoever hears what is done before, beside and after the steps."""

    def say(self, text: str) -> None:
        """Pass on what is good to know; a quiet audience leaves it out."""

    def tell(self, text: str) -> None:
        """Pass on that something went wrong, or changed hands."""

    def counting(self, what: str, total: int) -> AbstractContextManager[Callable[[int], None]]:
        """Show how much of `total` is done; call what this yields with the number of new ones."""


class RunAudience(Audience, Protocol):
    """Whoever also looks on while a run trains, and sees its summary."""

    def begin(self, run: RunFolder, config: Config) -> None:
        """Start to show progress of `run`."""

    def tick(self, attempt: Attempt) -> None:
        """Look at the run's journals now and then and show what is new; called while an attempt lives."""

    def tell_stop(self) -> None:
        """Pass on, once, that the run is asked to stop and what is waited for."""

    def end(self) -> None:
        """Stop showing progress, after the last that was journalled is said."""

    def summary(self, summary: Json, run: RunFolder) -> None:
        """Show the end of a run."""

    def fall_back_on(self, log: Path | None) -> None:
        """Go on in `log` when the audience goes away, instead of dying with it (None)."""

    def leave(self) -> None:
        """Turn to the log for good, as the audience is gone. A signal handler may call this."""


class OutputViewer(Protocol):
    """Whoever is shown the output of a command as it is."""

    def follow(self, file: Path, from_end: bool = False) -> None:
        """Show this file from now on, from its beginning or from where it ends now."""

    def look(self) -> bool:
        """Show what is new; True if something was shown."""

    def drain(self) -> None:
        """Show what is left of the file, for as long as somebody reads it."""
