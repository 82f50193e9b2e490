"""holdfast inside a transformers Trainer, or any subclass of it: TRL's, Axolotl's, LLaMA-Factory's, Unsloth's.

    from holdfast.hf import HoldfastCallback
    trainer = Trainer(..., callbacks=[HoldfastCallback()])

`holdfast run --callback -- COMMAND` registers it without a line of code.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from transformers import TrainerCallback

from holdfast.callback.account import SNAPSHOT, Account
from holdfast.callback.fingerprints import Fingerprints, listen
from holdfast.callback.first_calls import make_first_calls
from holdfast.callback.gate import IN_A_ROW, GradientGate
from holdfast.callback.packed import Packer
from holdfast.callback.proof import differing
from holdfast.callback.rows import SamplerRows
from holdfast.callback.snapshot import CallbackSnapshots, CannotSnapshot
from holdfast.callback.standby import is_installed

EXIT_NONFINITE, EXIT_WRONG_RESUME, EXIT_STOPPED = 64, 74, 130  # as run/outcomes.py has them
_OURS = str(Path(__file__).parent)
_first: dict[str, Any] = {}  # of this process's first training: the folder it saves to, what was there, and the step it begins behind
_trainings: Counter[str] = Counter()  # of this process so far, by that folder


def _guarded(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a hook: on an error of ours, report it once and step aside; training goes on. An exit that it decides on is let through."""

    @functools.wraps(hook)
    def safely(self: HoldfastCallback, *arguments: Any, **keywords: Any) -> Any:
        if self.aside:
            return None
        try:
            return hook(self, *arguments, **keywords)
        except Exception as error:  # noqa: BLE001  (whatever it is, their training goes on)
            self.aside = True
            with contextlib.suppress(Exception):  # what failed may fail here
                self.account.event("callback_error", f"the callback has stepped aside: {type(error).__name__}: {error}")
                self.account.pulse(at_once=True, aside=True)
            return None

    return safely


