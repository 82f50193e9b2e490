"""What a run may train: a package a kind of task, behind the protocol of `trainer/protocol/task.py`, named in its record (base/tasks/).

Each is imported when a run asks for it: a network on tables needs neither transformers nor PEFT.
"""

from __future__ import annotations

from holdfast.base.tasks import kind_of, look_up
from holdfast.config.config import Config
from holdfast.trainer.common.libraries import without_bitsandbytes
from holdfast.trainer.protocol.task import AnyTask


def task_of(config: Config) -> type[AnyTask]:
    """Import and return the class of the task that a config asks for."""
    with without_bitsandbytes():
        found: type[AnyTask] = look_up(kind_of(config).trainer)
    return found
