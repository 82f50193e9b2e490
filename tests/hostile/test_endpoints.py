"""Endpoints that misbehave: each is answered with a sentence, in bounded time and memory. The seeds of the long part are drawn afresh."""

from __future__ import annotations

import gzip
import json
import random
import resource
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.base.errors import Stop
from holdfast.base.files import Json
from holdfast.cli.main import main
from holdfast.data.recipe.ask import Answer, Asker, Endpoint
from holdfast.data.recipe.prompt import rows_in
from holdfast.data.recipe.wire import shown

TIMEOUT_S, MOST_BYTES = 0.6, 300 << 20
SLACK_S = 60.0  # of a busy machine; what drips would do so for 300 s and more
Talk = Callable[[socket.socket, random.Random], None]


def answer(body: bytes, head: bytes = b"", status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n%s\r\n%s" % (status, len(body), head, body)


def said(content: object, **more: object) -> bytes:
    return json.dumps({"choices": [{"message": {"content": content}}]} | more).encode()


def drip(line: socket.socket, data: bytes, gap_s: float = 0.05) -> None:
    for byte in data:
        line.sendall(bytes([byte]))
        time.sleep(gap_s)


def endless(line: socket.socket, first: bytes, block: bytes) -> None:
    line.sendall(first)
    for _ in range(1 << 14):
        line.sendall(block)


def bomb(size: int) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    return b"".join(packer.compress(bytes(1 << 20)) for _ in range(size >> 20)) + packer.flush()


def random_value(rng: random.Random, depth: int = 0) -> object:
    plain: list[object] = [None, True, -1, 10**30, 1e308, "", "x" * rng.randrange(2000), "\ud800", "\x1b[2J", {}, []]
    if depth > 3 or rng.random() < 0.5:
        return rng.choice(plain)
    if rng.random() < 0.5:
        return [random_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {rng.choice(["choices", "message", "content", "usage", "x"]): random_value(rng, depth + 1) for _ in range(3)}


def spoiled(rng: random.Random) -> bytes:
    """A good answer with a value of another kind at one of its places."""
    tree: Json = {
        "choices": [{"message": {"content": "hello"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 2},
    }
    place = rng.choice(["choices", "first", "message", "content", "finish", "usage", "tokens", "all"])
    value, first = random_value(rng), tree["choices"][0]
    spoil: dict[str, Callable[[], object]] = {
        "choices": lambda: tree.update(choices=value),
        "first": lambda: tree.update(choices=[value]),
        "message": lambda: first.update(message=value),
        "content": lambda: first["message"].update(content=value),
        "finish": lambda: first.update(finish_reason=value),
        "usage": lambda: tree.update(usage=value),
        "tokens": lambda: tree["usage"].update(prompt_tokens=value),
        "all": lambda: tree.update({name: random_value(rng) for name in tree}),
    }
    spoil[place]()
    return json.dumps(tree).encode()


def flipped(rng: random.Random) -> bytes:
    data = bytearray(answer(said("hello")))
    for _ in range(rng.randrange(1, 6)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data)


BEHAVIOURS: dict[str, Talk] = {
    "says nothing": lambda line, rng: time.sleep(TIMEOUT_S * 3),
    "drips its head": lambda line, rng: drip(line, b"HTTP/1.1 200 OK\r\n" + b"X-A: b\r\n" * 1000),
    "drips its body": lambda line, rng: drip(line, b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n" + b" " * 9999),
    "drips chunks": lambda line, rng: drip(line, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\n \r\n" * 1000),
    "never ends its head": lambda line, rng: endless(line, b"HTTP/1.1 200 OK\r\n", b"X-A: " + b"b" * 8000 + b"\r\n"),
    "never ends its body": lambda line, rng: endless(line, b"HTTP/1.1 200 OK\r\n\r\n", b" " * 65536),
    "never ends a chunk": lambda line, rng: endless(
        line, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFFFF\r\n", b" " * 65536
    ),
    "a body too long": lambda line, rng: line.sendall(answer(said("x" * (17 << 20)))),
    "a bomb": lambda line, rng: line.sendall(answer(bomb(256 << 20), b"Content-Encoding: gzip\r\n")),
    "a torn gzip": lambda line, rng: line.sendall(answer(gzip.compress(said("hello"))[:-9], b"Content-Encoding: gzip\r\n")),
    "no gzip": lambda line, rng: line.sendall(answer(said("hello"), b"Content-Encoding: gzip\r\n")),
    "unasked packing": lambda line, rng: line.sendall(answer(said("hello"), b"Content-Encoding: zstd\r\n")),
    "packed twice": lambda line, rng: line.sendall(answer(said("hello"), b"Content-Encoding: gzip, gzip\r\n")),
    "deep": lambda line, rng: line.sendall(answer(b"[" * 200_000)),
    "deep objects": lambda line, rng: line.sendall(answer(b'{"choices":' * 50_000 + b"1" + b"}" * 50_000)),
    "a huge number": lambda line, rng: line.sendall(answer(b'{"choices": ' + b"9" * 100_000 + b"}")),
    "counts beyond use": lambda line, rng: line.sendall(answer(said("hello", usage={"prompt_tokens": 2**70, "completion_tokens": True}))),
    "no utf-8": lambda line, rng: line.sendall(answer(b'{"choices": "\xff\xfe"}')),
    "half a surrogate": lambda line, rng: line.sendall(answer(b'{"choices":[{"message":{"content":"\\ud800"}}]}')),
    "empty": lambda line, rng: line.sendall(answer(b"")),
    "hangs up": lambda line, rng: None,
    "no http": lambda line, rng: line.sendall(rng.randbytes(500)),
    "lies about its length": lambda line, rng: line.sendall(answer(said("hello")).replace(b"Length: ", b"Length: 9")),
    "two lengths": lambda line, rng: line.sendall(answer(said("hello"), b"Content-Length: 3\r\n")),
    "a redirect": lambda line, rng: line.sendall(answer(b"", b"Location: http://127.0.0.1:1/\r\n", b"307 Temporary Redirect")),
    "a redirect to a file": lambda line, rng: line.sendall(answer(b"", b"Location: file:///etc/passwd\r\n", b"302 Found")),
    "escape codes": lambda line, rng: line.sendall(answer(b"\x1b]0;owned\x07\x1b[2J", status=b"403 Forbidden")),
    "asks for patience": lambda line, rng: line.sendall(answer(b"", b"Retry-After: 1e308\r\n", b"429 Too Many Requests")),
    "asks for nan": lambda line, rng: line.sendall(answer(b"", b"Retry-After: nan\r\n", b"503 Service Unavailable")),
    "a strange status": lambda line, rng: line.sendall(answer(b"", status=b"%d ?" % rng.randrange(1000))),
    "continues": lambda line, rng: endless(line, b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1000),
    "cookies": lambda line, rng: line.sendall(answer(said("hello"), b"Set-Cookie: a=b\r\n" * 50)),
    "spoiled": lambda line, rng: line.sendall(answer(spoiled(rng))),
    "flipped": lambda line, rng: line.sendall(flipped(rng)),
}


@contextmanager
def serving(talk: Talk, seed: int) -> Iterator[str]:
    rng, over = random.Random(seed), threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)

        def serve() -> None:
            while not over.is_set():
                try:
                    line, _ = server.accept()
                except TimeoutError:
                    continue
                with line:
                    try:
                        line.settimeout(1)
                        line.recv(65536)
                        talk(line, rng)
                        line.shutdown(socket.SHUT_RDWR)
                    except OSError:
                        pass

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}/v1"
        finally:
            over.set()
            thread.join(10)


def asked(talk: Talk, seed: int) -> tuple[Answer | Stop, float]:
    """What asking comes to, and in how many seconds. Everything else that is raised is a bug."""
    with serving(talk, seed) as url:
        began = time.monotonic()
        try:
            with Asker(Endpoint(url, "m", "key", TIMEOUT_S, retries=0)) as asker:
                found: Answer | Stop = asker.ask([{"role": "user", "content": "hi"}], {}, 10)
        except Stop as stop:
            found = stop
        return found, time.monotonic() - began


def assert_bounded(name: str, seed: int) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found, seconds = asked(BEHAVIOURS[name], seed)
    assert seconds < TIMEOUT_S + SLACK_S, f"{name} (seed {seed}): {seconds:.1f} s"
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10 < MOST_BYTES, f"{name} (seed {seed})"
    if isinstance(found, Stop):
        assert found.code in (2, 3) and len(str(found)) < 1000, f"{name} (seed {seed}): {found}"
    else:
        assert isinstance(found.text, str) and all(count is None or 0 <= count < 2**62 for count in found[1:3]), (
            f"{name} (seed {seed}): {found}"
        )


@pytest.mark.parametrize("name", BEHAVIOURS)
def test_an_endpoint_that_misbehaves_is_answered(name: str) -> None:
    assert_bounded(name, 1)


@pytest.mark.long
def test_endpoints_from_fresh_seeds() -> None:
    for number in range(150):
        name = random.choice(["spoiled", "spoiled", "flipped", "a strange status", *BEHAVIOURS])
        assert_bounded(name, random.SystemRandom().randrange(1 << 30) + number)


def test_the_deadline_is_that_of_the_whole_answer() -> None:
    for name in ("drips its head", "drips its body", "drips chunks", "says nothing"):
        found, seconds = asked(BEHAVIOURS[name], 1)
        assert isinstance(found, Stop) and f"no whole answer within {TIMEOUT_S:g} s" in found.message, f"{name}: {found}"
        assert seconds < TIMEOUT_S + SLACK_S


@pytest.mark.parametrize("text", ['{"a":' * 100_000, "[" * 100_000, '[{"a": ' + "9" * 10_000 + "}]", '{"rows": [' + '{"a":{}},' * 1000])
def test_rows_nested_beyond_use_are_none(text: str) -> None:
    rows, _ = rows_in(text)
    assert len(rows) <= 1000


def test_a_name_and_password_in_an_address_are_not_shown_and_not_sent_beside_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shown("http://user:pw@host:1/v1?x=1") == "http://host:1/v1?x=1"
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    asking = ["data", "make", "--rows", "1", "--out", str(tmp_path / "out"), "--model", "m", "--endpoint", "http://me:pw123@127.0.0.1:1"]
    assert main(asking) == 2
    told = capsys.readouterr().err
    assert "only one of them" in told and "pw123" not in told


@pytest.mark.parametrize(
    ("url", "warned"), [("http://10.0.0.7/v1", True), ("http://127.0.0.1:1", False), ("http://localhost", False), ("https://x.org", False)]
)
def test_a_key_that_would_cross_a_network_in_the_clear_is_told_of(url: str, warned: bool) -> None:
    assert Endpoint(url, "m", "key").in_the_clear == warned
    assert not Endpoint(url, "m", None).in_the_clear


@pytest.mark.parametrize("url", ["http://", "http://[::1", "http://host:99999", "http://host:x", "http://\x00"])
def test_an_address_that_is_none_is_told(url: str) -> None:
    with pytest.raises(Stop) as stop, Asker(Endpoint(url, "m", None, 0.3, retries=0)) as asker:
        asker.ask([], {}, 1)
    assert stop.value.code in (2, 3)
