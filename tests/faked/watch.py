"""What an operation on the card costs: a launch, a copy, a wait, bytes, products. Counts; judges nothing."""

from __future__ import annotations

import re
import traceback
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import faked.card  # noqa: F401  (before torch)

# isort: split
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import holdfast

OURS = f"{Path(holdfast.__file__).parent}/"  # a checkout may be called holdfast, too, and this file lies in it

# An H100 SXM as kernels reach it: bytes and bf16 operations a second. Estimates, the same for all that are compared.
BYTES_PER_S, OPERATIONS_PER_S = 2.85e12, 6.4e14
_UNIT = 512  # bytes; what torch's allocator rounds up to
_VOCABULARY = 100_000  # a tensor with a side this long belongs to the output layer
_VIEWS = (
    "view",
    "_unsafe_view",
    "_reshape_alias",
    "reshape",
    "slice",
    "select",
    "split",
    "unbind",
    "t.",
    "transpose",
    "permute",
    "expand",
    "unsqueeze",
    "squeeze",
    "as_strided",
    "alias",
    "detach",
    "lift_fresh",
    "empty",
    "new_empty",
    "set_",
    "is_pinned",
    "prim.",
    "sym_",
    "is_same",
    "profiler",
    "_version",
)
_READS = ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "unique")
_WRITTEN_ALONE = ("fill_", "zero_", "zeros", "new_zeros", "ones", "arange", "full")


class Watch(TorchDispatchMode):
    """Operations whose tensors are on the card, while it is entered.

    launches: kernels by operation; waits: reads of the card and blocking copies by the place in the source that asks for them;
    strangers: tensors of the host in an operation with others of the card; types: dtypes of what each operation made; seconds: at the
    card's speed, by (layers or head, operation), products as "products"; now, peak: bytes that are alive.
    """

    def __init__(self) -> None:
        super().__init__()
        self.launches: Counter[str] = Counter()
        self.waits: Counter[str] = Counter()
        self.copies: Counter[str] = Counter()
        self.strangers: Counter[str] = Counter()
        self.types: Counter[tuple[str, str]] = Counter()
        self.seconds: Counter[tuple[str, str]] = Counter()
        self.now = self.peak = 0
        self._alive: dict[int, int] = {}

    def __enter__(self) -> Watch:
        self._tolist = FakeTensor.tolist
        FakeTensor.tolist = lambda tensor: self._read(tensor)
        self._own_run = _launched_by_triton(lambda kernel, *given, **named: self._count_kernel(kernel, given))
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        FakeTensor.tolist = self._tolist
        _launched_by_triton(self._own_run)
        super().__exit__(*error)

    def forget(self) -> None:
        """Count from here on; what is alive stays so."""
        for counted in (self.launches, self.waits, self.copies, self.strangers, self.types, self.seconds):
            counted.clear()
        self.peak = self.now

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(function).removeprefix("aten.")
        given = list(_tensors((args, kwargs)))
        if name.startswith("_local_scalar_dense") and given[0].is_cuda:
            self.waits[f"{name} {_place()}"] += 1
            return 1.0 if given[0].is_floating_point() else 1
        if name.startswith("_pin_memory"):  # what fakes do not know
            pinned = given[0].clone()
            pinned.pinned = True  # type: ignore[attr-defined]
            return pinned
        out = function(*args, **(kwargs or {}))
        made = list(_tensors(out))
        for tensor in made:
            self._keep(tensor)
        if any(tensor.is_cuda for tensor in (*given, *made)):
            longest = next((size for size in args if type(size) is int), 0)
            at_once = not any(one is True for one in (*args, (kwargs or {}).get("non_blocking")))
            self._count(name, given, made, at_once, longest)
        return out

    def _count(self, name: str, given: list[Tensor], made: list[Tensor], at_once: bool, longest: int) -> None:
        host = [tensor for tensor in (*given, *made) if not tensor.is_cuda and tensor.dim()]
        if name.startswith(("_to_copy", "copy_")) and host:
            waits = at_once or not all(hasattr(tensor, "pinned") for tensor in host)
            (self.waits if waits else self.copies)[f"{name} {_place()}"] += 1
            return
        if host:
            self.strangers[f"{name} {_place()}"] += 1
        if name.startswith(_READS) or (name.startswith("index") and any(t.dtype is torch.bool for t in given[1:] if t.dim())):
            self.waits[f"{name} {_place()}"] += 1
        if name.startswith(_VIEWS):
            return
        self.launches[name] += 1
        for tensor in made:
            self.types[name.partition(".")[0], str(tensor.dtype).removeprefix("torch.")] += 1
        moved, operations = _bytes(name, given, made), _operations(name, given, longest)
        part = "head" if any(side > _VOCABULARY for tensor in (*given, *made) for side in tensor.shape) else "layers"
        self.seconds[part, "products" if operations else name] += max(moved / BYTES_PER_S, operations / OPERATIONS_PER_S)

    def _count_kernel(self, kernel: Any, given: tuple[Any, ...]) -> None:
        """A kernel of Triton's: one launch that reads or writes each tensor it is given, or both where its source says so."""
        name = kernel.__name__
        self.launches[name] += 1
        twice = _in_place(kernel.src)
        for argument, tensor in zip(kernel.arg_names, given, strict=False):
            if isinstance(tensor, Tensor):
                self.seconds["layers", name] += (1 + (argument in twice)) * _size(tensor) / BYTES_PER_S

    def _read(self, tensor: Tensor) -> Any:
        assert tensor.dim() == 1
        self.waits[f"tolist {_place()}"] += tensor.is_cuda
        return [1.0] * len(tensor)

    def _keep(self, tensor: Tensor) -> None:
        if not tensor.is_cuda:
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._alive:
            self._alive[key] = -(-storage.nbytes() // _UNIT) * _UNIT
            self.now += self._alive[key]
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._drop, key)

    def _drop(self, key: int) -> None:
        self.now -= self._alive.pop(key, 0)


