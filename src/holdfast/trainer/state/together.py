"""A state of which each rank takes its part: found by the first, read by all, proven before it is trained on. Trains nothing."""

from __future__ import annotations

import hashlib
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from holdfast.base.files import Json
from holdfast.run.artifact import Artifact
from holdfast.run.snapshots.checkpoint import next_valid, publish_checkpoint, stage_checkpoint, unverified
from holdfast.run.snapshots.memory_file import MemoryFile, Snapshot
from holdfast.run.snapshots.memory_places import of_rank
from holdfast.run.snapshots.piece_files import part_of, ranks_in
from holdfast.trainer.common.job import Job
from holdfast.trainer.common.piece_image import PieceImage
from holdfast.trainer.common.refuse import Refusal
from holdfast.trainer.distributed.rank import PeerLost, Rank
from holdfast.trainer.model.trained.cut import CHECKSUMS, CutPieces
from holdfast.trainer.state.restore import RestorePoint, find_state
from holdfast.trainer.state.sound import damage
from holdfast.trainer.step.training_state import TrainingState

_TRIES = 3  # a writer that begins meanwhile clears away what it takes for left over
_SHOWN = 3
_HINT = "rerun the same command to resume; if it comes again, test memory and disk of this machine, or go back with train.fsdp left out"


def for_all(training: TrainingState, places: list[Path], found: RestorePoint) -> RestorePoint:
    """Turn what the first rank found into what each rank reads; by a checkpoint where another number of ranks left it in memory.

    Raises PeerLost.
    """
    rank = training.rank
    if rank.first and found.snapshot and found.in_memory and ranks_in(found.snapshot.meta) != rank.size:
        found = _durable(training.job, found, training.task.form, rank.size)  # before the files of its parts are made anew for other ranks
        if rank.size == 1:
            return found
    told = rank.exchange(told_of(found))[0]
    if rank.first or told["step"] is None:
        return found
    if not told["in_memory"]:
        return replace(found, snapshot=unverified(training.job.run, told["step"]).mapped())
    if found.snapshot and found.snapshot.artifact:  # read when it was found
        return found
    own = own_part(places, rank, told)
    if own is None:
        raise PeerLost(f"this rank's part of step {told['step']} is gone")
    return replace(found, snapshot=own)


def told_of(found: RestorePoint) -> Json:
    """Encode what other ranks need to know of a state to read their part. ranks: how many parts are in memory."""
    meta = found.snapshot.meta if found.snapshot else {}
    facts: Json = {"step": found.snapshot.step if found.snapshot else None, "in_memory": found.in_memory, "attempt": meta.get("attempt")}
    return facts | {"ranks": ranks_in(meta) if found.in_memory else 0}


def sound_for_all(training: TrainingState, places: list[Path], found: RestorePoint) -> tuple[RestorePoint, list[str]]:
    """Find the newest state that is sound on every rank; return it, and what is wrong with each newer one.

    The training state is left holding one of the states tried.
    """
    said: list[str] = []
    while found.snapshot is not None:
        training.restore(found.snapshot)
        every = training.rank.exchange({"wrong": damage(training, found.snapshot.step), "place": found.place})
        wrong = [f"on rank {number}: {one['wrong']}" for number, one in enumerate(every) if one["wrong"]]
        if not wrong:
            break
        said.append(f"{every[0]['place']} is damaged {wrong[0]}")
        step = found.snapshot.step - 1
        found = find_state(training.job.run, places, step, training.rank.size) if training.rank.first else RestorePoint(None, "", [])
        found = for_all(training, places, found)
    return found, said


def prove(training: TrainingState, snapshot: Snapshot | None) -> None:
    """See that every rank holds what was saved of its parts, by hash, and that all parts make up each layer again.

    snapshot: what this rank read its part from; None: it was cut from the base model. Raises Refusal on all ranks alike: what a rank
    trained on instead would be weights of a fresh model (huggingface/accelerate#4206).
    """
    cut, lost = training.task.step_hooks, []
    assert isinstance(cut, CutPieces)
    sums = cut.wanted
    if snapshot is not None:
        for image, data in ((training.artifact, snapshot.artifact), (training.state, snapshot.state)):
            assert isinstance(image, PieceImage)
            saved = dict(image.of(data))
            lost += [name for name, values in saved.items() if _digest(values) != _digest(image.tensors[name])]
            if image is training.artifact:
                sums = cut.sums(saved)
    every = training.rank.exchange({"lost": lost[:_SHOWN], "count": len(lost), "sums": sums})
    if broken := [number for number, one in enumerate(every) if one["count"]]:
        one = every[broken[0]]
        held = f"rank {broken[0]} does not hold what was saved of {', '.join(one['lost'])} ({one['count']} of its tensors)"
        raise Refusal("hardware_fault", held, _HINT)
    _refuse_strange_layers(training.rank, cut, [sum(column) for column in zip(*(one["sums"] for one in every), strict=True)])


def _refuse_strange_layers(rank: Rank, cut: CutPieces, wanted: list[int]) -> None:
    """Gather each unit once and compare it with what its parts are. Raises Refusal."""
    strange = [number for number, total in enumerate(wanted) if (cut.checksum(number) - total) % CHECKSUMS]
    cut.forget()
    every = rank.exchange({"strange": strange})
    if broken := [number for number, one in enumerate(every) if one["strange"]]:
        first = every[broken[0]]["strange"][0]
        what = f"layer {first}" if first < len(wanted) - 1 else "what is outside of the layers"
        raise Refusal("hardware_fault", f"{what} does not come back from the ranks as its parts are, on rank {broken[0]}", _HINT)


def _durable(job: Job, found: RestorePoint, form: Artifact, ranks: int) -> RestorePoint:
    """Write the same state as a checkpoint that `ranks` ranks can read."""
    assert found.snapshot is not None
    step = found.snapshot.step
    for left in reversed(range(_TRIES)):
        try:
            publish_checkpoint(job.run, stage_checkpoint(job.run, found.snapshot, form), step)
            break
        except FileNotFoundError:
            if not left:
                raise
    checkpoint, _ = next_valid(job.run, [step])
    assert checkpoint is not None
    job.event("checkpoint_saved", step=step, by="the trainer, because another number of ranks goes on")
    return replace(found, snapshot=checkpoint.mapped() if ranks > 1 else found.snapshot, in_memory=False)


def own_part(places: list[Path], rank: Rank, told: Json) -> Snapshot | None:
    """Read this rank's part of the state that the first one found in memory; None where it is damaged or gone."""
    for place in places:
        with ExitStack() as opened:
            memory = MemoryFile.open(of_rank(place, rank.number))
            if memory and (seen := part_of(opened.enter_context(memory), told["step"], told["attempt"])):
                meta, *images = seen
                artifact, state = map(bytes, images)
                for image in images:
                    image.release()
                return Snapshot(told["step"], 0, meta, artifact, state)
    return None


def _digest(tensor: Tensor) -> str:
    return hashlib.sha256(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data).hexdigest()
