"""The live page beside runs: killed and flooded a thousand times, receivers that are dead, and many long runs on one page.

python benchmarks/watch/storm.py WORK kills [--kills 1000]       a run beside pages that are flooded and killed, and its twin alone
python benchmarks/watch/storm.py WORK receivers [--runs 200]     runs that die once, each with a receiver that fails in its way
python benchmarks/watch/storm.py WORK page                       50 runs of 100,000 steps: first paint, memory over an hour of events
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / one) for one in ("tests", "scripts")]
import make_model  # noqa: E402
import psutil  # noqa: E402

from conftest import holdfast, lines, make_rows, start, write_config, write_rows  # noqa: E402
from support import forked  # noqa: E402
from support.browser import Tab  # noqa: E402
from support.watched import make_run  # noqa: E402

PATHS = (
    "/",
    "/api/runs",
    "/api/runs/watched",
    "/api/runs/watched?brief=1",
    "/metrics",
    "/api/events",
    "/api/runs/none",
    "/../../etc/passwd",
)
EVENTS_OF_AN_HOUR = 3600


def assets_in(work: Path) -> SimpleNamespace:
    found = SimpleNamespace(model=work / "model", rows=work / "rows.jsonl")
    if not found.model.exists():
        make_model.make_model(found.model, write_rows(found.rows, make_rows(120)), "test")
    return found


def sha_of(run: Path) -> str:
    return str(json.loads((run / "summary.json").read_text())["artifact_sha256"])


def step_ms(run: Path) -> float:
    return round(1000 * statistics.median(row["seconds"] for row in lines(run / "steps.jsonl")), 2)


# ------------------------------------------------------------------------------------------------------------------------------ kills


def flood(url: str, draw: random.Random, ended: threading.Event) -> None:
    """Ask for everything a page has, hang up in the middle, drip headers, post nonsense."""
    host, port = url.split("/")[2].split(":")
    token = url.partition("token=")[2]
    held: list[socket.socket] = []
    while not ended.is_set():
        with contextlib.suppress(OSError):
            line = socket.create_connection((host, int(port)), timeout=2)
            path, method = draw.choice(PATHS), draw.choice(("GET", "GET", "GET", "POST", "PUT"))
            ask = f"{method} {path}{'&' if '?' in path else '?'}token={token} HTTP/1.1\r\nHost: {host}:{port}\r\n"
            line.sendall(ask.encode()[: draw.choice((10, None))] + draw.choice((b"\r\n", b"X: ", b"Content-Length: 99999999\r\n\r\nabc")))
            if draw.random() < 0.5:
                held.append(line)
            else:
                line.settimeout(0.2)
                with contextlib.suppress(OSError):
                    line.recv(1 << 16)
                line.close()
        if len(held) > 20:
            held.pop(0).close()
    for line in held:
        line.close()


def kills(work: Path, count: int) -> None:
    """Run a config alone, beside a page that is open, and beside pages that are flooded and killed; tell bits and times of a step."""
    assets = assets_in(work)
    draw, shas, times, floods = random.Random(1), set[str](), dict[str, list[float]](), 0
    for number in itertools.count():
        for name in ("alone", "open", "flooded"):
            runs = work / f"{number}-{name}"
            runs.mkdir()
            make_run(runs, name="older")  # a page is not opened over nothing
            config = write_config(assets, work / "kills.yaml", train={"steps": 600, "effective_batch": 4}, save={"every": 50})
            page = opened(runs) if name == "open" else None
            training = start("train", config, "--run", runs / "watched", "--quiet")
            while name == "flooded" and training.poll() is None:
                floods += flooded_and_killed(runs, draw)
            training.communicate()
            assert training.returncode == 0
            if page:
                page.kill()
                page.communicate()
            shas.add(sha_of(runs / "watched"))
            times.setdefault(name, []).append(step_ms(runs / "watched"))
        print(number, floods, {name: each[-1] for name, each in times.items()}, flush=True)
        if floods >= count:
            break
    print(f"{floods} pages flooded and killed; {3 * number + 3} runs of 600 steps, {len(shas)} sha256")
    print("a step, median of medians:", {name: statistics.median(each) for name, each in times.items()})


def opened(runs: Path) -> subprocess.Popen[str]:
    """Open a page that one client listens to."""
    watch = start("watch", runs, "--json", cwd=runs.parent)
    assert watch.stdout
    url = json.loads(watch.stdout.readline())["url"].replace("/?", "/api/events?")
    threading.Thread(target=lambda: _listen(url), daemon=True).start()
    return watch


def _listen(url: str) -> None:
    with contextlib.suppress(OSError), urllib.request.urlopen(url) as answer:
        while answer.read1(65536):
            pass


def flooded_and_killed(runs: Path, draw: random.Random) -> int:
    """Open a page, flood it for a moment from two sides, kill it; 1 where it had begun to answer."""
    runs.mkdir(exist_ok=True)
    watch = start("watch", runs, "--json", cwd=runs.parent)
    assert watch.stdout
    told = watch.stdout.readline()
    ended = threading.Event()
    if told:
        for _ in range(2):
            threading.Thread(target=flood, args=(json.loads(told)["url"], random.Random(draw.random()), ended), daemon=True).start()
        time.sleep(draw.uniform(0, 0.3))
    watch.kill()
    ended.set()
    watch.communicate()
    return int(bool(told))


# -------------------------------------------------------------------------------------------------------------------------- receivers


@contextlib.contextmanager
def listening(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """Listen on a port; each caller is answered in a thread. Yields the port."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    line, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=answered, args=(line,), daemon=True).start()

        def answered(line: socket.socket) -> None:
            with line, contextlib.suppress(OSError):
                answer(line)

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


