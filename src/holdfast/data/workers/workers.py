"""Work on blocks in parallel, in threads and in processes. Keeps nothing.

Threads share the tokenizer's work, but all else holds the interpreter's lock; only processes spread that. A copy of this process begins
at once, but may be made of one that has no threads and holds no lock alone; a new one is worth its start from a few seconds of work on.
The tokenizer's own threads are left alone: they cost more than they bring on rows.
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

from holdfast.base.errors import BLOCKED, Stop
from holdfast.data.judge.rules import Rules
from holdfast.data.templates.budget import ending
from holdfast.data.tokens.codec import Codec, load_codec, plain_codec
from holdfast.data.tokens.shard import Block, BlockLike, blocks, shard_bytes, tokenise

Make = Callable[[Block, Rules, Codec], bytes]
_BLOCKS_ALONE = 2  # are done before a copy of this process would have begun
_BLOCKS_HERE = 32  # until processes are started; as many more while these begin
_MOST_THREADS = 4  # more wait for the interpreter's lock
_MOST_WORKERS = 16  # each holds the tokenizer: some 100 MB


B = TypeVar("B", bound=BlockLike)


class Work(Protocol):
    """A block that is being worked on."""

    def result(self) -> bytes:
        """Return the bytes made of the block. Raises Stop(1) when the worker on it is lost."""


class Crew(Protocol[B]):
    """Whoever works on blocks: processes of this machine, or a cluster. `count`: how many at a time."""

    count: int

    def blocks(self, files: list[str]) -> Iterator[tuple[str, B]]:
        """Yield every block of the files in order, with its file. Raises what read_unparsed raises."""

    def begin(self, block: B) -> Work:
        """Start on a block."""


def _shard(block: Block, rules: Rules, codec: Codec) -> bytes:
    return shard_bytes(tokenise(block, rules, codec))


C = TypeVar("C", bound="_OfThisMachine")


class _OfThisMachine:
    """What both crews of this machine share: how many they are, and where blocks come from."""

    def __init__(self, count: int) -> None:
        self.count = min(count, _MOST_WORKERS)
        self._pool: ProcessPoolExecutor | None = None
        gc.freeze()  # what is there now stays; looking through it again and again costs a tenth of the time

    def __enter__(self: C) -> C:
        ending.clear()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._pool:
            for process in (getattr(self._pool, "_processes", None) or {}).values() if kind else ():
                process.kill()  # nobody waits for what it is at
            self._pool.shutdown(wait=True, cancel_futures=True)

    def blocks(self, files: list[str]) -> Iterator[tuple[str, Block]]:
        """Yield every block of the files in order, with its file. Raises what read_unparsed raises."""
        return ((file, block) for file in files for block in blocks(file))


class Workers(_OfThisMachine):
    """Makes shards of blocks, or what else `make` makes of them, in as many processes as are useful. Use it in a with statement."""

    def __init__(self, codec: Codec, rules: Rules, threads: int, make: Make = _shard) -> None:
        super().__init__(threads)
        self._codec, self._rules, self._make = codec, rules, make
        self._begun = 0
        self._threads = ThreadPoolExecutor(min(self.count + 1, _MOST_THREADS), "rows") if self.count > 1 else None

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind:
            ending.set()
        if self._threads:
            self._threads.shutdown(wait=True, cancel_futures=True)
        super().__exit__(kind)

    def begin(self, block: Block) -> Work:
        """Start on a block."""
        self._begun += 1
        if self._threads is None:
            done: Future[bytes] = Future()
            done.set_result(self._make(block, self._rules, self._codec))
            return _Work(done)
        if self._begun > _BLOCKS_HERE and self._pool is None:
            self._pool = self._processes()
        if self._begun > 2 * _BLOCKS_HERE and self._pool:
            return _submitted(self._pool, block)
        return _Work(self._threads.submit(self._make, block, self._rules, self._codec))

    def _processes(self) -> ProcessPoolExecutor:
        arguments = (self._codec.folder, self._codec.given, self._codec.stands_in, self._rules, self._make)
        pool = ProcessPoolExecutor(self.count, multiprocessing.get_context("spawn"), _enter, arguments)
        pool.submit(int)  # begins the processes
        return pool


class Copies(_OfThisMachine):
    """Makes surveys of blocks in copies of this process. For a command that has no thread but its own and holds no lock."""

    def __init__(self, codec: Codec, rules: Rules, count: int, make: Make) -> None:
        super().__init__(count)
        self._here = codec, rules, make
        self._first: list[_Later] = []

    def begin(self, block: Block) -> Work:
        """Start on a block; the first ones wait until it is known that there are more, or that they are asked for."""
        if self._pool:
            return _submitted(self._pool, block)
        later = _Later(block, self._here)
        if self.count > 1:
            self._first = [*(waiting for waiting in self._first if not waiting.done), later]
        if len(self._first) > _BLOCKS_ALONE:
            first, *others = self._first
            first.result()  # what this loads and learns, the copies have as well
            self._pool = ProcessPoolExecutor(self.count, multiprocessing.get_context("fork"), _enter_copy, self._here)
            for waiting in others:
                waiting.work = _submitted(self._pool, waiting.block)
            self._first.clear()
        return later


@dataclass
class _Later:
    """A block that whoever asks for it first works on, unless `work` has begun. `done`: what was made of it."""

    block: Block
    here: tuple[Codec, Rules, Make]
    work: Work | None = None
    done: bytes = b""

    def result(self) -> bytes:
        if not self.done:
            codec, rules, make = self.here
            self.done = self.work.result() if self.work else make(self.block, rules, codec)
        return self.done


def _submitted(pool: ProcessPoolExecutor, block: Block) -> Work:
    try:
        return _Work(pool.submit(_make, block))
    except BrokenProcessPool:
        raise _killed() from None


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
        BLOCKED,
        "a process that tokenises rows was killed, possibly out of memory",
        "rerun the same command to resume",
    )


_here: tuple[Codec, Rules, Make] | None = None  # what this worker process works with


def _enter(folder: Path, given: str | None, plain: bool, rules: Rules, make: Make) -> None:
    """Prepare a worker that is a new process."""
    global _here
    _follow_parent()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    codec = load_codec(folder, given)
    gc.freeze()
    _here = plain_codec(codec) if plain else codec, rules, make


def _enter_copy(codec: Codec, rules: Rules, make: Make) -> None:
    """Prepare a worker that is a copy of its parent."""
    global _here
    _follow_parent()
    _here = codec, rules, make


def _follow_parent() -> None:
    """Leave Ctrl-C and a closed terminal to the parent, and do not outlive it."""
    for ignored in (signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _make(block: Block) -> bytes:
    assert _here is not None
    codec, rules, make = _here
    return make(block, rules, codec)