class HoldfastCallback(TrainerCallback):  # type: ignore[misc]
    """Pulse, gate, a stop that saves, snapshots after each step, and a look at what a resume has loaded.

    trainer: where it is given, the states of its other callbacks are kept, too. drops: dropped steps in a row that end the run.
    """

    def __init__(self, trainer: Any = None, drops: int = IN_A_ROW) -> None:
        self.trainer, self.aside = trainer, False
        self.account, self.gate = Account(), GradientGate(drops)
        self.snapshots: CallbackSnapshots | None = None
        self.rows: SamplerRows | None = None
        self.prints: Fingerprints | None = None
        self.drawn: list[Any] = []  # what the step that begins is computed from
        self.beyond = self.between = False  # its last step; two steps
        self.epoch_ends = self.evaluates = False  # what the newest step's state waits for
        self.training = self.stopping = False
        self.loss: float | None = None
        with contextlib.suppress(Exception):  # their training goes on without
            make_first_calls()

    @_guarded
    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, train_dataloader: Any = None, **more: Any) -> None:
        if self._is_not_the_one():
            return
        self.alone = int(getattr(args, "world_size", 1)) == 1
        place = Path(args.output_dir).resolve()
        if not self.training:  # with auto_find_batch_size one training begins several times
            _trainings[str(place)] += 1
        if not _first:
            there = {entry.name: _changed(entry) for entry in place.glob("checkpoint-*")} if state.global_step == 0 else {}
            _first.update(place=str(place), there=there, began=int(state.global_step))
        self.training = True
        self.account.pulse(
            at_once=True,
            phase="training",
            step=int(state.global_step),
            steps=int(state.max_steps),
            **_first,
            training=sum(_trainings.values()),
            trainings=max(_trainings.values()),
            places=list(_trainings),
            python=sys.executable,
        )
        if state.global_step > 0 and model is not None:
            self._prove_resume(model)
        self.gates = not getattr(args, "fp16", False) and not getattr(args, "deepspeed", None)  # both look at gradients themselves
        if self.alone:
            self._take_sigterm()
            if not getattr(state, "is_hyper_param_search", False):  # a trial's state is of no use to another
                self._begin_snapshots(args, model, more.get("processing_class"))
            self._begin_rows(args, state, train_dataloader)
            self._begin_fingerprints(state, model, more.get("optimizer"))

    def _is_not_the_one(self) -> bool:
        """Return whether its Trainer has another such callback, added later: by its user, who may have said more to it."""
        known = getattr(getattr(self.trainer, "callback_handler", None), "callbacks", ())
        *earlier, last = [one for one in known if isinstance(one, HoldfastCallback)] or [self]
        last.trainer = last.trainer or self.trainer
        for one in earlier:
            one.aside = True
        return self.aside

    def _prove_resume(self, model: Any) -> None:
        """End the process where it did not load what the checkpoint holds."""
        checkpoint = _resumed_from()
        found = differing(model, checkpoint) if checkpoint is not None else None
        if checkpoint is None or found is None:
            return
        wrong, looked = found
        if not wrong:
            self.account.event(
                "resume_proven", f"resumed from {checkpoint.name}: all {looked} tensors are as they were saved", tensors=looked
            )
            return
        text = f"after resuming from {checkpoint.name}, {len(wrong)} of {looked} tensors do not hold what was saved (first: {wrong[0]})"
        self.account.event("resume_wrong", text, wrong=len(wrong), tensors=looked)
        self.account.ends(
            cause="checkpoint_model_mismatch", reason=f"{text}: going on would train an adapter that is not yours", final=True
        )
        raise SystemExit(EXIT_WRONG_RESUME)

    def _take_sigterm(self) -> None:
        held = signal.getsignal(signal.SIGTERM)
        free = held == signal.SIG_DFL or getattr(held, "__func__", None) is HoldfastCallback._stop  # of a training that broke off
        if free and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._stop)

    def _give_sigterm_back(self) -> None:
        """Let SIGTERM end the process again: what its script does behind the training has no step to be saved after."""
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == self._stop:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _stop(self, *_: object) -> None:
        self.stopping = True

    def _begin_snapshots(self, args: Any, model: Any, processing: Any) -> None:
        path, folder = os.environ.get(SNAPSHOT), self.account.folder
        if path and folder is not None and sum(_trainings.values()) > 1:
            Path(path).unlink(missing_ok=True)  # a state of the training before
        if not path or folder is None or model is None or getattr(args, "fp16", False) or getattr(args, "deepspeed", None):
            return
        snapshots = CallbackSnapshots(Packer(Path(path), str(folder.parents[1])), folder / "pattern")
        try:
            snapshots.begin(model, processing, args)
        except CannotSnapshot as error:
            self.account.event("no_snapshots", f"no snapshots between checkpoints: {error}")
            return
        except Exception as error:  # noqa: BLE001  (a model that is no transformers model, a full disk: all else goes on)
            self.account.event("no_snapshots", f"no snapshots between checkpoints: {type(error).__name__}: {error}")
            return
        self.snapshots = snapshots

    def _begin_rows(self, args: Any, state: Any, loader: Any) -> None:
        self.rows = None
        if self.account.folder is None:
            return
        with contextlib.suppress(ValueError, TypeError, OSError):  # no sampler, an endless data set, a full disk
            self.rows = SamplerRows(loader, int(args.gradient_accumulation_steps), self.account.folder)
            in_epoch = max(1, -(-self.rows.batches // self.rows.accumulation))
            self.resumed = 0 if args.ignore_data_skip else int(state.global_step) % in_epoch

    def _begin_fingerprints(self, state: Any, model: Any, optimizer: Any) -> None:
        self.prints = None
        if self.account.folder is None or model is None:
            return
        with contextlib.suppress(OSError, TypeError, ValueError):  # a full disk, a method that has no signature
            self.prints = Fingerprints(self.account.folder, sum(_trainings.values()))
            listen(self.trainer, self.drawn)
        if state.global_step > 0:
            self._look(lambda prints: prints.loaded(int(state.global_step), model, optimizer))

    def _look(self, look: Callable[[Fingerprints], None]) -> None:
        """Note a fingerprint; a disk that takes no more, or a state of a form nobody knows, end the fingerprints alone."""
        if self.prints is None:
            return
        try:
            look(self.prints)
        except Exception as error:  # noqa: BLE001  (their training goes on)
            self.prints = None
            self.account.event("no_fingerprints", f"no fingerprints of steps from here on: {type(error).__name__}: {error}")

    @_guarded
    def on_epoch_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        if self.rows is not None:
            self.rows.begin_epoch(self.resumed)
            self.resumed = 0

    @_guarded
    def on_epoch_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self.epoch_ends = False
        if control.should_log or control.should_evaluate:
            self._reopen(state)
        self._keep_whole(state, control, more)

    @_guarded
    def on_step_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self._keep(state, control, more)  # all of the step before has come
        self.between = False
        self.beyond = 0 < state.max_steps <= state.global_step  # a Trainer that goes on from its last step computes one more
        if self.rows is not None:
            self._note(self.rows.begin, int(state.global_step) + 1)
        rows = self.rows.now if self.rows is not None else None
        self._look(lambda prints: prints.begin(int(state.global_step) + 1, rows, more.get("optimizer"), self.drawn))
        self.drawn.clear()

    def _note(self, write: Callable[[int], None], step: int) -> None:
        """Note which rows a step has, or that it is done; a disk that takes no more, or rows with strange names, end the notes alone."""
        try:
            write(step)
        except (OSError, TypeError, ValueError):
            self.rows = None

    @_guarded
    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **more: Any) -> None:
        if model is not None and self.gates and self.beyond:
            model.zero_grad(set_to_none=True)  # the optimizer moves nothing
            return
        groups = getattr(more.get("optimizer"), "param_groups", None)  # a walk through all modules takes longer than the norm
        held = model.parameters() if groups is None and model is not None else (one for group in groups or () for one in group["params"])
        if model is None or not self.gates or self.gate.passes(held):
            return
        step, row = int(state.global_step) + 1, self.gate.in_a_row
        samples = self.rows.now if self.rows is not None else []
        of = f" (rows {', '.join(map(str, samples[:8]))}{', ...' if len(samples) > 8 else ''})" if samples else ""
        text = f"step {step}{of}: the gradients are not finite; dropped, the weights are as they were"
        self.account.event("gradients_dropped", text, step=step, count=1, samples=samples)
        if row >= self.gate.limit:
            reason = f"the gradients of {row} steps in a row were not finite, up to step {step}"
            self.account.ends(cause="nonfinite_numerics", reason=reason)
            raise SystemExit(EXIT_NONFINITE)

    @_guarded
    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> Any:
        if self.beyond and self.gates:
            state.global_step = int(state.max_steps)
            if (loss := getattr(self.trainer, "_tr_loss", None)) is not None:
                loss.zero_()  # it would be divided by a thousandth of a step
        if self.rows is not None:
            self._note(self.rows.end, int(state.global_step))
        last = 0 < state.max_steps <= state.global_step
        self._look(lambda prints: prints.end(int(state.global_step), more.get("model"), more.get("optimizer"), last))
        self.account.pulse(step=int(state.global_step), steps=int(state.max_steps), dropped=self.gate.dropped, loss=self.loss)
        if self.snapshots is not None and not self._is_in_a_round(args):
            self.snapshots.end_step()
            self.between, self.evaluates = True, False
            self.epoch_ends = state.global_step >= state.max_steps or float(state.epoch or 0.5).is_integer()  # on_epoch_end is to come
            self._keep_whole(state, control, more)
        if self.stopping:
            control.should_save = True
        return control

    def _is_in_a_round(self, args: Any) -> bool:
        """Return whether it is amid steps of answers that TRL's online trainers sample once, and anew behind a resume."""
        done, in_round = getattr(self.trainer, "_step", None), getattr(args, "steps_per_generation", None)  # counted in micro-batches
        if not isinstance(done, int) or not in_round:
            return False
        return done % (int(in_round) * int(getattr(self.trainer, "num_iterations", 1))) != 0

    def _reopen(self, state: Any) -> None:
        if self.snapshots is not None and self.between:
            self.snapshots.reopen(int(state.global_step))

    def _keep_whole(self, state: Any, control: Any, more: dict[str, Any]) -> None:
        """Keep the state after the newest step, unless a row or an evaluation of it is to come; then the next step's begin keeps it.

        An evaluation decides on the best checkpoint and on stopping behind its last hook.
        """
        self.evaluates = self.evaluates or control.should_evaluate
        if self.between and not (control.should_log or self.evaluates or self.epoch_ends):
            self._keep(state, control, more)

    def _keep(self, state: Any, control: Any, more: dict[str, Any]) -> None:
        if self.snapshots is None:
            return
        try:
            flos = getattr(self.trainer, "current_flos", 0)  # not yet in the state
            self.snapshots.keep(more.get("optimizer"), more.get("lr_scheduler"), state, self._callbacks(control), flos)
        except Exception as error:  # noqa: BLE001  (a full /dev/shm, an optimizer of another kind: all else goes on)
            self.snapshots = None
            self.account.event("no_snapshots", f"no snapshots from here on: {type(error).__name__}: {error}")

    def _callbacks(self, control: Any) -> dict[str, Any]:
        """Return the states of callbacks as a checkpoint holds them."""
        known = list(getattr(getattr(self.trainer, "callback_handler", None), "callbacks", ()))
        return {type(one).__name__: one.state() for one in [*known, control] if hasattr(one, "state")}

    @_guarded
    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **more: Any) -> None:
        for name in ("loss", "eval_loss", "grad_norm"):
            value = (logs or {}).get(name)
            if isinstance(value, (int, float)) and not math.isfinite(value):
                self.account.event("not_finite", f"step {state.global_step}: {name} is {value}", step=int(state.global_step), name=name)
            elif name == "loss" and isinstance(value, (int, float)):
                self.loss = float(value)
                self.account.pulse(loss=self.loss)  # the step's own pulse came before it
        if "train_runtime" not in (logs or {}):  # of the whole training, behind its last step
            self._reopen(state)
            self._keep_whole(state, control, more)

    @_guarded
    def on_prediction_step(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        if self.training:  # else the steps of another Trainer of this process would be told to be these
            self.account.pulse(step=int(state.global_step))
        if self.between and not self.evaluates:
            self.evaluates = True
            self._reopen(state)

    @_guarded
    def on_evaluate(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self.evaluates = True
        self._reopen(state)  # with the random states it leaves

    @_guarded
    def on_save(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        if self.stopping and state.global_step < state.max_steps:
            self._end_stopped(state)

    @_guarded
    def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self.between = self.training = False  # what is evaluated from here on is of no step
        self._give_sigterm_back()
        kept = self.snapshots.packer if self.snapshots is not None else None
        if kept is not None and kept.taken:
            self.account.pulse(snapshots=kept.taken, snapshot_s=kept.cost_s, step_s=kept.step_s)
        if self.rows is not None:
            self.rows.close()
            self.rows = None
        self._look(lambda prints: prints.close())
        self.prints = None
        self.account.pulse(at_once=True, phase="done", step=int(state.global_step), steps=int(state.max_steps), called_at=_own_lines())

    def _end_stopped(self, state: Any) -> None:
        self.account.pulse(at_once=True, phase="stopped", step=int(state.global_step))
        self.account.ends(phase="stopped", step=int(state.global_step))
        self.account.event("stopped", f"stopped after step {state.global_step}, which is saved")
        raise SystemExit(EXIT_STOPPED)


def _own_lines() -> list[tuple[str, int]]:
    """Return where the command's own files stand, which made the training: another may follow there."""
    frame: FrameType | None = sys._getframe()
    found = []
    while frame is not None:
        file = frame.f_code.co_filename
        if os.path.isabs(file) and not is_installed(file) and not file.startswith(_OURS):  # noqa: PTH117
            found.append((file, frame.f_lineno))
        frame = frame.f_back
    return found


def _resumed_from() -> Path | None:
    """Return the checkpoint that the Trainer which is calling us goes on from, as it was told itself; None where there is none."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and "resume_from_checkpoint" not in frame.f_code.co_varnames:
        frame = frame.f_back
    told = frame.f_locals.get("resume_from_checkpoint") if frame is not None else None
    return Path(told) if isinstance(told, (str, os.PathLike)) and Path(told).is_dir() else None


def _changed(entry: Path) -> int:
    for file in (entry / "trainer_state.json", entry):
        try:
            return file.stat().st_mtime_ns
        except OSError:
            continue
    return 0
