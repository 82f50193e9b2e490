"""The page over all runs: what it answers and whom, what it reads, that it stops a run, and how it looks in a real browser."""

from __future__ import annotations

import gzip
import http.client
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest

from conftest import holdfast, start, wait_until
from holdfast.base.identity import myself
from holdfast.machine import clock
from holdfast.run.folder import RunFolder
from holdfast.supervision.preparation.lock import held
from holdfast.watch import detail
from holdfast.watch.board import Board
from holdfast.watch.curve import Curves
from holdfast.watch.link import qr_code
from holdfast.watch.metrics import metrics
from support.watched import make_run, site

__all__ = ["site"]


def test_runs_are_told_as_status_tells_them_and_more(site: SimpleNamespace) -> None:
    (run,) = json.loads(site.ask("/api/runs")[1])["runs"]
    told = json.loads(holdfast("status", site.runs, "--json").stdout)["runs"][0]
    assert {name: run[name] for name in told if name != "last_incident"} == {n: v for n, v in told.items() if n != "last_incident"}
    assert (run["name"], run["state"], run["loss"], run["tokens_per_second"]) == ("made", "dead", 1 / 7, 180.0)
    one = json.loads(site.ask("/api/runs/made")[1])
    (incident,) = one["incidents"]
    assert (incident["cause"], incident["title"], incident["done"]) == ("native_crash", "native crash", "killed")
    assert incident["book"]["card"] == "crash-signal" and "Compiled code" in incident["book"]["says"]
    assert one["output"][-1] == "last line" and "\x1b" not in "".join(one["output"])
    assert one["loss_curve"][-1] == [7, 1 / 7] and one["chart"].startswith("<svg")
    assert [(chart["title"], chart["lines"][0]["points"][-1]) for chart in one["charts"]] == [
        ("Loss", [7, 0.14286]),
        ("Speed", [7, 180]),
        ("Gradient norm", [7, 2]),
    ]
    assert 'holdfast_run_step{run="made"} 7' in site.ask("/metrics")[1]


def test_a_finished_run_tells_what_was_learned(site: SimpleNamespace) -> None:
    told = {"status": "finished", "loss": {"eval_base": 4.0, "eval_tuned": 3.0}}
    for summary, change in ((told, "lower by 25.0%"), (told | {"loss": 7}, ""), (told | {"loss": None}, "")):
        (site.runs / "made/summary.json").write_text(json.dumps(summary))
        assert RunFolder(site.runs / "made").summary_file.exists()
        row = Board([site.runs], must_be_runs=True).rows()["made"]
        assert (row["state"], row["held_out_change"]) == ("finished", change)


