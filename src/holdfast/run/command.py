"""What is remembered of somebody else's command in its run folder (command.json). Starts nothing."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path

from holdfast.base.errors import damaged
from holdfast.base.files import Json, read_json, write_json
from holdfast.run.folder import RunFolder


@dataclass(frozen=True)
class Command:
    """A command, and how it is to be watched over.

    argv: as its user gave it; folder: where it is started. launcher: id of the card it is known by. checkpoints: the folder of its
    checkpoints, as its user or its arguments name it. progress: a regular expression or a file. retries: most restarts, None:
    as long as it makes progress. hang_s: seconds of silence, at least. stop_s: seconds between being asked to stop and SIGKILL.
    there: checkpoints that were there before, with their time of change: another run's. unknown_option: the option to go on that was
    added to it and that it said it does not know; it is added no more. stdin: the file it reads as its standard input, from byte stdin_at,
    or the name of one in the run folder.
    to: a second place for its states; to_every: fewest steps between two of them that the callback keeps.
    standby: its Python may wait a second time, imports done.
    """

    argv: tuple[str, ...]
    folder: str
    launcher: str | None = None
    checkpoints: str | None = None
    progress: str | None = None
    retries: int | None = None
    hang_s: float = 600.0
    stop_s: float = 60.0
    tries: bool = False
    callback: bool = False
    there: dict[str, int] = field(default_factory=dict)
    unknown_option: str = ""
    stdin: str | None = None
    stdin_at: int = 0
    to: str | None = None
    to_every: int = 1
    standby: bool = True

    @property
    def place(self) -> Path | None:
        """The folder of checkpoints; None where it is not known."""
        return Path(self.folder) / self.checkpoints if self.checkpoints else None


def write_command(run: RunFolder, command: Command) -> None:
    write_json(run.command_file, asdict(command))


def read_command(run: RunFolder) -> Command | None:
    """Read the command of a run; None where there is none. Raises DamagedFile."""
    facts: Json | None = read_json(run.command_file)
    if facts is None:
        return None
    try:
        return Command(**{**facts, "argv": tuple(facts["argv"])})
    except (TypeError, KeyError) as error:
        raise damaged(run.command_file, f"it is no command ({error})") from None
