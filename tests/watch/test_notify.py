"""A word when it matters: real commands, a real endpoint, receivers that are slow or dead, and a run that dies."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from conftest import holdfast, lines, wait_until
from holdfast.config.notify import Notify
from holdfast.machine import clock
from holdfast.report.notify import send as sending
from holdfast.report.notify.follow import Teller, follow
from holdfast.report.notify.send import Word, send, word_of
from holdfast.run.folder import RunFolder


@pytest.fixture
def hook() -> Iterator[SimpleNamespace]:
    """An endpoint that takes words: `.url`, `.bodies`; `.code`: how it answers, 0: never, `.codes`: how at first; `.asked`: GETs."""
    state = SimpleNamespace(bodies=[], code=200, codes=[], asked=0, gone=threading.Event())

    class Handler(BaseHTTPRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(ConnectionError):  # who asked has gone
                super().handle()

        def do_POST(self) -> None:
            state.bodies.append(self.rfile.read(int(self.headers["content-length"])).decode())
            code = state.codes.pop(0) if state.codes else state.code
            if not code:
                state.gone.wait(60)
                self.close_connection = True
                return
            self.send_response(code)
            self.send_header("location", "/elsewhere")
            self.send_header("content-length", "0")
            self.end_headers()

        def do_GET(self) -> None:
            state.asked += 1
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        state.url = f"http://127.0.0.1:{server.server_port}/hook-secret"
        yield state
        state.gone.set()
        server.shutdown()


WORD = Word("recovered", "first", 'first: died "badly"')


def test_a_hook_gets_the_shape_that_was_asked_for(hook: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK", hook.url)
    assert send(Notify(url="$HOOK"), WORD) == [{"receiver": "url", "sent": True, "why": None}]
    send(Notify(url=hook.url, body="{run} {event}"), WORD)
    send(Notify(url=hook.url, body={"msgtype": "m.text", "body": "{text}"}), WORD)
    default, text, matrix = hook.bodies
    assert json.loads(default)["text"] == json.loads(default)["content"] == WORD.text
    assert text == "first recovered"
    assert json.loads(matrix) == {"msgtype": "m.text", "body": WORD.text}


def test_receivers_that_fail_are_told_without_their_address(hook: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    hook.code = 403
    assert send(Notify(url=hook.url, command="exit 7"), WORD) == [
        {"receiver": "command", "sent": False, "why": "exit code 7"},
        {"receiver": "url", "sent": False, "why": "HTTP 403"},
    ]
    monkeypatch.setattr(sending, "PATIENCE_S", 0.3)
    hook.code = 0
    told = send(Notify(url=hook.url, command=["sleep", "60"]), WORD) + send(Notify(url="http://127.0.0.1:9/hook-secret"), WORD)
    told += send(Notify(url="$NO_SUCH_VARIABLE"), WORD)
    assert not any(one["sent"] for one in told) and all(one["why"] for one in told) and "hook-secret" not in str(told)


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_a_word_is_not_taken_for_sent_where_it_is_sent_on(code: int, hook: SimpleNamespace) -> None:
    hook.code = code
    (told,) = send(Notify(url=hook.url), WORD)
    assert not told["sent"] and told["why"] == f"HTTP {code}: it is at another address, give that one"
    assert (len(hook.bodies), hook.asked) == (1, 0), "nothing is asked for at the other address"


@pytest.mark.parametrize(("codes", "sent", "tries"), [([503], True, 2), ([429], True, 2), ([500, 502], False, 2), ([404], False, 1)])
def test_an_endpoint_that_is_busy_is_tried_a_second_time(
    codes: list[int], sent: bool, tries: int, hook: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(sending, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=pauses.append))
    monkeypatch.setattr(sending, "PATIENCE_S", 60.0)
    hook.codes = list(codes)
    assert send(Notify(url=hook.url), WORD) == [{"receiver": "url", "sent": sent, "why": None if sent else f"HTTP {codes[-1]}"}]
    assert len(hook.bodies) == tries and pauses == [2.0] * (tries - 1)


def test_an_address_of_a_variable_that_is_not_set_is_not_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "sendmail"
    program.write_text(f"#!/bin/sh\ncat > {tmp_path}/letter\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv("NO_SUCH_VARIABLE", raising=False)
    notify = Notify(sendmail="$NO_SUCH_VARIABLE", url="http://127.0.0.1:9/${NO_SUCH_VARIABLE}")
    assert [one["why"] for one in send(notify, WORD)] == 2 * ["the variable NO_SUCH_VARIABLE is not set"]
    assert not (tmp_path / "letter").exists()
    monkeypatch.setenv("NO_SUCH_VARIABLE", "me@example.org")
    assert send(Notify(sendmail="$NO_SUCH_VARIABLE"), WORD)[0]["sent"]
    assert "To: me@example.org" in (tmp_path / "letter").read_text()


def _drips(line: socket.socket, over: threading.Event) -> None:
    for one in b"HTTP/1.1 200 OK\r\nX: " + 10_000 * b"a":
        line.sendall(bytes([one]))
        if over.wait(0.05):
            return


def _speaks_no_http(line: socket.socket, _: threading.Event) -> None:
    line.sendall(line.recv(65536) and b"\xff\x00 no HTTP\r\n\r\n")


@pytest.mark.parametrize("answer", [_drips, _speaks_no_http], ids=["drips", "no HTTP"])
def test_what_answers_in_no_known_way_is_told_and_hinders_no_other(
    answer: Callable[[socket.socket, threading.Event], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "PATIENCE_S", 1.0)

    over = threading.Event()

    def serve(server: socket.socket) -> None:
        with contextlib.suppress(OSError), server.accept()[0] as line:
            answer(line, over)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, args=(server,), daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/"
        told = {one["receiver"]: one for one in send(Notify(url=url, command=f"cat > {tmp_path}/heard"), WORD)}
        over.set()
        thread.join()
    assert told["command"]["sent"] and (tmp_path / "heard").read_text()
    assert told["url"]["why"] in (sending.NO_ANSWER, "BadStatusLine")


@pytest.mark.parametrize("how", ["late", "ended"])
def test_a_command_that_hangs_is_ended_with_what_it_started(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the process that sends is ended in the middle: its run is over, and nobody else knows of the command."""
    notify = Notify(command=f"echo $$ > {tmp_path}/pid.new; mv {tmp_path}/pid.new {tmp_path}/pid; sleep 1000; true")
    if how == "late":
        monkeypatch.setattr(sending, "PATIENCE_S", 1.0)
        assert send(notify, WORD)[0]["why"] == sending.NO_ANSWER
    else:
        run = RunFolder(tmp_path / "run")
        run.path.mkdir()
        run.notify_file.write_text(notify.model_dump_json())
        run.summary_file.write_text('{"status": "finished"}')
        command = [sys.executable, "-m", "holdfast.report.notify.follow", str(run.path)]
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        wait_until((tmp_path / "pid").exists)
        child.terminate()
        assert child.wait(60) == 0
    group = int((tmp_path / "pid").read_text())
    wait_until(lambda: not any(_group_of(pid) == group for pid in psutil.pids()))


