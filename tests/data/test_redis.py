"""A Redis stream collected from a real server: killed in the middle, asked again, without a server, and without the package."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import lines
from holdfast.data.collect.gather import CollectedRecords, gather
from holdfast.data.collect.outfile import OutFile
from holdfast.data.collect.redisstream import StreamReader, StreamSource
from support.redis_server import Server, needs_server, running_server

Call = Callable[..., dict[str, Any]]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with running_server(tmp_path) as running:
        yield running


def push(server: Server, first: int, count: int, **more: str) -> None:
    import redis

    with redis.Redis(port=server.port).pipeline(transaction=False) as pipe:
        for number in range(first, first + count):
            pipe.xadd("asked", {"prompt": f"question {number}", "response": f"answer {number}", **more})
        pipe.execute()


def pending(server: Server) -> int:
    import redis

    found: dict[str, int] = redis.Redis(port=server.port).xpending("asked", "holdfast")
    return found["pending"]


@needs_server
def test_a_server_killed_in_the_middle_costs_nothing(server: Server, tmp_path: Path) -> None:
    push(server, 0, 900)
    out = OutFile(tmp_path / "out.jsonl")
    reader = StreamReader(StreamSource(server.url, "asked"))
    killed = []

    def kill_once(found: CollectedRecords) -> None:
        if not killed:
            killed.append(found.read)
            server.kill()
            server.start()

    found = gather(reader.batches(), out, tmp_path / "rejects.jsonl", "all", False, kill_once)
    assert killed == [256] and reader.reconnected >= 1
    assert found.rows == 900 and found.duplicates == found.rejected == 0
    assert {row["prompt"] for row in lines(tmp_path / "out.jsonl")} == {f"question {number}" for number in range(900)}
    assert pending(server) == 0


@needs_server
def test_what_was_not_acknowledged_comes_again_and_is_not_written_twice(server: Server, call: Call, tmp_path: Path) -> None:
    """Killed between the write and the acknowledgement, and before the write: by this consumer and by another one."""
    push(server, 0, 700)
    out = tmp_path / "out.jsonl"
    consumer = f"{socket.gethostname()}:{out}"
    ours, other = (StreamReader(StreamSource(server.url, "asked", consumer=name)).batches() for name in (consumer, "one that is gone"))
    gather([next(ours)._replace(written=None)], OutFile(out), tmp_path / "rejects.jsonl", "all", False)
    next(other)
    assert pending(server) == 512 and len(lines(out)) == 256
    answer = call("collect", server.url, "--stream", "asked", "--out", out, "--take-over", 0)
    assert (answer["rows"], answer["duplicates"], answer["in_file"]) == (444, 256, 700)
    assert pending(server) == 0
    push(server, 700, 3, rating="5", consent="yes")
    assert call("collect", server.url, "--stream", "asked", "--out", out)["rows"] == 3
    assert [row["rating"] for row in lines(out)[-3:]] == ["5", "5", "5"]


@needs_server
def test_entries_of_any_form_are_taken_or_refused_with_their_id(server: Server, call: Call, tmp_path: Path) -> None:
    import redis

    client = redis.Redis(port=server.port)
    response = {"choices": [{"message": {"role": "assistant", "content": "birch"}, "finish_reason": "stop"}]}
    record = {"request": {"messages": [{"role": "user", "content": "Name a tree"}]}, "response": response}
    client.xadd("asked", {"data": json.dumps(record), "rating": "up"})
    client.xadd("asked", {"request": json.dumps(record["request"]), "response": json.dumps(response), "consent": "no"})
    client.xadd("asked", {"messages": json.dumps([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])})
    client.xadd("asked", {b"\xff\xfe": b"\x80"})
    answer = call("collect", server.url, "--stream", "asked", "--out", tmp_path / "out.jsonl")
    assert answer["rows"] == 2 and answer["by_reason"] == {"no_consent": 1, "missing_field": 1}
    assert lines(tmp_path / "out.jsonl")[0]["rating"] == "up"
    assert all(row["file"].startswith("asked/") for row in lines(tmp_path / "out.jsonl.rejects.jsonl"))
    assert pending(server) == 0


@needs_server
def test_a_stream_that_is_not_there_is_told_with_those_that_are(server: Server, call: Call, tmp_path: Path) -> None:
    push(server, 0, 1)
    answer = call("collect", server.url, "--stream", "askd", "--out", tmp_path / "out.jsonl", code=2)
    assert "has no stream askd" in answer["error"] and "asked" in answer["hint"]


@needs_server
def test_a_server_that_stays_away_ends_with_3(server: Server, call: Call, tmp_path: Path) -> None:
    server.kill()
    url = server.url.replace("redis://", "redis://me:hunter22@")
    answer = call("collect", url, "--stream", "asked", "--out", tmp_path / "out.jsonl", "--patience", 0.2, code=3)
    assert "cannot be reached for 0.2 s" in answer["error"] and "hunter22" not in str(answer)


@needs_server
@pytest.mark.parametrize("state", ["replica", "no replicas"])
def test_a_server_that_fails_over_is_waited_for_and_nothing_is_lost(state: str, server: Server, call: Call, tmp_path: Path) -> None:
    """It was made another one's replica, or may not write as it has lost its own: until somebody puts that right."""
    import redis

    push(server, 0, 5)
    client: Any = redis.Redis(port=server.port)
    reader = StreamReader(StreamSource(server.url, "asked"), sleep=lambda _: right())

    def wrong() -> None:
        client.replicaof("127.0.0.1", 1) if state == "replica" else client.config_set("min-replicas-to-write", 1)

    def right() -> None:
        client.replicaof("NO", "ONE") if state == "replica" else client.config_set("min-replicas-to-write", 0)

    wrong()
    entries = [one for batch in reader.there() for one in batch.records]
    assert len(entries) == 5 and reader.reconnected >= 1 and pending(server) == 5
    wrong()
    reader.acknowledge([one.place.rpartition("/")[2] for one in entries])
    assert pending(server) == 0
    wrong()
    answer = call("collect", server.url, "--stream", "asked", "--out", tmp_path / "out.jsonl", "--patience", 0.2, code=3)
    assert "refuses what it is asked for 0.2 s: " in answer["error"] and "6.2" not in answer["hint"]


def test_without_the_package_it_is_said_how_to_get_it(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    answer = call("collect", "redis://127.0.0.1:1/0", "--stream", "asked", "--out", tmp_path / "out.jsonl", code=2)
    assert answer["hint"] == "in holdfast's checkout: pip install '.[redis]'"
