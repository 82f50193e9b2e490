"""Work on blocks on a Ray cluster: read beside this process, worked on anywhere. Starts no cluster; the only file that imports Ray.

Files, findings and outputs stay on this machine; blocks, tokenizer and rules travel. What a killed worker or a lost node was at, Ray
begins again, and since what is made of a block follows from the block alone, nobody can tell afterwards.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import io
import itertools
import os
import platform
import re
import socket
import sys
import tempfile
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray._private.services import canonicalize_bootstrap_address_or_die
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from holdfast.base.errors import BLOCKED, USAGE, Stop
from holdfast.data.files.raw_row import UnparsedRow
from holdfast.data.judge.rules import Rules
from holdfast.data.tokens.cache import cache_key
from holdfast.data.tokens.codec import Codec, load_codec, plain_codec
from holdfast.data.tokens.shard import Block, blocks
from holdfast.data.workers.interrupts import Interrupts
from holdfast.data.workers.workers import Make

_CODEC_FILES = ("tokenizer.json", "vocab.json", "merges.txt", "tokenizer_config.json", "chat_template.jinja", "config.json")
_TRIES_AGAIN = 3  # of a block whose worker was killed; Ray counts those that ran out of memory apart
_READERS = 4  # files that are read at the same time
_BLOCKS_READ_AHEAD = 8  # of each file
_PATIENCE_S = 5.0
_COUNTED_EVERY = 64  # blocks; nodes come and go
_INSTALL = "install the same holdfast with Ray, and the same tokenizers and ftfy, on every node (pip install '.[ray]' in the same checkout)"


@dataclass(frozen=True)
class _Setting:
    """What blocks are worked on with, as it travels. `key`: what it must come to where it arrives."""

    files: dict[str, bytes]
    given: str | None
    stands_in: bool
    rules: Rules
    make: Make
    key: str


class FarBlock:
    """A block that lies in the cluster; its rows come when they are asked for."""

    def __init__(self, name: str, first_line: int, place: Any) -> None:
        self.name, self.first_line, self.place = name, first_line, place

    @functools.cached_property
    def rows(self) -> tuple[UnparsedRow, ...]:
        block: Block = _got(self.place)
        return block.rows


@dataclass(frozen=True)
class _Work:
    place: Any

    def result(self) -> bytes:
        data: bytes = _got(self.place)
        return data


class Cluster:
    """The CPUs of the Ray cluster at `address`, or of the one this machine belongs to ("auto"). Use it in a with statement."""

    def __init__(self, address: str, codec: Codec, rules: Rules, make: Make) -> None:
        if not re.fullmatch(r"auto|[^/\s]+:\d+", address):
            raise Stop(USAGE, f"--ray {address}: this is no address of a cluster", "give HOST:PORT, or auto on a node of it")
        self._address, self.count, self._begun = address, 0, 0
        files = {name: (codec.folder / name).read_bytes() for name in _CODEC_FILES if (codec.folder / name).is_file()}
        self._setting = _Setting(files, codec.given, codec.stands_in, rules, make, cache_key(codec, rules))

    def __enter__(self) -> Cluster:
        with contextlib.ExitStack() as stack:
            stack.enter_context(contextlib.redirect_stdout(_RayOutput()))
            stack.callback(_leave_cluster)
            _connect(self._address)
            self._count()
            if self.count < 1:
                raise Stop(BLOCKED, "the Ray cluster has no CPU to work with", "start a node with one: ray start --address HOST:PORT")
            self._prepare()
            self._interrupts = stack.enter_context(Interrupts())
            self._leave = stack.pop_all()
        return self

    def __exit__(self, *ended: Any) -> None:
        self._leave.__exit__(*ended)

    def _prepare(self) -> None:
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        ahead = {"num_returns": "streaming", "_generator_backpressure_num_objects": 2 * _BLOCKS_READ_AHEAD}
        self._read = ray.remote(read_blocks).options(num_cpus=0, max_retries=_TRIES_AGAIN, scheduling_strategy=here, **ahead)
        self._work = ray.remote(work_on_block).options(num_cpus=1, max_retries=_TRIES_AGAIN)
        self._setting_place = ray.put(self._setting)

    def blocks(self, files: list[str]) -> Iterator[tuple[str, FarBlock]]:
        """Yield every block of the files in order, with its file; some files are begun ahead. Raises what read_unparsed raises."""
        rest = iter(files)
        readers = deque((file, self._reader(file)) for file in itertools.islice(rest, _READERS))
        while readers:
            file, places = readers.popleft()
            for head in places:
                name, first_line = _got(head)
                self._interrupts.check()
                yield file, FarBlock(name, first_line, next(places))
            readers.extend((file, self._reader(file)) for file in itertools.islice(rest, 1))

    def _reader(self, file: str) -> Iterator[Any]:
        places: Iterator[Any] = self._read.remote(str(Path(file).absolute()))
        return places

    def begin(self, block: FarBlock) -> _Work:
        """Start on a block."""
        self._begun += 1
        if self._begun % _COUNTED_EVERY == 0:
            self._count()
        return _Work(self._work.remote(block.place, [self._setting_place]))

    def _count(self) -> None:
        self.count = int(ray.cluster_resources().get("CPU", 0)) or self.count


class _RayOutput(io.TextIOBase):
    """Standard output for Ray, which tells of killed workers there, in colours: to standard error, without them."""

    def write(self, text: str) -> int:
        return sys.stderr.write(re.sub("\x1b\\[[0-9;]*m", "", text))


def _connect(address: str) -> None:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    try:
        where = canonicalize_bootstrap_address_or_die(address)
        host, _, port = where.rpartition(":")
        socket.create_connection((host.strip("[]"), int(port)), _PATIENCE_S).close()  # Ray itself tries for many minutes
        ray.init(where, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        why = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise Stop(
            BLOCKED,
            f"no Ray cluster can be joined at {address}: {why}",
            "start one: ray start --head here, ray start --address HOST:PORT elsewhere; or leave --ray out, the result is the same",
        ) from None


def _leave_cluster() -> None:
    """Shut Ray down; of the work that it is cut off from, its own threads would tell on standard error, past Python."""
    sys.stderr.flush()
    kept = os.dup(2)
    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), 2)
    try:
        ray.shutdown()
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _got(place: Any) -> Any:
    """Fetch the object at `place`. Raises Stop for what a reader or worker stopped at, and for what the cluster lost."""
    try:
        return ray.get(place)
    except RayTaskError as error:
        if isinstance(error.cause, Stop):
            raise error.cause from None
        if "failed to import" in str(error):
            raise Stop(BLOCKED, "a node of the Ray cluster has no holdfast, or another one", _INSTALL) from None
        raise
    except RayError as error:
        why = str(error).strip().splitlines()[0]
        raise Stop(BLOCKED, f"the Ray cluster lost a block: {why}", "rerun the same command to resume") from None


def read_blocks(file: str) -> Iterator[Any]:
    """Yield for each block of `file` its name and first line, then the block itself."""
    for block in blocks(file):
        yield block.name, block.first_line
        yield block


def work_on_block(block: Block, setting: list[Any]) -> bytes:
    """Return the result of the setting for a block. Raises Stop(1) on a node that would compute another one."""
    make, rules, codec = _arrived(setting[0])
    return make(block, rules, codec)


@functools.lru_cache(maxsize=1)
def _arrived(place: Any) -> tuple[Make, Rules, Codec]:
    """Load the setting as this worker process uses it."""
    setting: _Setting = ray.get(place)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        for name, data in setting.files.items():
            (Path(folder) / name).write_bytes(data)
        codec = load_codec(Path(folder), setting.given)
        codec = plain_codec(codec) if setting.stands_in else codec
        if cache_key(codec, setting.rules) != setting.key:
            raise Stop(BLOCKED, f"node {platform.node()} of the Ray cluster has another holdfast, tokenizers or ftfy", _INSTALL)
    gc.freeze()
    return setting.make, setting.rules, codec
