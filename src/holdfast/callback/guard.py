"""holdfast inside a plain PyTorch loop: pulse, gate, and a state that the process's death cannot take.

    from holdfast.guard import guard

    with guard(model, optimizer, scheduler, steps=1000) as held:
        for step in range(held.resume(), 1000):
            loss = compute(step)
            loss.backward()
            optimizer.step()                # moves nothing where a gradient is not finite
            scheduler.step()
            optimizer.zero_grad()
            held.step(step, loss)
        held.done()

Under `holdfast run -- python loop.py` a loop that dies is started again, and `resume` loads the state after its newest step that
was kept, random states included. It lies in memory: it outlives the process, not a reboot. Without a supervisor the gate
works alike, and `resume` is 0; so it is where the loop is one of several processes (WORLD_SIZE).
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from holdfast.callback.account import SNAPSHOT, Account
from holdfast.callback.fingerprints import Fingerprints
from holdfast.callback.first_calls import make_first_calls
from holdfast.callback.gate import IN_A_ROW, GradientGate
from holdfast.callback.packed import Packer, back, random_states, set_random_states, strip, unpack


class Guard:
    """Made by `guard`."""

    def __init__(self, held: tuple[Any, ...], steps: int | None, drops: int) -> None:
        self.held, self.steps = held, steps
        self.account, self.gate = Account(), GradientGate(drops)
        path, folder = os.environ.get(SNAPSHOT), self.account.folder
        processes = int(os.environ.get("WORLD_SIZE") or 1)
        self.packer = Packer(Path(path), str(folder.parents[1])) if path and folder is not None and processes == 1 else None
        if path and processes > 1 and folder is not None:
            why = f"the loop is one of {processes} processes, which would go on from different steps"
            self.account.event("no_snapshots", f"no states are kept: {why}")
        self.prints: Fingerprints | None = None
        with contextlib.suppress(OSError):  # a full disk
            self.prints = Fingerprints(folder) if folder is not None else None
        self._at = 0
        self._hooks = [one.register_step_pre_hook(self._look) for one in held if isinstance(one, torch.optim.Optimizer)]

    def __enter__(self) -> Guard:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for hook in self._hooks:
            hook.remove()

    def _look(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if self.gate.passes(one for group in optimizer.param_groups for one in group["params"]):
            return
        self.account.event("gradients_dropped", f"step {self._at}: the gradients are not finite; dropped", step=self._at, count=1)
        if self.gate.in_a_row >= self.gate.limit:
            reason = f"the gradients of {self.gate.in_a_row} steps in a row were not finite, up to step {self._at}"
            self.account.ends(cause="nonfinite_numerics", reason=reason)
            raise FloatingPointError(reason)

    def resume(self) -> int:
        """Load the newest state that was kept, where there is one; return the step to go on with."""
        if self.packer is not None and self.packer.path.exists():
            found = unpack(self.packer.path)
            if found is not None and "held" in found[0]:
                facts, tensors = found
                for one, state in zip(self.held, back(facts["held"], tensors), strict=True):
                    one.load_state_dict(state)
                set_random_states(back(facts["rng"], tensors))
                self._at = int(facts["step"])
                self.account.event("loop_resumed", f"going on with step {self._at}, from the state that was kept in memory", step=self._at)
        self.account.pulse(at_once=True, phase="training", step=self._at, steps=self.steps)
        return self._at

    def step(self, step: int, loss: Any = None) -> None:
        """Note that a step is done, its update included."""
        self._at = step + 1
        self._fingerprint(self._at)
        self.account.pulse(step=self._at, steps=self.steps, dropped=self.gate.dropped, loss=_number(loss))
        if self.packer is not None and self.packer.due():
            self._keep(self.packer)

    def _keep(self, packer: Packer) -> None:
        tensors: list[torch.Tensor] = []
        try:
            facts = {"held": strip([one.state_dict() for one in self.held], tensors), "rng": strip(random_states(), tensors)}
            packer.keep(tensors, facts | {"step": self._at})
        except Exception as error:  # noqa: BLE001  (a full /dev/shm, a state that cannot be kept: the loop goes on)
            self.packer = None
            self.account.event("no_snapshots", f"no states are kept from here on: {type(error).__name__}: {error}")

    def _fingerprint(self, step: int) -> None:
        """Note what a step leaves, and the learning rate and random states that the next one begins with."""
        if self.prints is None:
            return
        model = next((one for one in self.held if isinstance(one, torch.nn.Module)), torch.nn.Module())
        optimizer = next((one for one in self.held if isinstance(one, torch.optim.Optimizer)), None)
        try:
            self.prints.begin(step, None, optimizer)
            self.prints.end(step, model, optimizer)
        except Exception as error:  # noqa: BLE001  (the loop goes on)
            self.prints = None
            self.account.event("no_fingerprints", f"no fingerprints of steps from here on: {type(error).__name__}: {error}")

    def done(self) -> None:
        """Note that the loop has come to its end, so that an exit code of 0 means success."""
        self.account.pulse(at_once=True, phase="done", step=self._at)


def _number(loss: Any) -> float | None:
    """Convert a loss to a number; for a tensor this waits for the device."""
    return None if loss is None else float(loss.detach() if isinstance(loss, torch.Tensor) else loss)


def guard(*held: Any, steps: int | None = None, drops: int = IN_A_ROW) -> Guard:
    """Return the guard of a loop. held: model, optimizer, all else with a state_dict that the loop changes; steps: how many there are.

    drops: steps in a row without finite gradients that end it (FloatingPointError).
    """
    make_first_calls()
    return Guard(held, steps, drops)
