"""Commit steps: keep the complete state in the shared-memory file, journal the step's row, mark what is to become a checkpoint."""

from __future__ import annotations

import errno
import statistics
import threading
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import orjson
import torch
from torch import Tensor

from holdfast.base.files import Json, append_line, read_json, takes_nothing, write_json
from holdfast.base.locks import hold
from holdfast.machine import clock
from holdfast.run.snapshots.checkpoint import save_checkpoint
from holdfast.run.snapshots.memory_file import META_BYTES, SLOTS, MemoryFile, SlotHeader, file_bytes
from holdfast.run.snapshots.memory_places import SHARED_MEMORY
from holdfast.run.snapshots.piece_files import everybodys, unpin
from holdfast.run.snapshots.save_interval import snapshot_interval
from holdfast.trainer.common.images import ABSURD
from holdfast.trainer.common.pinned import PinnedMapping
from holdfast.trainer.step.training_state import TrainingState

PIN_PATIENCE_S = 5.0  # how long a due checkpoint waits for the writer to finish the one before it
SECURE_PATIENCE_S = 300.0  # how long the best one does, which a finished run cannot do without
_BEAT_S = 1.0
_MEASURED = 16  # snapshots whose cost the interval goes by
_FIRST = 4  # of a large state, which costs from the first on; two of them touch memory that is new
_PATIENT = 8  # intervals that a large state waits for the writer; a full disk may keep it for hours
_LARGE = 32 << 20  # bytes of a state that takes tens of milliseconds to copy and to seal