def _group_of(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def test_a_letter_goes_through_sendmail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "sendmail"
    program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/flags\ncat > {tmp_path}/letter\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert send(Notify(sendmail="me@example.org"), Word("test", "r", "r: line\nBcc: x@example.org"))[0]["sent"]
    letter = (tmp_path / "letter").read_text()
    assert "To: me@example.org" in letter and "Bcc" not in letter.partition("\n\n")[0]


def test_secrets_stay_out_of_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_TOKEN", "abcdef-very-secret")
    text = word_of("gave_up", "r", "download failed: abcdef-very-secret\x1b[2J" + "x" * 9999).text
    assert "very-secret" not in text and "\x1b" not in text and len(text) <= 600


def test_so_many_words_an_hour_and_one_kept_for_the_end(tmp_path: Path) -> None:
    told: list[Word] = []

    def deliver(word: Word) -> list[dict[str, Any]]:
        told.append(word)
        return []

    now = [1000.0]

    def teller() -> Teller:
        return Teller(RunFolder(tmp_path), Notify(command="true", per_hour=3), deliver, lambda: now[0])

    def die(at: float) -> list[dict[str, Any]]:
        died = {"event": "attempt_ended", "time": at, "decision": {"reason": "killed"}, "diagnosis": {"cause": "native_crash"}}
        return [died, {"event": "restored", "time": at + 0.1, "step": 5}]

    one = teller()
    for number in range(4):
        for event in die(1001.0 + number):
            one.see(event)
    assert [word.event for word in told] == ["recovered"] * 2 and "step 5 (native_crash)" in told[0].text
    again = teller()  # after the death of the process
    for event in die(1001.0):
        again.see(event)
    again.end({"status": "finished", "steps": 9, "loss": {}})
    assert [word.event for word in told[2:]] == ["finished"] and "2 more were not sent" in told[2].text
    now[0] += 3601
    for event in die(1010.0):
        again.see(event)
    assert told[-1].event == "recovered" and len(told) == 4


@pytest.mark.parametrize("per_hour", [1, 2])
def test_the_end_is_told_however_few_words_an_hour(per_hour: int, tmp_path: Path) -> None:
    told: list[str] = []

    def deliver(word: Word) -> list[dict[str, Any]]:
        told.append(word.event)
        return []

    teller = Teller(RunFolder(tmp_path), Notify(command="true", per_hour=per_hour), deliver, lambda: 1000.0)
    for step in (1, 2):
        teller.see({"event": "checkpoint_failed", "time": 1000.0 + step, "step": step})
    teller.end({"status": "finished", "steps": 9, "loss": {}})
    assert told == ["needs_person", "finished"]


def test_a_word_that_nobody_got_is_told_again_after_a_pause_and_takes_no_others_place(tmp_path: Path) -> None:
    """An endpoint that is down is not tried at each event: its pauses grow, and the newest word waits for their end."""
    texts: list[str] = []
    now = [1000.0]
    answers = iter(["HTTP 500", "HTTP 500", sending.NO_ANSWER, None])  # who did not answer in time may have got it

    def deliver(word: Word) -> list[dict[str, Any]]:
        texts.append(word.text)
        why = next(answers)
        return [{"receiver": "url", "sent": why is None, "why": why}]

    teller = Teller(RunFolder(tmp_path), Notify(command="true", per_hour=2), deliver, lambda: now[0])
    for step in range(1, 100):
        teller.see({"event": "checkpoint_failed", "time": 1000.0 + step / 100, "step": step})
    assert len(texts) == 1 and "step: 1)" in texts[0]
    for later, tries in ((1029, 1), (1030, 2), (1089, 2), (1090, 3), (9000, 3)):
        now[0] = later
        teller.tell_again()
        assert len(texts) == tries
    assert "step: 99)" in texts[1] and "step: 99)" in texts[2] and "[98 more were not sent" in texts[2]
    teller.end({"status": "finished", "steps": 9, "loss": {}})
    assert len(texts) == 4 and "more were not sent" not in texts[3], "it is told at once"


def _teller(place: Path, told: list[str]) -> Teller:
    def deliver(word: Word) -> list[dict[str, Any]]:
        told.append(word.text.partition("step: ")[2][:2])
        return []

    return Teller(RunFolder(place), Notify(command="true", per_hour=99), deliver, lambda: 1000.0)


def test_what_two_processes_journal_at_a_time_is_told_in_any_order_and_once(tmp_path: Path) -> None:
    """A trainer took the time of its event before the supervisor did, and wrote it down after it."""
    told: list[str] = []
    first, late, same = (
        {"event": "checkpoint_failed", "time": at, "step": step} for at, step in ((1001.005, 11), (1001.003, 12), (1001.005, 13))
    )
    one = _teller(tmp_path, told)
    for event in (first, late, same):
        one.see(event)
    assert told == ["11", "12", "13"]
    again = _teller(tmp_path, told)  # after the death of the process
    one.begin_again()  # the journal was replaced by another of the same lines
    for teller in (one, again):
        for event in (first, late, same):
            teller.see(event)
    again.see({"event": "checkpoint_failed", "time": 1002.0, "step": 14})
    assert told == ["11", "12", "13", "14"]


def test_events_are_held_against_the_runs_clock_and_not_the_calendars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The calendar was set an hour forward since the run began; its follower begins after that."""
    run, heard = RunFolder(tmp_path / "run"), tmp_path / "heard.jsonl"
    run.path.mkdir()
    monkeypatch.setenv(clock.CLOCK, f"{clock._boot()} {time.time() - 3600 - clock._counted():.6f}")
    asked = iter([True, False])

    def alive() -> bool:
        time.sleep(0.01)  # an event's time is rounded to a millisecond
        run.event("checkpoint_failed", step=5)
        return next(asked)

    follow(run, Notify(command=f"cat >> {heard}"), alive)
    assert [word["event"] for word in lines(heard)][:1] == ["needs_person"] and "step: 5" in lines(heard)[0]["text"]


def test_a_run_whose_supervisor_was_killed_needs_a_person(tmp_path: Path) -> None:
    heard = tmp_path / "heard.jsonl"
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    alive = iter([True, False])
    follow(run, Notify(command=f"cat >> {heard}"), lambda: next(alive))
    (word,) = lines(heard)
    assert word["event"] == "needs_person" and "nobody watches over the run" in word["text"]


@pytest.mark.parametrize("notify", [{}, {"url": "file:///etc/passwd"}, {"command": "true", "events": ["lunch"]}, {"sendmail": "a\nBcc: b"}])
def test_what_tells_nobody_is_refused(notify: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        Notify.model_validate(notify)


def test_a_run_that_dies_tells_it_and_a_dead_receiver_changes_no_bit(config_of: Callable[..., Path], tmp_path: Path) -> None:
    faults = tmp_path / "faults.yaml"
    faults.write_text("faults:\n  - name: kill\n    when: {step: 3, attempt: 1}\n    effect: kill\n")
    heard = tmp_path / "heard.jsonl"
    shas = []
    for name, notify in (("quiet", None), ("told", {"command": f"cat >> {heard}", "url": "http://127.0.0.1:9/hook-secret"})):
        run = {"run": {"notify": notify}} if notify else {}
        config = config_of(name, train={"steps": 5, "effective_batch": 2}, **run)
        done = holdfast("train", config, "--run", tmp_path / name, "--faults", faults, "--json")
        assert done.returncode == 0, done.stderr
        shas.append(json.loads(done.stdout)["artifact_sha256"])
    assert shas[0] == shas[1]
    assert [word["event"] for word in lines(heard)] == ["recovered", "finished"]
    assert "url: " in (tmp_path / "told/notify.log").read_text()
    secret = [file.name for file in (tmp_path / "told").rglob("*") if file.is_file() and b"hook-secret" in file.read_bytes()]
    assert secret == ["notify.json"] and (tmp_path / "told/notify.json").stat().st_mode & 0o77 == 0
    done = holdfast("watch", tmp_path / "told", "--test-notify", "--json")
    assert done.returncode == 1, "the dead receiver"
    assert [(one["receiver"], one["sent"]) for one in json.loads(done.stdout)["receivers"]] == [("command", True), ("url", False)]
    assert lines(heard)[-1]["event"] == "test"
    assert holdfast("watch", tmp_path / "quiet", "--test-notify").returncode == 2


def test_a_command_that_dies_tells_it_too(tmp_path: Path) -> None:
    heard, script = tmp_path / "heard.jsonl", tmp_path / "loop.sh"
    script.write_text("for i in 1 2 3; do echo step $i/3; sleep 0.1; [ $i = 2 ] && [ ! -e died ] && touch died && kill -9 $$; done; true\n")
    told = tmp_path / "told.yaml"
    told.write_text(f"command: cat >> {heard}\n")
    done = holdfast("run", "--run", tmp_path / "run", "--notify", told, "--json", "--", "bash", script, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [word["event"] for word in lines(heard)] == ["recovered", "finished"]
    assert "finished after 3 steps" in lines(heard)[-1]["text"]
    for text, says in (("urll: x\n", "urll"), ("", "whom to tell"), ("{", "cannot be read")):
        told.write_text(text)
        done = holdfast("run", "--run", tmp_path / "other", "--notify", told, "--", "true", cwd=tmp_path)
        assert done.returncode == 2 and says in done.stderr and not (tmp_path / "other").exists()
