"""What the first rank's `holdfast train` does otherwise where another launcher started it beside others. Starts nothing."""

from __future__ import annotations

from holdfast.base.errors import USAGE, Stop
from holdfast.config.config import Config
from holdfast.config.train import Train
from holdfast.processes.rank_info import RankInfo


def with_ranks(config: Config, rank_info: RankInfo) -> Config:
    """Return the config with the launcher's number of ranks. Raises Stop(2) where it asks for another, or cannot go with that many."""
    asked = config.train.ranks
    if asked not in (1, "auto", rank_info.size):
        text = f"train.ranks is {asked}, and {rank_info.launcher} started {rank_info.size} processes"
        raise Stop(USAGE, text, f"leave train.ranks out: the number of processes is {rank_info.launcher}'s to say")
    if rank_info.size < config.train.ranks_min:
        text = f"{rank_info.launcher} started {rank_info.size} processes, train.ranks_min is {config.train.ranks_min}"
        raise Stop(USAGE, text, "start more, or lower train.ranks_min")
    tree = config.train.model_dump() | {"ranks": rank_info.size}
    try:
        return config.model_copy(update={"train": Train.model_validate(tree)})
    except ValueError as error:
        told = str(error.errors()[0]["msg"]).removeprefix("Value error, ") if hasattr(error, "errors") else str(error)
        raise Stop(
            USAGE,
            f"{rank_info.launcher} started {rank_info.size} processes: {told}",
            "start another number, or change train.reduction_parts",
        ) from None
