"""Streams of a real Redis Cluster of three as sources: each on another server, one of which dies and comes back in the middle."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from holdfast.learn.policy import Policy
from holdfast.learn.sources import acknowledge, arrived
from support.redis_server import needs_server, running_cluster

STREAMS = ("asked", "other", "third")  # each has its slot on another server


@needs_server
@pytest.mark.skipif(shutil.which("redis-cli") is None, reason="no redis-cli, which makes a cluster of servers")
def test_each_message_of_a_cluster_comes_once_though_a_server_dies_in_the_middle(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as servers:
        from redis.cluster import RedisCluster

        client: Any = RedisCluster(host="127.0.0.1", port=servers[0].port)
        for stream in STREAMS:
            for number in range(5):
                client.xadd(stream, {"data": json.dumps({"prompt": f"{stream} {number}", "completion": "yes"})})
        assert len({client.get_node_from_key(stream).port for stream in STREAMS}) == 3
        sources = [{"redis": servers[1].url, "stream": stream, "cluster": True} for stream in STREAMS]
        policy = Policy.model_validate({"name": "n", "config": "c", "sources": sources, "gate": {"rows": "x"}})
        came = list(arrived(policy, frozenset()))
        assert len({one.place for one in came}) == len(came) == 15
        holder = next(one for one in servers if one.port == client.get_node_from_key("asked").port)
        holder.kill()
        back = threading.Thread(target=holder.start)
        back.start()
        again = list(arrived(policy, frozenset()))
        back.join()
        assert [one.place for one in again] == [one.place for one in came], "what is not acknowledged comes again"
        acknowledge(policy, [(one.source, one.entry) for one in came if one.entry])
        assert list(arrived(policy, frozenset())) == []
        assert [client.xpending(stream, "holdfast")["pending"] for stream in STREAMS] == [0, 0, 0]
