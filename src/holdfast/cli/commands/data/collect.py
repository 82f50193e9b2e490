"""`holdfast data collect`: gather rows from real use into one file, redacted and without repetitions.

Sources: logs of requests and responses (JSON Lines, as OpenAI-compatible servers and proxies write them), logs of a llama.cpp server
(llama-server -v), a Redis stream (redis://HOST:PORT/DB with --stream), shell histories (with --shell-history). The file is only appended
to; what it holds already is not added again, so the same command can run every night.
"""

from __future__ import annotations

import argparse
import itertools
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

from holdfast.base.errors import BLOCKED, DONE, USAGE, Stop
from holdfast.base.file_errors import at_place
from holdfast.base.files import Json
from holdfast.base.inert import say
from holdfast.base.locks import hold
from holdfast.data.collect.files import KINDS, batches_of, kind_of
from holdfast.data.collect.gather import CollectedRecords, gather
from holdfast.data.collect.outfile import OutFile, append
from holdfast.data.collect.record import WriteBatch
from holdfast.data.collect.redisstream import StreamReader, StreamSource
from holdfast.data.duplicates.write import refuse_outputs
from holdfast.data.files.paths import expand

EXAMPLE = "holdfast data collect logs/requests.jsonl --out runs/collected.jsonl --require-consent"
_SCHEMES = ("redis://", "rediss://", "unix://")


def add_arguments(collect: argparse.ArgumentParser) -> None:
    collect.add_argument("sources", nargs="+", metavar="SOURCE", help="log files, histories, or the address of a Redis server")
    collect.add_argument("--out", type=Path, required=True, metavar="FILE", help="where the rows are appended (JSON Lines)")
    collect.add_argument("--rejects", type=Path, metavar="FILE", help="where the others go, with the reason (default: OUT.rejects.jsonl)")
    collect.add_argument("--kind", dest="file_kind", choices=KINDS, help="what the files are (default: by their first lines)")
    collect.add_argument("--require-consent", action="store_true", help="take only what says yes (a no is always respected)")
    collect.add_argument("--redact", choices=("all", "secrets", "none"), default="all", help="what is taken out of texts (default: all)")
    collect.add_argument("--shell-history", action="store_true", help="this shell history is mine and may be read")
    redis = collect.add_argument_group("a Redis stream")
    redis.add_argument("--stream", metavar="NAME", help="the stream to read")
    redis.add_argument("--group", metavar="NAME", default="holdfast", help="the consumer group (default: holdfast)")
    redis.add_argument("--follow", action="store_true", help="wait for new entries until Ctrl-C")
    redis.add_argument(
        "--take-over",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="take over what other consumers left pending this long (default: 60)",
    )
    redis.add_argument(
        "--patience", type=float, default=60.0, metavar="SECONDS", help="wait this long for a server that is down (default: 60)"
    )
    collect.add_argument("--json", action="store_true", help="print the counts as JSON")


def run(arguments: argparse.Namespace) -> tuple[int, Json]:
    out: Path = arguments.out
    rejects = arguments.rejects or out.with_name(f"{out.name}.rejects.jsonl")
    refuse_outputs([out, rejects], arguments.sources)
    batches, reader = _batches(arguments)
    try:
        for path in (out, rejects):
            path.parent.mkdir(parents=True, exist_ok=True)
        lock = out.with_name(f".{out.name}.lock")
        with hold(lock, wait=False) as ours:
            if not ours:
                raise Stop(BLOCKED, f"another `data collect` is writing to {out}", "wait for it, or name another --out")
            file = OutFile(out)
            if file.torn:
                torn = {"file": str(out), "line": None, "reason": "torn_line", "detail": "the last line was cut off; it is kept here"}
                append(rejects, [torn | {"raw": file.torn.decode("utf-8", "replace")}])
            show = _CountLine(arguments)
            found = gather(batches, file, rejects, arguments.redact, arguments.require_consent, show)
            show.end()
    except OSError as error:
        hint = "choose another --out, then rerun the same command"
        raise at_place(error, error.filename or out, "cannot be read or written", hint) from None
    answer = _answer(found, file, rejects)
    if reader:
        answer |= {"stream": {"reconnected": reader.reconnected, "gone": reader.gone}}
    if not arguments.json:
        _tell(answer, out)
    return DONE, answer


def _batches(arguments: argparse.Namespace) -> tuple[Iterator[WriteBatch], StreamReader | None]:
    servers = [source for source in arguments.sources if source.startswith(_SCHEMES)]
    if not servers:
        files = expand(arguments.sources)
        if arguments.stream or arguments.follow:
            raise Stop(USAGE, "--stream and --follow are for a Redis stream", "give its address: redis://127.0.0.1:6379/0")
        kinds = [arguments.file_kind or kind_of(file) for file in files]
        found = [batches_of(file, kind, arguments.shell_history) for file, kind in zip(files, kinds, strict=True)]
        return itertools.chain.from_iterable(found), None
    if len(arguments.sources) > 1:
        raise Stop(USAGE, "a Redis stream is collected by itself", "give the files in a command of their own")
    if not arguments.stream:
        raise Stop(USAGE, "a Redis server needs --stream NAME", "for example: redis://127.0.0.1:6379/0 --stream requests")
    consumer = f"{socket.gethostname()}:{arguments.out.resolve()}"
    ways = arguments.follow, arguments.take_over, arguments.patience
    reader = StreamReader(StreamSource(servers[0], arguments.stream, arguments.group, consumer, *ways))
    return reader.batches(), reader


def _answer(found: CollectedRecords, file: OutFile, rejects: Path) -> Json:
    return {
        "rows": found.rows,
        "by_category": dict(sorted(found.by_category.items())),
        "read": found.read,
        "duplicates": found.duplicates,
        "rejected": found.rejected,
        "by_reason": dict(found.by_reason.most_common()),
        "redacted": dict(found.redacted.most_common()),
        "rated": found.rated,
        "rated_later": file.rated_later,
        "in_file": file.rows,
        "rejects": str(rejects) if found.rejected else None,
    }


def _tell(answer: Json, out: Path) -> None:
    say(f"{answer['rows']:,} new rows of {answer['read']:,} records in {out} ({answer['in_file']:,} there now)")
    for name, words in (("by_category", "categories"), ("by_reason", "not taken"), ("redacted", "redacted")):
        if answer[name]:
            say(f"  {words}: " + ", ".join(f"{what} {count:,}" for what, count in answer[name].items()))
    if answer["duplicates"]:
        say(f"  there already: {answer['duplicates']:,}" + (f" ({answer['rated_later']:,} rated now)" if answer["rated_later"] else ""))
    if answer["rejects"]:
        say(f"  what was not taken, and why: {answer['rejects']}")


class _CountLine:
    """Counts on a terminal, one line that is written over."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._on = sys.stderr.isatty() and not arguments.json

    def __call__(self, found: CollectedRecords) -> None:
        if self._on:
            print(f"\r{found.read:,} records, {found.rows:,} new rows", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._on:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
