"""What a run may train, by name: a package per task, behind the protocol of `trainer/task.py`. Nowhere else is it chosen."""

from holdfast.core.config.config import Config
from holdfast.trainer.task import AnyTask
from holdfast.trainer.tasks.sft.task import Sft

TASKS: dict[str, type[AnyTask]] = {"sft": Sft}


def task_of(_config: Config) -> type[AnyTask]:
    """The task that a config asks for; none asks for another than `sft` yet."""
    return TASKS["sft"]