class Snapshots:
    """Writes snapshots of a training state, each newer than the last; a reader never meets a half-written one.

    The step waits for the copy of its state alone. Checking that copy, sealing and journalling happen in a thread, beside the next step.
    From a device that thread copies, too, straight from what is trained, while the next step computes its gradients; only the update waits
    for it (`wait_until_copied`). So a snapshot needs no memory of the device.
    """

    def __init__(self, training: TrainingState, places: list[Path]) -> None:
        self.training = training
        self.memory = self._open(places)
        self.generation = max((header.generation for index in range(SLOTS) if (header := self.memory.header(index))), default=0)
        self.journalled = training.job.run.committed()
        self.every = 1  # steps between snapshots
        # a thread's current device is the first one, whatever the main thread's is
        own = partial(torch.cuda.set_device, training.device) if training.device.type == "cuda" else None
        self._thread = ThreadPoolExecutor(1, initializer=own)
        self._thread.submit(int).result()  # started now: under a memory limit that is nearly reached a thread cannot be
        self._sealing: Future[None] | None = None
        self._side = torch.cuda.Stream(training.device) if training.device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._gone = threading.Event()  # the state has left the device
        self._gone.set()
        self._waited_s = 0.0  # for the newest snapshot, wherever it was waited for
        self._pinned: PinnedMapping | None = None
        self._unwritten: list[Json] = []
        # parts of a state that is cut are of different sizes, and all ranks decide alike
        self._large = not training.job.config.cuts_trained and training.artifact.bytes + training.state.bytes >= _LARGE
        self._measured = _FIRST if self._large else _MEASURED
        self._costs: deque[float] = deque(maxlen=_MEASURED)
        self._sealing_s = 0.0  # of a large state, on cores that compute steps meanwhile
        self._last: int | None = None
        self._newest_is_pinned = False
        self._gave_up_on: int | None = None
        if self._side is not None:
            self._sealing = self._thread.submit(self._pin_slots)  # gigabytes take a second: beside the first step

    def _open(self, places: list[Path]) -> MemoryFile:
        """Create the memory file in the first place that has room; report an event for each place that refused."""
        job = self.training.job
        for place in places:
            last = place == places[-1]
            memory = self._made(place, last)
            if isinstance(memory, OSError):
                job.event("snapshot_place_refused", place=str(place), reason=memory.strerror or str(memory))
                if last:
                    raise memory
                continue
            memory.unpin_damaged()
            self._tell_ready(place)
            return memory
        raise AssertionError("there is always a place")

    def _made(self, place: Path, last: bool) -> MemoryFile | OSError:
        """Create the memory file in a place, or return why that failed. last: there is no other place to try."""
        try:
            if not last:
                _refuse_much_memory(place, self.training)
            # main memory is taken when it is needed; a disk may be full then, and a driver pins all of the file
            spare = place.parent != SHARED_MEMORY or self.training.device.type != "cpu"
            return MemoryFile.create(place, self.training.job.run.path, self.training.artifact.bytes, self.training.state.bytes, spare)
        except OSError as error:
            return error

    def _tell_ready(self, place: Path) -> None:
        """Write down where snapshots are, and what they hold."""
        ready = {"memory_file": str(place), "artifact": self.training.task.form.as_json()}
        durable = self.training.job.config.save.flush_snapshots  # without it they cannot be made a checkpoint after a power cut
        write_json(self.training.job.folder / "ready.json", ready, durable)

    def agreed(self, durable: bool) -> bool:
        """Return whether the step about to be committed becomes a checkpoint, for all ranks that keep a part of it."""
        return durable

    # -- committing a step

    def commit(self, step: int, row: Json, durable: bool, needed: bool = False) -> None:
        """Take the state after `step`, unless snapshots are further apart; it counts once it was found finite and sealed.

        `durable` asks for a checkpoint of it, `needed` for a snapshot in any case: it may turn out to be the best. Raises what went
        wrong with the step before: FloatingPointError when weights or optimizer state are not finite, in which case the snapshot before
        it stays the newest; OSError when the disk takes no more.
        """
        if self._behind() and not (durable or needed):
            assert self._sealing is not None
            self._sealing = self._thread.submit(self._follow, self._sealing, row)
            return
        began = time.perf_counter()
        self.settle()
        self._waited_s += time.perf_counter() - began
        busy = time.thread_time()
        if not (durable or needed or self._is_due(step)):
            self._journal(row)
            return
        if not self.memory.path.exists():  # a login's end takes a user's files in /dev/shm away where systemd's RemoveIPC is on
            self.memory.renew(self.training.job.run.path)
            if self._side is not None:
                self._thread.submit(self._pin_slots).result()
            self.training.job.event("snapshot_file_made_again", step=step, place=str(self.memory.path))
        while len(self.memory.pinned_headers()) > 1:  # left by attempts before; a third slot has to be free beside them and the newest
            self._save_without_writer()
            time.sleep(0.002)
        slot = self._free_slot()
        self.memory.begin(slot)
        extremes: list[Tensor] = []
        if self._side is None:
            self._copy(slot, step)
        else:
            extremes = [*self.training.artifact.extremes(), *self.training.state.extremes()]
            self._side.wait_stream(torch.cuda.current_stream(self.training.device))
            self._gone.clear()
        self._last = step
        self._sealing = self._thread.submit(self._seal, slot, step, row, durable, extremes)
        waited, self._waited_s = self._waited_s, 0.0
        self._pace(waited + time.thread_time() - busy + self._sealing_s, row["seconds"])

    def _free_slot(self) -> int:
        """Return the slot to write next; wait for the writer where there is no room for a third one.

        Raises OSError (ENOSPC) where that takes too long.
        """
        deadline = time.monotonic() + SECURE_PATIENCE_S
        while (slot := self.memory.free_slot()) is None:
            if time.monotonic() > deadline:
                raise OSError(errno.ENOSPC, f"no room for another snapshot in {self.memory.path.parent}, and the writer writes none")
            self._await_writer()
        return slot

    def _is_due(self, step: int) -> bool:
        """Decide whether it is time for a snapshot.

        A large state is better taken once the writer has the one before, since a third slot would hold it for that while alone; but a death
        costs the steps since the newest one.
        """
        if self._last is None:
            return True
        since = step - self._last
        waits = self._large and since < _PATIENT * self.every and bool(self.memory.pinned_headers())
        return since >= self.every and not waits

    def wait_until_copied(self) -> None:
        """Wait until the snapshot that is being taken has left the device: before that nothing it holds may change."""
        began = time.perf_counter()
        self._gone.wait()
        self._waited_s += time.perf_counter() - began

    def settle(self) -> None:
        """Wait until the newest snapshot counts and its step is journalled. Raises what went wrong with it."""
        if self._sealing is not None:
            sealing, self._sealing = self._sealing, None
            sealing.result()

    def end(self) -> None:
        """Journal what is still unwritten; nothing more will be committed. Raises OSError when the disk takes no more."""
        self.settle()
        for row in self._unwritten:
            append_line(self.training.job.run.steps_file, row)
        self._unwritten, self.memory.unwritten = [], 0
        if self._pinned is not None:
            self._pinned.release()

    def _pin_slots(self) -> None:
        """Let the device copy into the slots directly; report an event where its driver refuses. Runs in the thread."""
        if self._pinned is not None:
            self._pinned.release()
        self._pinned = PinnedMapping(self.memory.memory, self.training.device)
        if self._pinned.refused:
            self.training.job.event("snapshot_not_pinned", place=str(self.memory.path), reason=self._pinned.refused)

    def _behind(self) -> bool:
        """Return whether the previous snapshot is still being copied from a device; on a CPU it has been waited for."""
        return self._side is not None and self._sealing is not None and not self._sealing.done()

    def _follow(self, before: Future[None], row: Json) -> None:
        """Journal a step without a snapshot of its own, after the step before it and only if that was journalled. Runs in the thread."""
        before.result()
        self._journal(row)

    def _copy(self, slot: int, step: int) -> None:
        artifact_at, state_at = self.memory.payload_offsets(slot)
        self.training.artifact.write(self.memory.memory, artifact_at)
        self.training.job.point("snapshot", step)
        self.training.state.write(self.memory.memory, state_at)

    def _copied_from_device(self, slot: int, step: int, extremes: list[Tensor]) -> bool:
        """Copy the state beside the step that computes; return whether its extremes are sane."""
        with torch.cuda.stream(self._side):
            try:
                self._copy(slot, step)
            finally:
                self._gone.set()
            return all(abs(float(value)) <= ABSURD for value in extremes)

    def _seal(self, slot: int, step: int, row: Json, durable: bool, extremes: list[Tensor]) -> None:
        """Make the written slot the newest snapshot, then journal its step. Runs in the thread."""
        job, memory, began = self.training.job, self.memory, time.thread_time()
        artifact_at, state_at = memory.payload_offsets(slot)
        sound = self._side is None or self._copied_from_device(slot, step, extremes)
        if not (
            sound and self.training.artifact.finite(memory.memory, artifact_at) and self.training.state.finite(memory.memory, state_at)
        ):
            raise FloatingPointError(f"step {step}: weights or optimizer state are not finite, or absurdly large, after the update")
        self.generation += 1
        self._newest_is_pinned = durable
        memory.seal(slot, step, self.generation, self._meta(step, row), pin=durable)
        if job.config.save.flush_snapshots:
            memory.flush(slot)
        if self._large and self._side is None:
            self._sealing_s = time.thread_time() - began
        job.point("commit", step)
        self._journal(row)

    def _meta(self, step: int, row: Json) -> Json:
        """Return the facts that are stored with the tensors of a snapshot."""
        return {"step": step, "rows": [*self._unwritten, row]}

    def _journal(self, row: Json) -> None:
        """Append the rows of committed steps. While the disk takes none they stay in the snapshots, and training goes on."""
        if row["step"] <= self.journalled:
            return
        self.journalled = row["step"]
        self._unwritten.append(row)
        job, before = self.training.job, len(self._unwritten) - 1
        try:
            while self._unwritten:
                append_line(job.run.steps_file, self._unwritten[0], durable=job.config.save.flush_snapshots)
                del self._unwritten[0]
        except OSError as error:
            too_many = len(orjson.dumps(self._unwritten)) > META_BYTES // 2
            if not takes_nothing(error) or too_many:
                raise
        self.memory.unwritten = len(self._unwritten)
        if before and not self._unwritten:
            job.event("disk_full_over", step=row["step"], rows=before)

    def _pace(self, cost_s: float, step_s: float) -> None:
        """Take snapshots further apart, or closer again, as their cost asks for. One slow copy among many counts little."""
        self._costs.append(cost_s)
        if len(self._costs) < self._measured:
            return
        cost = statistics.median_low(self._costs)
        self._costs.clear()
        self._measured = _MEASURED
        every = self._interval(cost, step_s)
        if every > self.every or every <= self.every // 2:
            self.every = every
            reason = f"one costs a step {cost * 1000:.1f} ms of {step_s * 1000:.0f} ms"
            self.training.job.event("snapshot_interval", step=self._last, steps=every, reason=reason)

    def _interval(self, cost_s: float, step_s: float) -> int:
        """Return the number of steps between snapshots that cost `cost_s` where a step takes `step_s`."""
        return snapshot_interval(cost_s, step_s)

    # -- checkpoints

    def writer_is_free(self, step: int, wait: bool) -> bool:
        """Return whether a checkpoint may be requested: at most one waits at a time.

        wait: give the writer some time, because no other step will do; an event reports where the checkpoint is left out.
        """
        self.settle()
        if not wait:
            return not self.memory.pinned_headers()
        deadline = time.monotonic() + PIN_PATIENCE_S
        while waiting := self.memory.pinned_headers():
            if time.monotonic() > deadline or waiting[0].generation == self._gave_up_on:
                self._gave_up_on = waiting[0].generation
                reason = f"the checkpoint of step {waiting[0].step} is still being written"
                self.training.job.event("checkpoint_skipped", step=step, reason=reason)
                return False
            time.sleep(0.002)
        return True

    def secure(self, step: int) -> None:
        """Have the snapshot of `step` made durable for certain: wait for the writer's turn, or save what waits where none lives.

        Without such a snapshot the step was restored from its checkpoint, which is durable.
        """
        kept = self._kept(step)
        if not self._secured(kept) and self._turn(step):
            self._pin(kept)

    def _turn(self, step: int) -> bool:
        """Wait until no other snapshot waits to be made durable; False, and an event, where one does for too long."""
        deadline = time.monotonic() + SECURE_PATIENCE_S
        while waiting := self.memory.pinned_headers():
            if time.monotonic() > deadline:
                reason = f"the checkpoint of step {waiting[0].step} is still being written after {SECURE_PATIENCE_S:.0f} s"
                self.training.job.event("checkpoint_skipped", step=step, reason=reason)
                return False
            self._await_writer()
        return True

    def _await_writer(self) -> None:
        """Wait an instant for the writer, or save where none lives. The pulse goes on: a slow disk is no hang, and has its own limit."""
        self._save_without_writer()
        pulse, now = self.memory.pulse(), clock.now()
        if pulse and now - pulse["time"] > _BEAT_S:
            self.memory.beat(pulse | {"time": now})
        time.sleep(0.002)

    def _kept(self, step: int) -> SlotHeader | None:
        """Return the header of the slot that holds the state after `step`; None where there is none."""
        return next((header for index in range(SLOTS) if (header := self.memory.header(index)) and header.step == step), None)

    def _secured(self, kept: SlotHeader | None) -> bool:
        """Return whether a slot's state is durable or was asked to be. Without a slot it was restored from a checkpoint."""
        if kept is None or self.memory.pinned(kept.index):
            return True
        return kept == self.memory.newest_header() and self._newest_is_pinned

    def _pin(self, kept: SlotHeader | None) -> None:
        """Ask for the state of a slot to be made durable."""
        if kept is not None:
            self.memory.pin(kept.index)
            self._newest_is_pinned = self._newest_is_pinned or kept == self.memory.newest_header()

    def _save_without_writer(self) -> None:
        """Save the pinned snapshots here, if no writer lives. One that starts meanwhile waits for the lock."""
        job = self.training.job
        with hold(job.run.writer_lock, wait=False) as free:
            for header in self.memory.pinned_headers() if free else ():
                with everybodys(self.memory, header) as state:
                    if state is not None:
                        save_checkpoint(job.run, state, self.training.task.form, job.config.save)
                        job.event("checkpoint_saved", step=state.step, by="the trainer, because no writer lives")
                unpin(self.memory, header)

    def pin_newest(self) -> None:
        """Ask for the newest snapshot to be made durable, unless that was asked when it was taken."""
        if not self._newest_is_pinned:
            self._pin(self.memory.newest_header())


def _refuse_much_memory(place: Path, training: TrainingState) -> None:
    """Raise OSError where the snapshots, of all ranks that keep any, would take more than a quarter of the machine's memory."""
    ranks = training.rank.size if training.job.config.cuts_trained else 1
    size = ranks * file_bytes(training.artifact.bytes, training.state.bytes)
    memory = (read_json(training.job.run.machine_file) or {}).get("memory_bytes")
    if place.parent == SHARED_MEMORY and memory and size > memory / 4:
        raise OSError(errno.ENOSPC, f"snapshots of {size >> 20:,} MiB would take more than a quarter of {memory >> 20:,} MiB of memory")
