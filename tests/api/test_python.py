"""Training from Python: the page's example, Ctrl-C in a script and in a notebook, errors without a wall of frames."""

from __future__ import annotations

import contextlib
import io
import json
import re
import signal
import subprocess
import sys
import threading
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

import holdfast
from conftest import make_rows, wait_until, write_rows
from holdfast.api.command import _judged
from holdfast.api.notebook import StatusLine
from holdfast.run.folder import RunFolder

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "python.md"
CONFIG: dict[str, Any] = {
    "model": "tiny",
    "data": {"files": "rows.jsonl", "held_out": 0.1},
    "train": {"steps": 60, "max_tokens": 96, "effective_batch": 4, "threads": 1},
    "evaluate": {"generate": 0},
    "run": {"name": "first"},
}
pytestmark = pytest.mark.usefixtures("no_leftovers")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "rows.jsonl", make_rows(48))


def test_the_example_of_the_page_runs(tmp_path: Path) -> None:
    example = re.search(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    assert example
    found: dict[str, Any] = {}
    exec(example[1], found)
    run = found["run"]
    assert run.status == "finished" and len(run.losses) == 20 == len(run.steps["lr"])
    assert run.losses[-1] == run.summary["loss"]["last"] < run.losses[0]
    assert run.adapter_path == tmp_path / "runs/first/adapter" == run.artifact_path
    assert run.report().read_text().startswith("<!doctype html>") or run.report().stat().st_size
    assert max(run.steps["lr"]) == 1e-3
    assert "finished" in run._repr_html_() and "<script" not in run._repr_html_()
    assert holdfast.Run.open("runs/first").summary == run.summary


SCRIPT = """
import json, sys, holdfast
try:
    run = holdfast.train(json.loads(sys.argv[1]), quiet=True)
    print(run.status, run.summary["artifact_sha256"])
except holdfast.Stop as stop:
    print("stopped", stop.code, holdfast.Run.open("runs/first").status)
"""


def test_ctrl_c_in_a_script_saves_and_the_same_call_resumes(tmp_path: Path) -> None:
    words = [sys.executable, "-c", SCRIPT, json.dumps(CONFIG)]
    child = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    wait_until(lambda: (tmp_path / "runs/first/steps.jsonl").exists())
    child.send_signal(signal.SIGINT)
    assert child.communicate()[0].split() == ["stopped", "130", "interrupted"]
    again = subprocess.run(words, capture_output=True, text=True, check=True, cwd=tmp_path)
    status, digest = again.stdout.split()
    undisturbed = holdfast.train(CONFIG, folder="runs/undisturbed", quiet=True)
    assert status == "finished" and undisturbed.summary and digest == undisturbed.summary["artifact_sha256"]
    assert yaml.safe_load((tmp_path / "runs/first.holdfast.yaml").read_text())["data"]["files"] == str(tmp_path / "rows.jsonl")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"trian": 3}, "did you mean train?"),
        ({"model": "no/where/at/all"}, "no such folder"),
        ({"train": {"steps": "many"}}, "train.steps"),
    ],
)
def test_a_wrong_config_is_one_error_of_one_frame(changes: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(holdfast.Stop) as caught:
        holdfast.train({**CONFIG, **changes}, quiet=True)
    assert caught.value.code == 2 and told in str(caught.value) and caught.value.hint
    assert len(caught.traceback) <= 2 and caught.value.__cause__ is None
    assert caught.value._render_traceback_() == [f"holdfast.Stop: {caught.value}"]
    assert not list(tmp_path.glob("runs/*"))


def test_settings_are_sections_or_keys(tmp_path: Path) -> None:
    from holdfast.api.command import as_settings

    weights = {"a.jsonl": 3.0, "at/b c.jsonl": 1.0}
    given = {"train": {"lr": 1e-5, "steps": None}, "data.files": ["a b.jsonl", Path("c")], "model": "tiny", "evaluate": {"keep_best": True}}
    given["data"] = {"weights": weights, "seed": 3}
    found = dict(setting.split("=", 1) for setting in as_settings(given))
    assert {key: yaml.safe_load(value) for key, value in found.items()} == {
        "train.lr": 1e-5, "train.steps": None, "data.files": ["a b.jsonl", "c"], "model": "tiny", "evaluate.keep_best": True,
        "data.weights": weights, "data.seed": 3,
    }  # fmt: skip


def test_the_doctor_judges_a_machine_that_is_given_in_a_thread(tmp_path: Path) -> None:
    found: list[Any] = []
    machine = {"memory_bytes": 2**35, "packages": {"transformers": "5.0.0", "peft": None}, "torch": {"version": "2.5.1"}}
    asking = threading.Thread(target=lambda: found.append(holdfast.doctor(CONFIG, machine=machine)))
    asking.start()
    asking.join()
    checkup = found[0]
    assert checkup.verdict == "blocked" and checkup.machine["memory_bytes"] == 2**35
    assert any(finding.severity == "block" and "peft" in finding.message for finding in checkup.findings)
    with pytest.raises(AttributeError):
        checkup.verdict = "ready"


@pytest.mark.parametrize(
    ("said", "in_words"),
    [
        ("stopped after step 7; rerun the same command to resume", "stopped after step 7; the same call resumes it"),
        ("stopped; resume with: holdfast train a.yaml --run runs/a --quiet --json", "stopped; the same call resumes it"),
        ("holdfast stop runs/a, then rerun the same command", "holdfast stop runs/a, then make the same call again"),
        ("give another folder: --run DIR", "give another folder: folder=DIR"),
    ],
)
def test_what_a_command_says_of_resuming_is_said_as_python_has_it(said: str, in_words: str) -> None:
    with pytest.raises(holdfast.Stop) as caught:
        _judged(json.dumps({"error": said, "hint": said, "code": 130}), 130, deque(), (0,))
    assert (caught.value.message, caught.value.hint) == (in_words, in_words)


def test_ctrl_c_while_a_run_is_followed_stops_it_and_is_a_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    run = RunFolder(tmp_path / "runs/first")
    run.path.mkdir(parents=True)
    run.supervisor_lock.touch()

    def pressed(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("holdfast.api.train.taken", lambda _: True)
    monkeypatch.setattr("holdfast.api.train.ask", lambda words, **_: asked.append(words))
    monkeypatch.setattr("holdfast.api.train.time", SimpleNamespace(sleep=pressed))  # not everybody's: other threads may sleep
    with pytest.raises(holdfast.Stop) as caught:
        holdfast.train(CONFIG, folder=run.path, quiet=True)
    assert (caught.value.code, caught.value.hint) == (130, "the same call resumes it")
    assert asked == [["stop", str(run.path)]]


def shown(cell: Any) -> list[str]:
    return [output.get("evalue") or str(output.get("data") or output.get("text")) for output in cell.outputs]


def test_a_notebook_shows_one_line_and_its_stop_button_saves(tmp_path: Path) -> None:
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    sources = [f"import holdfast\nconfig = {CONFIG!r}", "holdfast.train(config)", "holdfast.train(config)"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    client = nbclient.NotebookClient(
        notebook, timeout=600, kernel_name="python3", allow_errors=True, resources={"metadata": {"path": tmp_path}}
    )

    def interrupt() -> None:
        wait_until(lambda: (tmp_path / "runs/first/steps.jsonl").exists())
        client.km.provisioner.process.send_signal(signal.SIGINT)

    pressing = threading.Thread(target=interrupt, daemon=True)
    pressing.start()
    client.execute()
    _, stopped, resumed = map(shown, notebook.cells)
    assert len(stopped) == 2 and "interrupted" in stopped[0] and "the same call resumes it" in stopped[1]
    assert len(resumed) == 2 and "step 60/60" in resumed[0] and "<table>" in resumed[1]


def test_a_run_tells_which_rows_are_lost_and_what_the_others_teach(tmp_path: Path) -> None:
    good = [{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": f"answer {at}"}]} for at in range(6)]
    late = {"messages": [*good[0]["messages"], {"role": "user", "content": "more"}, {"role": "assistant", "content": "a " * 200}]}
    rows = [*good, late, {"instruction": "no answer"}, {"instruction": "none"}]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    folder = RunFolder(tmp_path / "runs" / "first")
    holdfast.train({**CONFIG, "train": CONFIG["train"] | {"steps": 1}, "data": {"files": "rows.jsonl"}}, quiet=True)
    run = holdfast.Run.open(folder.path)
    assert run.rows and (run.rows["rows"], run.rows["kept"], run.rows["mended"], run.rows["rejected"]) == (9, 6, 1, 2)
    assert run.learned["answers"] == run.learned["learned"] == 8 and run.learned["without_end"] == 1
    lost, cut, endless = run.warnings
    assert lost.startswith("9 rows = 6 kept + 1 repaired + 2 rejected (missing_field 2, answer_cut 1)") and "rejects.jsonl" in lost
    assert cut.startswith("1 answer cut off at 96 tokens") and endless.startswith("1 of 8 answers are learned without")
    shown, page = run._repr_html_(), run.report().read_text()
    assert "2 rejected" in shown and "1 answer cut off" in shown
    assert "answers that are learned" in page and "1 answer cut off" in page and "without a token that ends them" in page
    line = StatusLine(folder)
    line._show = lambda text: None  # type: ignore[method-assign]
    with contextlib.redirect_stdout(io.StringIO()) as out:
        line.end()
    assert out.getvalue().startswith("! 9 rows = 6 kept + 1 repaired + 2 rejected")


def test_a_checkup_is_shown_as_findings_and_a_verdict_and_not_as_a_wall_of_facts() -> None:
    machine = {"torch": None, "python": "3.11", "secret": "a wall " * 1000}
    found = holdfast.Finding("card", "block", "no <driver>", "install it", "", "confirmed")
    checkup = holdfast.Checkup("blocked", (found,), {"A": "1"}, machine)
    assert repr(checkup) == "<holdfast.Checkup: blocked, 1 finding>"
    told = str(checkup).splitlines()
    assert told == ["block card: no <driver> -> install it", "env: A=1", "blocked: a run would fail; fix what is marked block"]
    assert "no &lt;driver&gt;" in checkup._repr_html_() and "a wall" not in checkup._repr_html_()


def test_the_time_left_of_steps_is_not_shown_beside_a_run_that_evaluates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.api import notebook

    found = SimpleNamespace(steps=9, step=9, last_step={"loss": 0.5}, doing="evaluating", state="running")
    told = {"seconds_left": {"likely": 0.0, "low": 0.0, "high": 0.0}, "doing": "evaluating"}
    monkeypatch.setattr("holdfast.supervision.standing.look", lambda _: found)
    monkeypatch.setattr("holdfast.supervision.runs.entry", lambda _: told)
    assert notebook._standing(RunFolder(tmp_path)) == "step 9/9  loss 0.5000  evaluating"
    told |= {"doing": "training", "seconds_left": {"likely": 5.0}}
    assert notebook._standing(RunFolder(tmp_path)) == "step 9/9  loss 0.5000  about 5 s left"
