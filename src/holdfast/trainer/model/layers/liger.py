"""Norms, activations and rotary positions as Liger's Triton kernels, where that package is installed. The loss stays ours (head.py).

Used only once the proof at the run's start (proof.py) has seen them give the loss and the gradients that the model's own code gives.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any, ClassVar

from torch import nn

from holdfast.base.errors import error_message

_NOTHING = object()


class Liger:
    """Liger's kernels on one loaded model, which is in use then. `refused`: why it has none; empty where it has.

    Its modules get theirs for good. Rotary positions are a function that all models of an architecture share: `use` says before each
    pass whose it is. Source: https://github.com/linkedin/Liger-Kernel
    """

    _in_use: ClassVar[Liger | None] = None

    def __init__(self, model: nn.Module) -> None:
        Liger.use(None)
        shared = vars(sys.modules[type(model).__module__])
        own_shared = dict(shared)
        own = [(vars(module), dict(vars(module))) for module in model.modules()]
        self.refused = _apply(model)
        changed = _changes(shared, own_shared)
        self.functions = [change for change in changed if isinstance(change[3], FunctionType)]
        self.methods = [change for names, before in own for change in _changes(names, before)]
        _put(changed, fused=False)  # the classes, too: models built later are their own
        if not self.methods:
            self.refused = self.refused or "it has none for this architecture"
        _put(self.methods, fused=not self.refused)

    @classmethod
    def use(cls, wanted: Liger | None) -> None:
        """Let the next pass be that of the model of `wanted`, or of one without Liger."""
        if cls._in_use is not wanted:
            _put(cls._in_use.functions if cls._in_use else [], fused=False)
            _put(wanted.functions if wanted else [], fused=True)
            cls._in_use = wanted

    @contextmanager
    def off(self) -> Iterator[None]:
        """Compute with the model's own code within the context; use Liger's again afterwards."""
        Liger.use(None)
        _put(self.methods, fused=False)
        yield
        _put(self.methods, fused=True)
        Liger.use(self)


def _apply(model: nn.Module) -> str:
    """Let the package put its kernels in; return what it raised, or nothing."""
    try:
        from liger_kernel.transformers.monkey_patch import _apply_liger_kernel_to_instance  # type: ignore[import-not-found]

        _apply_liger_kernel_to_instance(model=model, cross_entropy=False, fused_linear_cross_entropy=False)
    except Exception as error:  # noqa: BLE001  (not there, of another transformers, without a Triton that works: the model has its own code)
        return error_message(error)
    return ""


_Change = tuple[dict[str, Any], str, Any, Any]  # names, one of them, its own value, Liger's


def _changes(names: dict[str, Any], before: dict[str, Any]) -> list[_Change]:
    return [(names, name, before.get(name, _NOTHING), value) for name, value in names.items() if before.get(name, _NOTHING) is not value]


def _put(changes: list[_Change], fused: bool) -> None:
    for names, name, own, ligers in changes:
        if fused or own is not _NOTHING:
            names[name] = ligers if fused else own
        else:
            del names[name]
