"""Recognise that memory ran out, whoever says so. Decides nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from holdfast.trainer.tasks.base import Batch

_TEXTS = ("out of memory", "can't allocate memory", "cannot allocate memory")


class OutOfMemory(Exception):
    """A micro-batch did not fit. `batch`: which; the message: what the allocator said."""

    def __init__(self, batch: Batch, text: str) -> None:
        super().__init__(text)
        self.batch = batch


def is_out_of_memory(error: BaseException) -> bool:
    """By type, or by the words that every vendor's allocator uses."""
    if isinstance(error, (torch.cuda.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error).lower() for text in _TEXTS)


@contextmanager
def naming(batch: Batch) -> Iterator[None]:
    """Turn an out-of-memory error inside into OutOfMemory, which says which micro-batch it was."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemory(batch, str(error).splitlines()[0][:500] if str(error) else type(error).__name__) from None
