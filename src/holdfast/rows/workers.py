"""Work on blocks in parallel: the first ones in threads, further ones in processes of their own. Keeps nothing.

Threads share the tokenizer's work, but reading JSON and rendering the template take a third of a row's time and hold the
interpreter's lock; only processes spread those. They are worth their start from a few seconds of work on. The tokenizer's own threads
are left alone: they cost more than they bring on rows.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from holdfast.core.errors import BLOCKED, Stop
from holdfast.rows.rules import Rules
from holdfast.rows.shard import Block, BlockLike, blocks, shard_bytes, tokenise
from holdfast.rows.tokens import Codec, load_codec, plain_codec

Make = Callable[[Block, Rules, Codec], bytes]
_BLOCKS_HERE = 32  # until processes are started; as many more while these begin
_MOST_THREADS = 4  # more wait for the interpreter's lock
_MOST_WORKERS = 16  # each holds the tokenizer: some 100 MB


B = TypeVar("B", bound=BlockLike)


class Work(Protocol):
    """A block that is being worked on."""

    def result(self) -> bytes:
        """What was made of it. Raises Stop(1) when whoever was at it is lost."""


class Crew(Protocol[B]):
    """Whoever works on blocks: processes of this machine, or a cluster. `count`: how many at a time."""

    count: int

    def blocks(self, files: list[str]) -> Iterator[tuple[str, B]]:
        """Every block of the files in order, with its file. Raises what read_unparsed raises."""

    def begin(self, block: B) -> Work:
        """Start on a block."""


def _shard(block: Block, rules: Rules, codec: Codec) -> bytes:
    return shard_bytes(tokenise(block, rules, codec))


class Workers:
    """Makes shards of blocks, or what else `make` makes of them, in as many processes as are useful. Use it in a with statement."""

    def __init__(self, codec: Codec, rules: Rules, threads: int, make: Make = _shard) -> None:
        self._codec, self._rules, self._make = codec, rules, make
        self.count = min(threads, _MOST_WORKERS)
        self._begun = 0
        gc.freeze()  # what is there now stays; looking through it again and again costs a tenth of the time
        self._pool: ProcessPoolExecutor | None = None
        self._threads = ThreadPoolExecutor(min(self.count + 1, _MOST_THREADS), "rows") if self.count > 1 else None

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        for pool in (self._threads, self._pool):
            if pool:
                pool.shutdown(wait=True, cancel_futures=True)

    def blocks(self, files: list[str]) -> Iterator[tuple[str, Block]]:
        """Every block of the files in order, with its file. Raises what read_unparsed raises."""
        return ((file, block) for file in files for block in blocks(file))

    def begin(self, block: Block) -> Work:
        """Start on a block."""
        self._begun += 1
        if self._threads is None:
            done: Future[bytes] = Future()
            done.set_result(self._make(block, self._rules, self._codec))
            return _Work(done)
        try:
            if self._begun > _BLOCKS_HERE and self._pool is None:
                self._pool = self._processes()
            if self._begun > 2 * _BLOCKS_HERE and self._pool:
                return _Work(self._pool.submit(_make, block))
        except BrokenProcessPool:
            raise _killed() from None
        return _Work(self._threads.submit(self._make, block, self._rules, self._codec))

    def _processes(self) -> ProcessPoolExecutor:
        arguments = (self._codec.folder, self._codec.stands_in, self._rules, self._make)
        pool = ProcessPoolExecutor(self.count, multiprocessing.get_context("spawn"), _enter, arguments)
        pool.submit(int)  # begins the processes
        return pool


@dataclass(frozen=True)
class _Work:
    future: Future[bytes]

    def result(self) -> bytes:
        try:
            return self.future.result()
        except BrokenProcessPool:
            raise _killed() from None


def _killed() -> Stop:
    return Stop(
        BLOCKED, "a process that tokenises rows was killed, perhaps for want of memory", "the same command goes on with what is done"
    )


_here: tuple[Codec, Rules, Make] | None = None  # what this worker process works with


def _enter(folder: Path, plain: bool, rules: Rules, make: Make) -> None:
    """Prepare a worker: it leaves Ctrl-C and a closed terminal to its parent and does not outlive it."""
    global _here
    for ignored in (signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    threading.Thread(target=_end_with_parent, daemon=True).start()
    codec = load_codec(folder)
    gc.freeze()
    _here = plain_codec(codec) if plain else codec, rules, make


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _make(block: Block) -> bytes:
    assert _here is not None
    codec, rules, make = _here
    return make(block, rules, codec)
