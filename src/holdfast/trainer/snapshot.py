"""Keep the complete state after each step in the shared-memory file, and mark the ones that are to become checkpoints."""

from __future__ import annotations

import time
from pathlib import Path

from holdfast.core.checkpoint import save_checkpoint
from holdfast.core.files import Json, write_json
from holdfast.core.locks import hold
from holdfast.core.memoryfile import SLOTS, MemoryFile
from holdfast.trainer.setup import Bench

PIN_PATIENCE_S = 5.0  # how long a due checkpoint waits for the writer to finish the one before it
SECURE_PATIENCE_S = 300.0  # how long the best one does, which a finished run cannot do without


class Snapshots:
    """Writes snapshots of a bench, each newer than the last; a reader never meets a half-written one."""

    def __init__(self, bench: Bench, places: list[Path]) -> None:
        self.bench = bench
        self.memory = self._open(places)
        self.generation = max((header.generation for index in range(SLOTS) if (header := self.memory.header(index))), default=0)
        self._newest_is_pinned = False
        self._gave_up_on: int | None = None

    def _open(self, places: list[Path]) -> MemoryFile:
        """The file in the first place that has room; an event for each place that refused."""
        job = self.bench.job
        for number, place in enumerate(places):
            try:
                memory = MemoryFile.create(place, job.run.path, self.bench.artifact.bytes, self.bench.state.bytes)
            except OSError as error:
                job.event("snapshot_place_refused", place=str(place), reason=error.strerror or str(error))
                if number == len(places) - 1:
                    raise
                continue
            memory.unpin_damaged()
            ready = {"memory_file": str(place), "adapter_config": self.bench.task.adapter_config}
            write_json(job.folder / "ready.json", ready, durable=False)
            return memory
        raise AssertionError("there is always a place")

    def take(self, step: int, row: Json, durable: bool) -> None:
        """Write the state after `step`; it counts once it is found finite and sealed. `durable` asks for a checkpoint of it.

        Raises FloatingPointError when weights or optimizer state are not finite; the snapshot before it stays the newest.
        """
        job, memory = self.bench.job, self.memory
        while len(memory.pinned_headers()) > 1:  # left by attempts before; a third slot has to be free beside them and the newest
            self._save_without_writer()
            time.sleep(0.002)
        slot = memory.free_slot()
        memory.begin(slot)
        artifact_at, state_at = memory.payload_offsets(slot)
        finite = self.bench.artifact.write(memory.memory, artifact_at)
        job.point("snapshot", step)
        finite &= self.bench.state.write(memory.memory, state_at)
        if not finite:
            raise FloatingPointError(f"step {step}: weights or optimizer state are not finite after the update")
        self.generation += 1
        self._newest_is_pinned = durable
        memory.seal(slot, step, self.generation, {"step": step, "row": row}, pin=durable)

    def writer_is_free(self, step: int) -> bool:
        """Whether a checkpoint may be asked for: at most one waits at a time. An event tells when one has to be left out."""
        deadline = time.monotonic() + PIN_PATIENCE_S
        while waiting := self.memory.pinned_headers():
            if time.monotonic() > deadline or waiting[0].generation == self._gave_up_on:
                self._gave_up_on = waiting[0].generation
                reason = f"the checkpoint of step {waiting[0].step} is still being written"
                self.bench.job.event("checkpoint_skipped", step=step, reason=reason)
                return False
            time.sleep(0.002)
        return True

    def secure(self, step: int) -> None:
        """Have the snapshot of `step` made durable for certain: wait for the writer's turn, or save what waits where none lives.

        Without such a snapshot the step was restored from its checkpoint, which is durable.
        """
        kept = next((header for index in range(SLOTS) if (header := self.memory.header(index)) and header.step == step), None)
        newest = self.memory.newest_header()
        is_newest = kept is not None and kept == newest
        if kept is None or self.memory.pinned(kept.index) or (is_newest and self._newest_is_pinned):
            return
        deadline = time.monotonic() + SECURE_PATIENCE_S
        while waiting := self.memory.pinned_headers():
            if time.monotonic() > deadline:
                reason = f"the checkpoint of step {waiting[0].step} is still being written after {SECURE_PATIENCE_S:.0f} s"
                self.bench.job.event("checkpoint_skipped", step=step, reason=reason)
                return
            self._save_without_writer()
            time.sleep(0.002)
        self.memory.pin(kept.index)
        self._newest_is_pinned = self._newest_is_pinned or is_newest

    def _save_without_writer(self) -> None:
        """Save the pinned snapshots here, if no writer lives. One that starts meanwhile waits for the lock."""
        job = self.bench.job
        with hold(job.run.writer_lock, wait=False) as free:
            for header in self.memory.pinned_headers() if free else ():
                snapshot = self.memory.read(header)
                if snapshot is not None:
                    save_checkpoint(job.run, snapshot, self.bench.task.adapter_config, job.config.save.keep)
                    job.event("checkpoint_saved", step=snapshot.step, by="the trainer, because no writer lives")
                self.memory.unpin(header.index)

    def pin_newest(self) -> None:
        """Ask for the newest snapshot to be made durable, unless that was asked when it was taken."""
        newest = self.memory.newest_header()
        if newest and not self._newest_is_pinned:
            self.memory.pin(newest.index)