def test_the_runs_of_rounds_of_learning_are_watched_under_the_names_of_their_policies(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    for folder in ("learn/helper/rounds/0003", "learn/helper/rounds/0003/experts/ssh-1f0c", "learn/helper/withdrawn/ab12/0001"):
        make_run(runs / folder, name="run")
    make_run(runs, name="mine")
    names = {"helper-0003", "helper-0003-ssh-1f0c", "helper-withdrawn-ab12-0001"}
    assert Board([runs], must_be_runs=True).rows().keys() == {"mine", *names}
    assert Board([runs / "learn/helper"], must_be_runs=True).rows().keys() == names


def test_only_who_has_the_token_is_answered(site: SimpleNamespace) -> None:
    for path in ("/", "/api/runs", "/api/runs/made", "/metrics", "/api/events"):
        assert site.ask(path, token="")[0] == site.ask(path, token="wrong")[0] == 401, path
        assert site.ask(path, Host="evil.example:80")[0] == 403, path
    assert site.ask("/api/runs", token="", Authorization="Bearer secret")[0] == 200
    for path in ("/api/runs/none", "/api/runs/..%2F..%2Fetc", "/api/runs/made/../..", "/etc/passwd", "/nowhere"):
        assert site.ask(path)[0] == 404, path
    stop = "/api/runs/made/stop"
    assert site.ask(stop, method="POST", Origin="http://evil.example")[0] == 403
    assert site.ask(stop, method="POST", Origin="null")[0] == 403
    assert site.ask(stop, method="POST", **{"Sec-Fetch-Site": "cross-site"})[0] == 403
    assert site.ask(stop, token="", method="POST")[0] == 401
    assert site.ask(stop)[0] == 404, "looking stops nothing"
    status, told = site.ask(stop, method="POST")
    assert status == 409 and "not running: dead" in told


def test_a_host_without_a_port_is_that_of_port_80(site: SimpleNamespace) -> None:
    for host, status in (("127.0.0.1", 200), ("localhost", 200), ("localhost:80", 200), ("evil.example", 403), ("[::1]", 403), ("", 403)):
        assert site.ask("/api/runs", Host=host)[0] == status, host
    site.watched.lan = True
    for host in ("[::1]", "[::1]:80", "192.0.2.1", "192.0.2.1:8470"):
        assert site.ask("/api/runs", Host=host)[0] == 200, host
    assert site.ask("/api/runs", Host="evil.example")[0] == 403


def test_runs_whose_names_are_no_utf8_have_valid_names_of_their_own(site: SimpleNamespace) -> None:
    for name in (b"L\xe4ufe", b"L\xf6ufe"):
        make_run(site.runs, name=os.fsdecode(name))
    names = [run["name"] for run in json.loads(site.ask("/api/runs")[1])["runs"]]
    assert sorted(names) == ["L\\xe4ufe", "L\\xf6ufe", "made"]
    for name in names:
        assert json.loads(site.ask(f"/api/runs/{quote(name)}")[1])["step"] == 7
    series = [line.rpartition(" ")[0] for line in site.ask("/metrics")[1].splitlines() if not line.startswith("#")]
    assert len(series) == len(set(series)) and sum(line.startswith("holdfast_run_step{") for line in series) == 3


@pytest.fixture
def open_for_test() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_what_changes_is_sent_as_it_changes(site: SimpleNamespace, open_for_test: ExitStack) -> None:
    line = open_for_test.enter_context(closing(http.client.HTTPConnection("127.0.0.1", site.port, timeout=300)))
    line.request("GET", "/api/events?token=secret")
    stream = open_for_test.enter_context(line.getresponse())

    def next_run() -> dict[str, Any]:
        while not (told := stream.readline().decode()).startswith("data: "):
            assert told
        found: dict[str, Any] = json.loads(told[6:])
        return found

    assert next_run()["step"] == 7
    make_run(site.runs, steps=9)
    assert next_run()["step"] == 9
    make_run(site.runs, name="other")
    assert next_run()["name"] == "other"


def test_held_out_losses_and_readings_are_drawn_beside_the_steps(site: SimpleNamespace) -> None:
    run = site.runs / "made"
    rows = [{"step": k, "loss": loss, "labels": 1, "seconds": 1.0, "best": True} for k, loss in ((2, 0.9), (4, None), (6, 0.7))]
    (run / "evaluations.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    card = {"name": "X", "busy": 0.5, "celsius": 70.0, "watts": None}
    readings = [{"time": float(k), "step": k, "processors_busy": k / 2000, "gpus": [card]} for k in range(2000)]
    (run / "readings.jsonl").write_text("".join(json.dumps(row) + "\n" for row in readings))
    assert 'holdfast_run_held_out_loss{run="made"} 0.7' in site.ask("/metrics")[1]
    charts = {chart["title"]: chart for chart in json.loads(site.ask("/api/runs/made")[1])["charts"]}
    assert charts["Loss"]["lines"][1] == {"name": "held-out", "smooth": False, "points": [[2, 0.9], [6, 0.7]]}
    (busy,) = charts["Processors busy"]["lines"]
    assert len(busy["points"]) <= 500 and busy["points"][-1] == [1999, 99.95]
    assert charts["GPU 0: temperature"]["lines"][0]["points"][-1] == [1999, 70] and "GPU 0: power" not in charts


def test_what_is_tried_is_told_where_the_calendar_was_put_back_since_the_run_began(tmp_path: Path) -> None:
    """Times of files are the calendar's, the attempt's start is the run's own clock's."""
    run = RunFolder(make_run(tmp_path))
    attempt = run.attempt(max(run.attempts()))
    ahead = time.time() + 3600
    told = {"started": ahead, "clock": f"{clock._boot()} {ahead - clock._counted():.6f}"}
    (attempt / "launch.json").write_text(json.dumps(json.loads((attempt / "launch.json").read_text()) | told))
    (run.trials / "001").mkdir(parents=True)
    (run.trials / "001/request.json").write_text(json.dumps({"step": 8}))
    started = time.time()
    os.utime(run.trials / "001/request.json", (started + 60, started + 60))
    assert detail.trials(run)[0]["tries"] == "step 8"
    os.utime(run.trials / "001/request.json", (started - 3000, started - 3000))
    assert detail.trials(run) == [], "it is of an attempt before"
    (attempt / "launch.json").write_text(json.dumps({"started": started - 3600}))
    assert len(detail.trials(run)) == 1, "a folder without a clock of its own"


def test_what_is_tried_and_what_comes_next_is_told(tmp_path: Path) -> None:
    run = RunFolder(make_run(tmp_path))
    for number, request, trial in (
        (1, {"step": 8, "samples": [4, 5], "settings": {}, "env": {}}, {"finite": False, "ending": "killed by SIGSEGV"}),
        (2, {"step": 8, "samples": [], "settings": {"fused": False}, "env": {"A": "1"}}, {"finite": True, "ending": "finished"}),
        (3, {"step": 8, "samples": [], "settings": {}, "env": {}}, None),
    ):
        folder = run.trials / f"{number:03d}"
        folder.mkdir(parents=True)
        (folder / "request.json").write_text(json.dumps(request))
        if trial:
            (folder / "trial.json").write_text(json.dumps(trial))
    told = [(one["tries"], one["came"]) for one in detail.trials(run)]
    assert told == [("step 8, 2 rows", "fails: killed by SIGSEGV"), ("step 8, fused = no, A = 1", "goes through"), ("step 8", None)]
    with held(run.path):
        [row] = Board([run.path], must_be_runs=True).rows().values()
        assert (row["doing"], row["seconds_left"]) == ("trying the failed step with one change at a time", None)
    (run.attempt(3)).mkdir()
    (run.attempt(3) / "launch.json").write_text(json.dumps({"started": time.time() + 60}))
    assert detail.trials(run) == []
    row = {"state": "running", "step": 7, "last_incident": {"step": 8}, "command": "holdfast train a.yaml", "folder": "/home/me"}
    assert "if step 8 keeps failing, it is tried by itself" in detail.what_comes_next(run, row)
    assert detail.what_comes_next(run, row | {"step": 8}) == detail.what_comes_next(run, row | {"state": "finished"}) == "", "it was passed"
    assert detail.what_comes_next(run, row | {"state": "dead"}) == "it goes on with the same command in /home/me: holdfast train a.yaml"


def test_ranks_are_told_where_there_are_several(tmp_path: Path) -> None:
    run = RunFolder(make_run(tmp_path))
    assert detail.ranks(run, 2) == []
    (run.attempt(2) / "launch.json").write_text('{"started": 1.0, "ranks": 2}')
    me = json.dumps({"identity": myself(), "rank": 1})
    (run.attempt(2) / "rank1.json").write_text(me)
    told = [(one["rank"], one["pid"]) for one in detail.ranks(run, 2)]
    assert told == [(0, None), (1, os.getpid())]


def test_two_runs_are_compared_as_far_as_they_can_be(site: SimpleNamespace) -> None:
    make_run(site.runs, name="other", steps=9)
    status, body = site.ask("/api/runs/made", more="&with=other")
    found = json.loads(body)
    assert status == 200 and [(line["name"], len(line["points"])) for line in found["chart"]["lines"]] == [("made", 7), ("other", 9)]
    assert found["unknown"] and found["runs"] == ["made", "other"]
    assert site.ask("/api/runs/made", more="&with=none")[0] == 404


def test_losses_that_a_command_printed_are_drawn(site: SimpleNamespace) -> None:
    run = make_run(site.runs, name="command")
    (run / "steps.jsonl").unlink()
    RunFolder(run).command_file.write_text('{"argv": ["python", "t.py"]}')
    (run / "attempts/002/output.log").write_text("".join(f"step {k}/9 loss {1 / k:.4f}\n" for k in range(1, 10)))
    (chart,) = json.loads(site.ask("/api/runs/command")[1])["charts"]
    assert chart["over"] == "printed loss" and chart["lines"][0]["points"][-1] == [9, 0.1111]


def test_what_was_printed_last_is_shown_without_secrets_and_with_a_line_for_a_bar(site: SimpleNamespace) -> None:
    log, token = site.runs / "made/attempts/002/output.log", f"hf_{'aB3' * 12}"

    def shown() -> list[str]:
        return list(json.loads(site.ask("/api/runs/made")[1])["output"])

    log.write_text("".join(f"line {k}\n" for k in range(30)) + "".join(f"\r{k}%|###" for k in range(1000)))
    assert shown() == [*(f"line {k}" for k in range(11, 30)), "999%|###"]
    log.write_bytes(b"one\r\ntwo\r\n")
    assert shown() == ["one", "two"]
    log.write_text(1_000_000 * "x")
    assert set("".join(shown())) == {"x"} and len(shown()[0]) == 8192
    for after in range(8192 - len(token), 8192, 6):  # what is shown begins in the middle of it
        log.write_text(f"{9000 * '-'} {token} " + after * "y")
        assert "3aB3" not in shown()[0], after
    log.write_text("")
    assert shown() == []


def test_command_end_and_incidents_are_shown_without_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SECRET", "open-sesame-42")
    run, words = make_run(tmp_path), "no login with open-sesame-42 at https://u:pw-in-url9@host/"
    (run / "supervisor.lock").write_text(json.dumps({"command": "holdfast run -- python t.py --password argv-pass-9"}))
    (run / "summary.json").write_text(json.dumps({"status": "gave_up", "reason": words}))
    wreck = json.loads((run / "attempts/001/wreck.json").read_text())
    (run / "attempts/001/wreck.json").write_text(json.dumps(wreck | {"words": words, "decision": wreck["decision"] | {"reason": words}}))
    shown = json.dumps([(board := Board([run], must_be_runs=True)).rows(), board.detail("made")])
    assert "no login with [secret] at https://[secret]@host/" in shown and "t.py --password [secret]" in shown
    assert not [one for one in ("open-sesame-42", "pw-in-url9", "argv-pass-9") if one in shown], shown


def test_what_is_long_is_sent_packed(site: SimpleNamespace) -> None:
    make_run(site.runs, steps=500)
    with closing(http.client.HTTPConnection("127.0.0.1", site.port, timeout=300)) as line:
        line.request("GET", "/api/runs/made?brief=1&token=secret", headers={"Accept-Encoding": "gzip"})
        with line.getresponse() as answer:
            packed = answer.read()
    found = json.loads(gzip.decompress(packed))
    assert found["charts"] and "chart" not in found and len(packed) < 8192


def test_looking_and_flooding_write_nothing(site: SimpleNamespace, open_for_test: ExitStack) -> None:
    def facts() -> dict[str, tuple[int, int]]:
        return {str(file): (file.stat().st_size, file.stat().st_mtime_ns) for file in sorted(site.runs.rglob("*"))}

    before = facts()
    for path in ("/", "/api/runs", "/api/runs/made", "/metrics"):
        assert site.ask(path)[0] == 200
    assert site.ask("/api/runs/made", more="&with=made")[0] == 200
    for number in range(100):
        line = open_for_test.enter_context(socket.create_connection(("127.0.0.1", site.port)))
        line.sendall(b"GET /api/events?token=secret HTTP/1.1\r\nHost: 127.0.0.1:1\r\n" + (b"\r\n" if number % 2 else b"X: "))
    open_for_test.close()
    wait_until(lambda: _answers(site))
    assert facts() == before


def _answers(site: SimpleNamespace) -> bool:
    try:
        return bool(site.ask("/api/runs")[0] == 200)
    except (OSError, http.client.HTTPException):
        return False


def test_a_run_that_is_damaged_hides_no_other(site: SimpleNamespace) -> None:
    bad = make_run(site.runs, name="bad")
    (bad / "steps.jsonl").write_bytes(b"\xff\n")
    (bad / "timeline.jsonl").write_text('{"settings": 3}\n')
    (bad / "attempts/001/wreck.json").write_text('{"decision": 3}')
    (bad / "events.jsonl").unlink()
    (bad / "events.jsonl").mkdir()
    found = {run["name"]: run for run in json.loads(site.ask("/api/runs")[1])["runs"]}
    assert set(found) == {"bad", "made"} and found["bad"]["problems"]
    assert site.ask("/api/runs/bad")[0] == 200
    assert site.ask("/metrics")[0] == 200


def test_a_curve_keeps_every_spike_in_bounded_room(tmp_path: Path) -> None:
    file = tmp_path / "steps.jsonl"
    curve = Curves(file)
    with file.open("w") as handle:
        for step in range(1, 5001):
            handle.write(json.dumps({"step": step, "loss": 99.0 if step == 1234 else 1.0 + step / 1e4}) + "\n")
            if step % 700 == 0:
                handle.write('{"torn')
                handle.flush()
                curve.read()
                handle.seek(handle.tell() - len('{"torn'))
    curve.read()
    points = curve.points()
    assert len(points) <= 500 and (1234, 99.0) in points and points[0][0] == 1 and points[-1][0] == 5000
    assert points == sorted(points)
    file.unlink()
    file.write_text('{"step": 1, "loss": 2.0}\n')
    curve.read()
    assert curve.points() == [(1, 2.0)]


def test_metrics_are_text_that_prometheus_reads() -> None:
    row = {"state": "running", "step": 3, "steps": None, "attempts": 1, "loss": float("nan"), "grad_norm": None, "lr": 1e-4}
    row |= {"tokens_per_second": 5.5, "peak_bytes": None, "last_step_time": None, "seconds_left": None}
    row |= {"held_out_loss": 0.5, "incidents_seen": 2, "signs": [], "ills": ["x"]}
    text = metrics({'a"b\\': row})
    assert 'holdfast_run_tokens_per_second{run="a\\"b\\\\"} 5.5\n' in text and "nan" not in text and "None" not in text
    for name, value in (("held_out_loss", "0.5"), ("incidents", "2"), ("signs", "0"), ("ills", "1")):
        assert f'holdfast_run_{name}{{run="a\\"b\\\\"}} {value}\n' in text
    assert text.count('state="running"} 1') == 1 and text.count('"} 0\n') == 5


def test_readings_of_the_machine_are_metrics_too() -> None:
    card = dict.fromkeys(("busy", "memory_bytes", "memory_used_bytes", "celsius", "watts", "watts_cap", "mhz", "fan"))
    text = metrics({}, {"processors_busy": 0.5, "gpus": [card | {"name": "X", "celsius": 71.0}]})
    assert "holdfast_machine_processors_busy 0.5\n" in text and 'holdfast_gpu_celsius{gpu="0",name="X"} 71.0\n' in text


def test_the_command_says_one_line_when_it_is_ready_and_ends_when_asked(tmp_path: Path) -> None:
    make_run(tmp_path / "runs")
    (tmp_path / "watch.token").write_text("the-same-at-each-start\n")
    child = start("watch", "--json", "--token-file", "watch.token", cwd=tmp_path)
    assert child.stdout
    ready = json.loads(child.stdout.readline())
    assert ready["url"].endswith("the-same-at-each-start") and ready["runs"] == 1
    port = ready["url"].split(":")[2].split("/")[0]
    taken = holdfast("watch", "--port", port, cwd=tmp_path)
    assert taken.returncode == 2 and f"port {port} cannot be used" in taken.stderr
    child.send_signal(signal.SIGTERM)
    assert child.communicate(timeout=300)[0] == "" and child.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "told"), [(["none"], "is not a run folder"), (["."], "holds no run"), (["--port", "70000"], "below 65536")]
)
def test_what_cannot_be_watched_is_refused(arguments: list[str], told: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = holdfast("watch", *arguments, cwd=tmp_path)
    assert done.returncode == 2 and told in done.stderr


def test_a_link_becomes_a_code_for_a_camera() -> None:
    pytest.importorskip("segno", reason="the package segno is not installed")
    code = qr_code("http://192.168.1.2:8080/?token=x")
    assert code and "█" in code


@pytest.mark.usefixtures("no_leftovers")
def test_a_run_is_stopped_from_the_page(config_of: Callable[..., Path], tmp_path: Path) -> None:
    config = config_of(train={"steps": 5000, "effective_batch": 2})
    training = start("train", config, "--run", tmp_path / "run")
    wait_until(lambda: (tmp_path / "run" / "steps.jsonl").exists())
    child = start("watch", "--json", tmp_path / "run")
    try:
        assert child.stdout
        ready = json.loads(child.stdout.readline())
        with closing(http.client.HTTPConnection(ready["url"].split("/")[2], timeout=300)) as line:
            line.request("POST", f"/api/runs/run/stop?token={ready['token']}")
            with line.getresponse() as answer:
                assert (answer.status, json.loads(answer.read())) == (200, {"asked": True})
        training.communicate(timeout=300)
        assert training.returncode == 130
    finally:
        child.send_signal(signal.SIGTERM)
        child.communicate(timeout=300)
