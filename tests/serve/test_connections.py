"""Who holds connections to `serve` open, idle, slow or many, is ended; others are answered. The engine answers at once, or waits."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from conftest import wait_until
from holdfast.base.errors import Stop
from holdfast.base_model.folder import EMBEDDED
from holdfast.data.tokens.codec import load_codec
from holdfast.serve import endpoint
from holdfast.serve.engines import AnswerRequest
from holdfast.serve.gateway import open_gateway
from holdfast.serve.preferences import Blind
from holdfast.serve.served import GatewayState, ServedModel

DRIPS = 2000  # bytes, one by one


class Waiting:
    """An engine that says one word, and goes on for ever where it was asked for more than one."""

    name = "waiting"

    def __init__(self) -> None:
        self.trouble = ""
        self.left = 0  # answers that were not asked to their end
        self.asked, self.free = 0, threading.Event()  # it answers while it is free
        self.free.set()
        self.refuses = False

    def stream(self, wanted: AnswerRequest) -> Iterator[tuple[str, int, str | None]]:
        self.asked += 1
        if self.refuses:
            raise ConnectionRefusedError(111, "Connection refused")
        assert self.free.wait(300)
        try:
            yield "word", 1, None
            while wanted.longest > 1:
                yield " more" * 500, 1, None
            yield "", 0, "length"
        except GeneratorExit:
            self.left += 1
            raise

    def close(self) -> None:
        """Nothing to end."""


@pytest.fixture
def served() -> Iterator[SimpleNamespace]:
    state, engine = GatewayState("secret"), Waiting()
    state.served = ServedModel(load_codec(EMBEDDED["tiny"]), "first", 512, engine)
    server = open_gateway(state, 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield SimpleNamespace(port=server.server_address[1], engine=engine, server=server, state=state)
    server.shutdown()
    server.server_close()


def answer(served: SimpleNamespace, **body: Any) -> tuple[int, str]:
    """The status and the text of a completion of one token."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", served.port)) as line:
        line.request("POST", "/v1/completions", json.dumps({"prompt": "x", "max_tokens": 1} | body), {"Authorization": "Bearer secret"})
        told = line.getresponse()
        return told.status, told.read().decode()


def dial(served: SimpleNamespace) -> socket.socket:
    return socket.create_connection(("127.0.0.1", served.port))


def is_over(line: socket.socket) -> bool:
    """Whether the server has closed its side; what it said before is passed over."""
    try:
        while line.recv(1 << 16):
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    return True


