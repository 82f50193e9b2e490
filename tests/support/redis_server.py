"""A real Redis server for tests, which can be killed and started again."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import wait_until

needs_server = pytest.mark.skipif(
    shutil.which("redis-server") is None, reason="no redis-server on this machine (apt-get install redis-server)"
)


class Server:
    """A Redis server that keeps everything it has acknowledged on disk, and can be killed and started again."""

    def __init__(self, folder: Path, *settings: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._folder, self._settings = folder, settings
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        kept = ["--appendonly", "yes", "--appendfsync", "always", "--save", "", "--dir", str(self._folder), *self._settings]
        with (self._folder / "redis.log").open("ab") as log:
            command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", *kept]
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def wait(self) -> None:
        redis = pytest.importorskip("redis")

        def answers() -> bool:
            try:
                return bool(redis.Redis(port=self.port).ping())
            except redis.exceptions.ConnectionError:
                return False

        wait_until(answers)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def running_server(folder: Path) -> Iterator[Server]:
    """A server that answers, for as long as it is needed. Skips the test without the package."""
    pytest.importorskip("redis", reason="the package redis is not installed (holdfast[redis])")
    running = Server(folder)
    running.start()
    running.wait()
    try:
        yield running
    finally:
        running.kill()


@contextlib.contextmanager
def running_cluster(folder: Path) -> Iterator[list[Server]]:
    """A cluster of three servers on this machine, each with a third of the slots."""
    redis = pytest.importorskip("redis", reason="the package redis is not installed (holdfast[redis])")
    settings = ("--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf", "--cluster-node-timeout", "2000")
    servers = []
    try:
        for number in range(3):
            (folder / str(number)).mkdir()
            with socket.socket() as probe:  # the servers' own bus is at this port and 10,000
                probe.bind(("127.0.0.1", 0))
                bus = probe.getsockname()[1]
            servers.append(Server(folder / str(number), *settings, "--cluster-port", str(bus)))
            servers[-1].start()
            servers[-1].wait()
        nodes = [f"127.0.0.1:{one.port}" for one in servers]
        subprocess.run(["redis-cli", "--cluster", "create", *nodes, "--cluster-yes"], check=True, capture_output=True)
        for one in servers:
            wait_until(lambda: redis.Redis(port=one.port).cluster("info")["cluster_state"] == "ok")  # noqa: B023
        yield servers
    finally:
        for one in servers:
            one.kill()
