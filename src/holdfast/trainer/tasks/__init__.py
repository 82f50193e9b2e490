"""What a run may train, by name: a package per task, behind the protocol of `trainer/task.py`. Nowhere else is it chosen.

Each is imported when a run asks for it: a network on tables needs neither transformers nor PEFT.
"""

from __future__ import annotations

from importlib import import_module

from holdfast.config.config import Config
from holdfast.trainer.libraries import without_bitsandbytes
from holdfast.trainer.task import AnyTask


def task_of(config: Config) -> type[AnyTask]:
    """The task that a config asks for."""
    with without_bitsandbytes():
        found: type[AnyTask] = import_module(f"holdfast.trainer.tasks.{config.task}.task").TASK
    return found