@pytest.mark.parametrize("sent", [b"", b"GET /health HT", b"GET /health HTTP/1.1\r\nHost: 127.0.0.1:1\r\nX: "])
def test_an_idle_connection_ends(served: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(endpoint, "_SILENT_S", 0.05)
    with dial(served) as line:
        line.sendall(sent)
        assert is_over(line)


@pytest.mark.parametrize("where", ["head", "body"])
def test_a_request_that_drips_ends(served: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    monkeypatch.setattr(endpoint, "_ASKING_S", 0.5)
    head = b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:1\r\nAuthorization: Bearer secret\r\nContent-Length: 4000\r\n"
    with dial(served) as line:
        line.sendall(head + (b"\r\n" if where == "body" else b"X: "))
        line.settimeout(0.005)  # between two bytes: never silent for long
        for _ in range(DRIPS):
            try:
                line.sendall(b"y")
                if not line.recv(100):
                    return
            except TimeoutError:
                continue
            except ConnectionError:
                return
    raise AssertionError("it may drip for ever")


def post(**body: Any) -> bytes:
    told = json.dumps({"prompt": "x", "max_tokens": 1} | body).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:1\r\nAuthorization: Bearer secret\r\n"
    return f"{head}Content-Length: {len(told)}\r\n\r\n".encode() + told


def test_connections_beyond_the_limit_are_told_and_room_comes_back(served: SimpleNamespace) -> None:
    served.engine.free.clear()
    with contextlib.ExitStack() as many:
        for _ in range(endpoint._CONNECTIONS):
            many.enter_context(dial(served)).sendall(post())
        wait_until(lambda: served.state.served.asked == endpoint._CONNECTIONS)
        for _ in range(20):
            with dial(served) as beyond:
                assert beyond.recv(30).startswith(b"HTTP/1.1 503 ")
        for _ in range(5):
            with dial(served) as beyond:
                assert b"".join(iter(lambda: beyond.recv(1 << 16), b"")).startswith(b"HTTP/1.1 503 "), "and then the end"
                for _ in range(2):  # a connection that is closed with bytes unread fails here, before its client has looked at the answer
                    beyond.sendall(b"POST /v1/completions HTTP/1.1\r\n")
    served.engine.free.set()
    wait_until(lambda: answered(served))


@pytest.mark.parametrize("sent", [b"", b"GET /heal", b"GET /health HTTP/1.1\r\nX: ", b"body"])
def test_who_asks_slowly_locks_nobody_out(served: SimpleNamespace, sent: bytes) -> None:
    with contextlib.ExitStack() as many:
        lines = []
        for number in range(endpoint._CONNECTIONS + 6):
            lines.append(many.enter_context(dial(served)))
            lines[-1].sendall(post()[:-5] if sent == b"body" else sent)
            waiting = min(number + 1, endpoint._CONNECTIONS)
            wait_until(lambda: len(served.server._asking) == waiting)  # noqa: B023
        for _ in range(20):
            assert answer(served)[0] == 200
        told = b"".join(iter(lambda: lines[0].recv(1 << 16), b""))
        assert told.startswith(b"HTTP/1.1 408 ") and b"the request took too long to come" in told


def test_one_client_of_many_connections_takes_no_place_of_another(served: SimpleNamespace) -> None:
    with socket.create_connection(("127.0.0.1", served.port), source_address=("127.0.0.2", 0)) as other, contextlib.ExitStack() as many:
        wait_until(lambda: len(served.server._asking) == 1)
        for _ in range(2 * endpoint._CONNECTIONS):
            many.enter_context(dial(served))
        wait_until(lambda: len(served.server._asking) == endpoint._CONNECTIONS)
        other.sendall(post())
        assert other.recv(30).startswith(b"HTTP/1.1 200 ")


def answered(served: SimpleNamespace) -> bool:
    with contextlib.suppress(ConnectionError):
        return answer(served)[0] == 200
    return False


def test_clients_that_have_gone_while_they_waited_for_the_engine_keep_no_place(served: SimpleNamespace) -> None:
    served.engine.free.clear()
    for _ in range(2 * endpoint._CONNECTIONS):
        before = served.engine.asked
        with dial(served) as line:
            line.sendall(post())
            wait_until(lambda: served.engine.asked > before or before == 2)  # noqa: B023
    wait_until(lambda: healthy(served))
    assert served.engine.asked == 2, "the others had gone before it was their turn"
    served.engine.free.set()


def test_an_engine_that_cannot_be_reached_is_told(served: SimpleNamespace) -> None:
    served.engine.refuses = True
    status, told = answer(served)
    assert status >= 500 and "the model's process does not answer" in told


def test_health_says_that_the_engine_cannot_answer_and_why(served: SimpleNamespace) -> None:
    served.engine.trouble = "the model's process was stopped"
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", served.port)) as line:
        line.request("GET", "/health")
        told = line.getresponse()
        facts = {"status": "down", "engine": "waiting", "serves": "first", "context": 512, "reason": "the model's process was stopped"}
        assert (told.status, json.loads(told.read())) == (503, facts)
    served.engine.trouble = ""
    assert healthy(served)


def healthy(served: SimpleNamespace) -> bool:
    """Whether a client that does not ask the engine is answered."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", served.port)) as line, contextlib.suppress(ConnectionError):
        line.request("GET", "/health")
        return line.getresponse().status == 200
    return False


def test_one_that_does_not_read_its_stream_is_left(served: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "_SILENT_S", 0.3)
    with dial(served) as line:
        line.sendall(post(max_tokens=9, stream=True))
        wait_until(lambda: served.engine.left == 1)
    monkeypatch.setattr(endpoint, "_SILENT_S", 60.0)
    assert answer(served)[0] == 200


def test_requests_on_one_connection_are_each_given_their_time(served: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", served.port)) as line:
        for _ in range(3):
            line.request("GET", "/health")
            told = line.getresponse()
            assert (told.status, told.read()) == (200, b'{"status":"ok","engine":"waiting","serves":"first","context":512}')


def test_a_vote_is_told_as_kept_whatever_else_stands_in_its_file_and_an_error_is_an_answer(served: SimpleNamespace, tmp_path: Path) -> None:
    """With one damaged line in the file each vote was kept, and its request answered with nothing."""
    served.state.blind = Blind(tmp_path / "preferences.jsonl")
    first, second = (served.state.blind.show("a", {"base": "b", "tuned": "c"}, ["tuned", "base"], "first")["id"] for _ in range(2))
    served.state.blind.file.write_text('{"voted": ["base"], "between": 3}\nno vote\n')
    assert posted(served, "/ab/vote", {"id": first, "choice": "left"}) == (200, {"kept": 1})
    assert json.loads(served.state.blind.file.read_text().splitlines()[-1])["voted"] == "tuned"
    served.state.blind.file.unlink()
    served.state.blind.file.mkdir()
    status, told = posted(served, "/ab/vote", {"id": second, "choice": "left"})
    assert status == 500 and "irectory" in told["error"]["message"]
    served.state.blind.file.rmdir()
    assert posted(served, "/ab/vote", {"id": second, "choice": "left"}) == (200, {"kept": 1}), "it can be judged again"


def test_a_stop_of_ours_is_an_answer(served: SimpleNamespace) -> None:
    def refuse(number: str, choice: str) -> None:
        raise Stop(1, "the file is damaged", "restore it")

    served.state.blind = SimpleNamespace(vote=refuse)
    status, told = posted(served, "/ab/vote", {"id": "a", "choice": "left"})
    assert status == 500 and "the file is damaged" in told["error"]["message"]


def posted(served: SimpleNamespace, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", served.port)) as line:
        line.request("POST", path, json.dumps(body), {"Authorization": "Bearer secret", "Content-Type": "application/json"})
        told = line.getresponse()
        return told.status, json.loads(told.read())