def _drip(line: socket.socket) -> None:
    for one in b"HTTP/1.1 200 OK\r\nX: " + b"a" * 100_000:
        line.sendall(bytes([one]))
        time.sleep(0.5)


def _pour(line: socket.socket) -> None:
    line.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        line.sendall(b"x" * 65536)


def _redirect(line: socket.socket) -> None:
    line.recv(65536)
    line.sendall(f"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:{line.getsockname()[1]}/\r\nContent-Length: 0\r\n\r\n".encode())


def _error(line: socket.socket) -> None:
    line.recv(65536)
    line.sendall(b"HTTP/1.1 500 no\r\nContent-Length: 0\r\n\r\n")


BAD: dict[str, Callable[[socket.socket], None]] = {
    "accepts and never answers": lambda line: time.sleep(600),
    "hangs up": lambda line: None,
    "drips its header": _drip,
    "pours a body without end": _pour,
    "sends itself on for ever": _redirect,
    "answers 500": _error,
    "is no HTTP": lambda line: line.sendall(os.urandom(4096)),
}
COMMANDS = {
    "command that hangs": "sleep 600",
    "command that fails": "exit 3",
    "command that is not there": "/nowhere/at/all",
    "command that leaves a child": "sleep 600 & disown",
    "command that kills its parent's group": "kill -9 0",
    "command that prints without end": "yes",
    "command that ignores SIGTERM": "trap '' TERM; sleep 600",
}


def receivers(work: Path, count: int) -> None:
    """Run a config that dies once, each time with another dead receiver; tell bits and seconds beside a run without one."""
    assets = assets_in(work)
    (work / "faults.yaml").write_text("faults:\n  - name: kill\n    when: {step: 3, attempt: 1}\n    effect: kill\n")
    with contextlib.ExitStack() as stack:
        kinds: dict[str, dict[str, Any]] = {
            name: {"url": f"http://127.0.0.1:{stack.enter_context(listening(answer))}/hook"} for name, answer in BAD.items()
        }
        kinds |= {"port that refuses": {"url": "http://127.0.0.1:9/"}, "name that nobody knows": {"url": "https://no.such.host.invalid/"}}
        kinds |= {"TLS where there is none": {"url": kinds["hangs up"]["url"].replace("http:", "https:")}}
        kinds |= {name: {"command": command} for name, command in COMMANDS.items()}
        kinds |= {"sendmail that hangs": {"sendmail": "me@example.org"}, "none": {}}
        (work / "sendmail").write_text("#!/bin/sh\nsleep 600\n")
        (work / "sendmail").chmod(0o755)
        os.environ["PATH"] = f"{work}:{os.environ['PATH']}"
        shas: set[str] = set()
        seconds: dict[str, list[float]] = {}
        left: Counter[str] = Counter()
        for at in range(count):
            name, notify = list(kinds.items())[at % len(kinds)]
            run = work / f"receiver-{at:03}"
            more = {"run": {"notify": notify}} if notify else {}
            config = write_config(assets, work / "receiver.yaml", train={"steps": 6, "effective_batch": 2}, **more)
            began = time.monotonic()
            done = holdfast("train", config, "--run", run, "--faults", work / "faults.yaml", "--json")
            seconds.setdefault(name, []).append(time.monotonic() - began)
            assert done.returncode == 0, (name, done.stderr)
            shas.add(json.loads(done.stdout)["artifact_sha256"])
            told = (run / "notify.log").read_text() if (run / "notify.log").exists() else ""
            left[name] += bool(told)
        gone_by = time.monotonic() + 60
        while time.monotonic() < gone_by and (alive := _about(work)):
            time.sleep(1)
        print(f"{count} runs, {len(kinds) - 1} kinds of dead receivers, each run killed once: {len(shas)} sha256")
        for name, took in seconds.items():
            print(f"| {name} | {len(took)} | {statistics.median(took):.1f} | {max(took):.1f} | {left[name]} |")
        print("processes left after a minute:", [" ".join(one) for one in alive])


