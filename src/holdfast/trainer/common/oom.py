"""Recognise that memory ran out, whoever says so. Decides nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from holdfast.trainer.common.batch import Batch

_TEXTS = (
    *("out of memory", "can't allocate memory", "cannot allocate memory"),
    *("_alloc_failed", "allocation_failed"),  # cuBLAS, hipBLAS, cuSPARSE, cuDNN: NAME_STATUS_ALLOC_FAILED and cuDNN 9's longer one
    *("miopenstatusallocfailed", "rocblas_status_memory_error"),
    *("cudaerrormemoryallocation", "hiperroroutofmemory", "hsa_status_error_out_of_resources"),
)
_OF_THE_HOST = ("cpuallocator", "cannot allocate memory", "main memory")


class OutOfMemory(Exception):
    """Something did not fit. `batch`: the micro-batch it was, else None; `what` it was in words; the message: what the allocator said."""

    def __init__(self, batch: Batch | None, text: str, what: str = "one sample", device: str = "cpu") -> None:
        super().__init__(text)
        self.batch, self.what = batch, what
        self.device = device  # whose memory it was: cpu, cuda


def is_out_of_memory(error: BaseException) -> bool:
    """Recognise an out-of-memory error by its type, or by the words that vendors' allocators and libraries use."""
    if isinstance(error, (OutOfMemory, torch.cuda.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error).lower() for text in _TEXTS)


@contextmanager
def tag_out_of_memory(batch: Batch | None, what: str = "one sample") -> Iterator[None]:
    """Turn an out-of-memory error inside into OutOfMemory, which says which micro-batch it was, or what else."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        text = str(error).splitlines()[0][:500] if str(error) else type(error).__name__
        of_host = isinstance(error, MemoryError) or any(words in text.lower() for words in _OF_THE_HOST)
        device = "cuda" if torch.cuda.is_available() and not of_host else "cpu"
        raise OutOfMemory(batch, text, what, device) from None