def _launched_by_triton(run: Callable[..., Any] | None) -> Callable[..., Any] | None:
    """Let `run` be what launches Triton's kernels; what did before."""
    if run is None or not find_spec("triton"):
        return None
    from triton.runtime.jit import JITFunction

    before = JITFunction.run
    JITFunction.run = run
    return before


def _in_place(source: str) -> set[str]:
    """The arguments of a kernel that it both loads from and stores to."""
    return set(re.findall(r"tl\.load\(\s*(\w+)", source)) & set(re.findall(r"tl\.store\(\s*(\w+)", source))


def _tensors(tree: Any) -> Iterator[Tensor]:
    return (leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))


def _place() -> str:
    """Where in the source this was asked for: the nearest lines that are holdfast's or the model's."""
    frames = [frame for frame in traceback.extract_stack() if frame.filename.startswith(OURS) or "transformers/models" in frame.filename]
    return " <- ".join(f"{frame.filename.rpartition('/')[2]}:{frame.name}" for frame in frames[:-4:-1])


def _size(tensor: Tensor) -> int:
    """Bytes that are there: a side that is expanded lies in memory once."""
    count = 1
    for side, stride in zip(tensor.shape, tensor.stride(), strict=True):
        count *= side if stride else 1
    return count * tensor.element_size()


def _bytes(name: str, given: list[Tensor], made: list[Tensor]) -> int:
    if name.startswith("copy_"):
        return _size(given[0]) + _size(given[1])
    if name.startswith(_WRITTEN_ALONE):
        return sum(map(_size, made))
    if name.startswith("holdfast.slopes"):
        return 3 * _size(given[0])  # read, read again and written
    if name.startswith(("index_select", "embedding.")):
        return 2 * sum(map(_size, made))
    return sum(map(_size, given)) + sum(map(_size, made))


def _operations(name: str, given: list[Tensor], longest: int) -> float:
    """Of products: multiplications and additions. longest: of the sequences that attend within themselves alone."""
    if name.startswith("mm."):
        return 2.0 * given[0].numel() * given[1].shape[1]
    if name.startswith(("addmm.", "addmm_.")):
        return 2.0 * given[1].numel() * given[2].shape[1]
    if name.startswith("bmm."):
        return 2.0 * given[0].numel() * given[1].shape[2]
    if "varlen_attn" in name or "_flash_attention" in name:  # two products of [longest x longest], half of it seen; backward takes five
        backward = "backward" in name
        return (5.0 if backward else 2.0) * given[1 if backward else 0].numel() * longest
    return 0.0
