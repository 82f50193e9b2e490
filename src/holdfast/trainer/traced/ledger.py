"""Every block of memory that a step takes and gives back, in order. Counts; judges nothing."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from holdfast.trainer.traced.inside import product_scratch

MAPPED = "mapped"  # a mark: what was made before it lies in files, and never lay there all at once
_DEVICE = torch.ops.prim.device.default  # half of all that is dispatched; a fake knows it by itself


@dataclass
class Log:
    """Blocks by number, from 1 on. moves: a block's number where it is taken, less than 0 where it is given back.

    marks: (moves before it, what begins there).
    """

    sizes: list[int] = field(default_factory=lambda: [0])
    made_by: list[str] = field(default_factory=lambda: [""])
    moves: list[int] = field(default_factory=list)
    marks: list[tuple[int, str]] = field(default_factory=list)
    multiplications: float = 0.0  # of matrix products

    def mark(self, what: str) -> None:
        self.marks.append((len(self.moves), what))


class Ledger(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes a log of all that is allocated while it is entered.

    place: says where the step is, for `made_by`; padded: a mask that is asked for is not all true;
    threads: of a CPU; 0 on a card, whose products take nothing for themselves. What is made while not `counting` takes nothing.
    """

    counting = True

    def __init__(self, place: Callable[[], str] = str, padded: bool = False, threads: int = 0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.log = Log()
        self.numbers: dict[int, int] = {}  # of blocks that are there, by the address of their storage
        self._place, self._padded, self._threads = place, padded, threads

    def __enter__(self) -> Ledger:
        self._tolist = FakeTensor.tolist
        FakeTensor.tolist = _ones  # type: ignore[method-assign,assignment]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        FakeTensor.tolist = self._tolist  # type: ignore[method-assign]
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def count(self, tensor: Tensor) -> None:
        """Count a tensor that was made while nothing was counted."""
        self._keep(tensor, "made before")

    def number(self, tensor: Tensor) -> int | None:
        """Return the number of the block that a tensor lies in; None for an unknown one."""
        return self.numbers.get(tensor.untyped_storage()._cdata)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is _DEVICE and isinstance(args[0], FakeTensor):
            return args[0].fake_device
        name = _name(function)
        if name.startswith("aten._local_scalar_dense"):
            return (not self._padded) if args[0].dtype is torch.bool else 1.0 if args[0].is_floating_point() else 1
        if name.startswith("aten._pin_memory"):  # what fakes do not know
            return args[0].clone()
        kwargs = kwargs or {}
        known = _writes_first(function) and isinstance(args[0], FakeTensor) and args[0].constant is None
        out = args[0] if known else function(*args, **kwargs)
        for tensor in (out,) if isinstance(out, Tensor) else tree_leaves(out):
            if isinstance(tensor, Tensor):
                self._keep(tensor, name)
        if self._threads and (size := _inside(name, args, self._threads)):
            self.log.moves.append(-self._take(size, name))
        self.log.multiplications += _multiplications(name, args)
        return out

    def _keep(self, tensor: Tensor, name: str) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if self.counting and key not in self.numbers:
            number = self.numbers[key] = self._take(storage.nbytes(), name)
            weakref.finalize(storage, self._drop, key, number)

    def _drop(self, key: int, number: int) -> None:
        if self.numbers.get(key) == number:
            del self.numbers[key]
        self.log.moves.append(-number)

    def _take(self, size: int, name: str) -> int:
        log = self.log
        log.sizes.append(size)
        log.made_by.append(f"{name.removeprefix('aten.').partition('.')[0]} {self._place()}".rstrip())
        log.moves.append(len(log.sizes) - 1)
        return len(log.sizes) - 1


@functools.cache
def _name(function: Any) -> str:
    return str(function)


@functools.cache
def _writes_first(function: Any) -> bool:
    """Return whether an operation gives back its first argument, written where it lies: its answer is known without asking fakes."""
    schema = function._schema
    aliases = [value.alias_info for value in (*schema.arguments[:1], *schema.returns)]
    written = len(aliases) == 2 and all(alias is not None and alias.is_write for alias in aliases)
    return written and torch.Tag.inplace_view not in function.tags


def _ones(tensor: Any) -> Any:
    return [1.0] * len(tensor)


def _inside(name: str, args: Any, threads: int) -> int:
    """Return the bytes of scratch memory that an operation takes."""
    if name.startswith(("aten.mm.", "aten.addmm.", "aten.addmm_.")):
        a, b = args[-2:] if name.startswith("aten.addmm") else args[:2]
        if a.dtype.itemsize == 2:
            return product_scratch(a.shape[0], a.shape[1], b.shape[1], threads)
    return 0


def _multiplications(name: str, args: Any) -> float:
    if name.startswith("aten.mm."):
        return float(args[0].numel() * args[1].shape[1])
    if name.startswith(("aten.addmm.", "aten.addmm_.")):
        return float(args[1].numel() * args[2].shape[1])
    if name.startswith("aten.bmm."):
        return float(args[0].numel() * args[1].shape[2])
    if "attention" in name or "varlen" in name:  # two products of [length x length], half of it seen; backward takes five
        back = "backward" in name
        query = args[1 if back else 0]
        return float((2.5 if back else 1.0) * query.numel() * query.shape[-2])
    return 0.0
