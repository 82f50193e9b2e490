"""The laboratory of a prepared run, as the commands open it that experiment with a config before it is trained."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from holdfast.base.errors import GAVE_UP, Stop
from holdfast.config.config import Config
from holdfast.experiments.laboratory import Laboratory
from holdfast.experiments.replay import START_S
from holdfast.processes.ending import Stuck
from holdfast.run.folder import RunFolder
from holdfast.supervision.launch import child_environment, trainer_launch
from holdfast.supervision.preparation.faults import write_faults
from holdfast.terminal.run_view import Terminal


@contextlib.contextmanager
def laboratory_of(run: RunFolder, config: Config, terminal: Terminal, start_s: float = START_S) -> Iterator[Laboratory]:
    """Open the laboratory of a prepared run. Raises Stop(3) where a child cannot be ended."""
    environment, faults = child_environment(trainer_launch(run).env), write_faults(run, config.faults)
    with Laboratory(run, environment, faults, terminal.say, start_s=start_s) as lab:
        try:
            yield lab
        except Stuck as stuck:
            raise Stop(GAVE_UP, str(stuck), "restart the machine, or at least the driver") from None
