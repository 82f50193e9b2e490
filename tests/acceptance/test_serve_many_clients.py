"""Twenty clients at once, some of which hang up in mid-answer or read slowly: whoever waits gets the answer to its own question."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest

from conftest import wait_until
from support import forked
from support.shipped import make_adapter, make_family

CLIENTS, TOKENS = 20, 8


@pytest.fixture(scope="module", params=["llama.cpp", "transformers"])
def served(request: pytest.FixtureRequest, assets: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    if request.param == "llama.cpp":
        pytest.importorskip("xllamacpp", reason="the package xllamacpp is not installed")
    folder = tmp_path_factory.mktemp("serve")
    adapter = make_adapter(make_family("qwen2", assets.model, folder / "base"), folder / "adapter", size=0.3)
    command = [sys.executable, "-m", "holdfast", "serve", str(adapter), "--json", "--engine", request.param]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {forked.EXEC: "1"}) as child:
        assert child.stdout and child.stderr
        ready = json.loads(child.stdout.readline())
        yield SimpleNamespace(**ready, pid=child.pid, port=urlsplit(ready["url"]).port, kind=request.param)
        child.send_signal(signal.SIGTERM)
        assert "Traceback" not in child.stderr.read(), "a client that hangs up is no error"
        assert child.wait(60) == 0


@contextlib.contextmanager
def asked(served: Any, model: str, number: int, stream: bool = False) -> Iterator[http.client.HTTPResponse]:
    """The beginning of an answer, greedy, to a question that `number` makes one of many."""
    body = {"model": model, "prompt": f"Join {number} and {number * 37 % 1000}", "max_tokens": TOKENS, "temperature": 0, "stream": stream}
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", served.port, timeout=300)) as line:
        line.request("POST", "/v1/completions", json.dumps(body), {"Authorization": f"Bearer {served.token}"})
        with line.getresponse() as answer:
            yield answer


def whole(served: Any, model: str, number: int) -> str:
    with asked(served, model, number) as answer:
        return text_of(answer)


def text_of(answer: http.client.HTTPResponse) -> str:
    told = json.loads(answer.read())
    assert answer.status == 200, told
    text: str = told["choices"][0]["text"]
    return text


def streamed(answer: http.client.HTTPResponse, pause_s: float) -> str:
    """The text of a stream, read line by line with pauses."""
    parts = []
    for line in answer:
        time.sleep(pause_s)
        if line.startswith(b"data: {"):
            parts.append(json.loads(line[6:])["choices"][0]["text"])
    return "".join(parts)


def client(served: Any, known: dict[tuple[str, int], str], requests: int, seed: int, wrong: list[str], done: list[int]) -> None:
    draw = random.Random(seed)
    for _ in range(requests):
        model, number, what = draw.choice(("base", "tuned")), draw.randrange(8), draw.random()
        with asked(served, model, number, stream=what < 0.6) as answer:
            if answer.status == 503:  # those that hung up before are still being noticed: told, and no answer
                continue
            if what < 0.3:  # hang up: before the first byte, or behind some
                answer.read(draw.choice((0, 1, 80, 300)))
                continue
            text = streamed(answer, draw.choice((0.0, 0.0, 0.02))) if what < 0.6 else text_of(answer)
        if text != known[model, number]:
            wrong.append(f"{model} {number}: {text!r}, not {known[model, number]!r}")
    done.append(seed)


def kilobytes(pid: int) -> int:
    """Resident memory of a process."""
    return next(int(line.split()[1]) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))


def hurried(served: Any, requests: int, seed: int) -> None:
    """Ask that often, by all clients together."""
    known = {(model, number): whole(served, model, number) for model in ("base", "tuned") for number in range(8)}
    assert len(set(known.values())) > 8, "the answers tell the questions apart"
    wrong: list[str] = []
    done: list[int] = []
    before = kilobytes(served.pid)
    each = requests // CLIENTS
    threads = [threading.Thread(target=client, args=(served, known, each, seed * CLIENTS + at, wrong, done)) for at in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and len(done) == CLIENTS, wrong[:5]
    assert kilobytes(served.pid) - before < 20_000, "its memory is flat"


def test_each_of_many_clients_gets_its_own_answer(served: Any) -> None:
    hurried(served, 300 if served.kind == "llama.cpp" else 120, seed=1)  # the gateway's memory is the same one, an answer costs more


@pytest.mark.long
def test_ten_thousand_requests(served: Any) -> None:
    hurried(served, 10_000, seed=2)


def test_an_engine_that_is_killed_in_an_answer_is_started_again(served: Any) -> None:
    before = whole(served, "tuned", 1)
    first = engine_of(served)
    for tried in range(8):  # a client may be slower to ask than the engine to die: then another one has answered
        os.kill(at := engine_of(served), signal.SIGSTOP)
        threading.Timer(0.3 * 2**tried, os.kill, (at, signal.SIGKILL)).start()
        with asked(served, "tuned", 1) as answer:
            told = json.loads(answer.read())
        if answer.status == 500:
            break
    assert "has ended; it is started again" in told["error"]["message"]
    assert whole(served, "tuned", 1) == before and engine_of(served) != first


def engine_of(served: Any) -> int:
    """The process that generates. It is a child of one thread, and of another one once that has ended, which may have been read before."""
    found: list[int] = []

    def look() -> bool:
        with contextlib.suppress(OSError):  # a thread that has ended
            found.extend(int(child) for task in Path(f"/proc/{served.pid}/task").glob("*/children") for child in task.read_text().split())
        return bool(found)

    wait_until(look)
    return found[0]
