"""Tokenise blocks in parallel: the first few here, further ones in processes of their own. Keeps nothing.

The tokenizer has threads itself, but reading JSON and rendering the template take a quarter of a row's time and hold the
interpreter's lock; only processes spread those. They are worth their start from a few seconds of work on.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from holdfast.core.errors import BLOCKED, Stop
from holdfast.rows.shard import Block, shard_bytes, tokenise
from holdfast.rows.tokens import Codec, load_codec

_BLOCKS_HERE = 8
_MOST_WORKERS = 16  # each holds the tokenizer: some 100 MB


class Workers:
    """Makes shards of blocks, in as many processes as are useful. Close it, or use it in a with statement."""

    def __init__(self, codec: Codec, layout: str, max_tokens: int, threads: int) -> None:
        self._codec, self._layout, self._max_tokens = codec, layout, max_tokens
        self.count = min(threads, _MOST_WORKERS)
        self._begun = 0
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def begin(self, block: Block) -> Future[bytes]:
        """Start on a block; the future gives its shard's bytes."""
        self._begun += 1
        if self.count < 2 or self._begun <= _BLOCKS_HERE:
            done: Future[bytes] = Future()
            done.set_result(shard_bytes(tokenise(block, self._layout, self._codec, self._max_tokens)))
            return done
        if self._pool is None:
            arguments = (self._codec.folder, self._layout, self._max_tokens)
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self.count, context, _enter, arguments)
        try:
            return self._pool.submit(_make, block)
        except BrokenProcessPool:
            raise _killed() from None


def finished(future: Future[bytes]) -> bytes:
    """The shard's bytes. Raises Stop(1) when the process that made it was killed."""
    try:
        return future.result()
    except BrokenProcessPool:
        raise _killed() from None


def _killed() -> Stop:
    return Stop(
        BLOCKED, "a process that tokenises rows was killed, perhaps for want of memory", "the same command goes on with what is done"
    )


_here: tuple[Codec, str, int] | None = None  # what this worker process tokenises with


def _enter(folder: Path, layout: str, max_tokens: int) -> None:
    """Prepare a worker: it leaves Ctrl-C and a closed terminal to its parent and does not outlive it."""
    global _here
    for ignored in (signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _here = load_codec(folder), layout, max_tokens


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _make(block: Block) -> bytes:
    assert _here is not None
    codec, layout, max_tokens = _here
    return shard_bytes(tokenise(block, layout, codec, max_tokens))