def _about(work: Path) -> list[list[str]]:
    found = []
    for one in psutil.process_iter(["cmdline", "pid"]):
        words = one.info["cmdline"] or []
        if one.info["pid"] != os.getpid() and (any(str(work) in word for word in words) or words[:2] in (["sleep", "600"], ["yes"])):
            found.append(words)
    return found


# ------------------------------------------------------------------------------------------------------------------------------- page


def page(work: Path) -> None:
    """Open 50 runs of 100,000 steps in a browser; then an hour of events, as fast as they are read."""
    runs = work / "many"
    for number in range(50):
        if not (runs / f"run{number:02}").exists():
            make_run(runs, steps=100_000, name=f"run{number:02}")
    watch = subprocess.Popen([sys.executable, "-m", "holdfast", "watch", str(runs), "--json"], stdout=subprocess.PIPE, text=True, cwd=work)
    assert watch.stdout
    began = time.monotonic()
    url = json.loads(watch.stdout.readline())["url"]
    print(f"ready after {time.monotonic() - began:.2f} s")
    process, sizes = psutil.Process(watch.pid), []
    tab = Tab(work, "1280,900")
    try:
        for _ in range(3):
            tab.call("Page.navigate", url=url)
            tab.wait("document.querySelectorAll('#runs li').length === 50")
            paint = tab.value("performance.getEntriesByName('first-contentful-paint')[0]?.startTime")
            listed = tab.value("performance.now()")
            print(f"first paint {paint:.0f} ms; all 50 listed by {listed:.0f} ms; memory {process.memory_info().rss / 2**20:.0f} MiB")
        tab.value("location.hash = 'run07'")
        tab.wait("document.querySelector('#charts svg') !== null")
        for second in range(EVENTS_OF_AN_HOUR):
            for number in (7, second % 50):
                with (runs / f"run{number:02}" / "steps.jsonl").open("a") as out:
                    row = {"step": 100_001 + second, "time": float(second), "attempt": 2, "loss": random.random(), "lr": 0.1}
                    out.write(json.dumps(row | {"grad_norm": 1.0, "tokens": 90, "seconds": 0.5, "peak_bytes": 9}) + "\n")
            if second % 60 == 0:
                with (runs / "run07/events.jsonl").open("a") as out:
                    out.write(json.dumps({"event": "restored", "attempt": 2, "step": second, "state": "s", "time": float(second)}) + "\n")
            if second % 360 == 0:
                sizes.append(process.memory_info().rss / 2**20)
            time.sleep(0.1)
        print("memory over an hour's events (MiB):", " ".join(f"{one:.0f}" for one in sizes))
        print("errors on the page:", tab.errors)
    finally:
        tab.close()
        watch.send_signal(signal.SIGTERM)
        watch.communicate(timeout=60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("part", choices=["kills", "receivers", "page"])
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=200)
    asked = parser.parse_args()
    asked.work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as cache:
        os.environ |= {"HOLDFAST_CACHE": cache, "HOLDFAST_MODELS": f"{cache}/models.jsonl"}
        if asked.part != "page":
            forked.install()
        if asked.part == "kills":
            kills(asked.work, asked.kills)
        elif asked.part == "receivers":
            receivers(asked.work, asked.runs)
        else:
            page(asked.work)


if __name__ == "__main__":
    main()
