"""`holdfast run -- COMMAND` says no more than it saw: steps, going on, a good end, an end behind the last step."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from conftest import holdfast, start, wait_until
from holdfast.base.errors import Stop
from holdfast.base.files import Json, read_json, write_json
from holdfast.processes.attempt import Attempt
from holdfast.report.seen_progress import begin_of, believed, computed_twice, each_step_told, useful_seconds
from holdfast.report.summarise import Journals, of_progress, summarise
from holdfast.report.words import short
from holdfast.run.command import Command
from holdfast.run.folder import RunFolder
from holdfast.run.types import Ending
from holdfast.supervision.command import standard_input
from holdfast.supervision.command.command_run import CommandRun
from holdfast.supervision.command.saved import _interval, nothing_saved, rerun, wrote_nothing
from holdfast.supervision.command.signs import Chatter, ProgressSigns, Signs, number_told
from holdfast.supervision.command.states import ResumePoint, States
from holdfast.supervision.command.told_at_end import after_words
from holdfast.supervision.foreign_checkpoints.newest import candidates, newest_whole
from holdfast.supervision.policy.moves import Done, StopRequested
from holdfast.supervision.supervise import View

TRAINER = Path(__file__).parents[1] / "support" / "fake_trainer.py"


def run(place: Path, *options: object, words: list[str], code: int = 0, **more: Any) -> dict[str, Any]:
    """What `holdfast run --json` says of a command; it ends with `code`."""
    done = holdfast("run", "--run", place / "run", "--json", *options, "--", *words, cwd=place, **more)
    assert done.returncode == code, done.stderr
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary | {"told": done.stderr}


def trainer(faults: str = "", *more: str) -> list[str]:
    return [sys.executable, str(TRAINER), "--output_dir", "out", "--faults", faults, *more]


@pytest.mark.parametrize("more", [(), ("--silent", "--step_s", "0.1")], ids=["told by a bar", "told by its checkpoints alone"])
def test_a_script_that_was_told_to_go_on_and_begins_anew_is_told_so(tmp_path: Path, more: tuple[str, ...]) -> None:
    summary = run(tmp_path, words=trainer("kill:7:1", "--deaf", *more))
    seen = 6 if more else 7
    assert summary["steps_computed_twice"] == seen and summary["incidents"][0]["lost_steps"] == seen
    assert "went on from" not in summary["incidents"][0]["evidence"] and "began anew" in summary["incidents"][0]["evidence"]
    assert "attempt 2 was told to go on from out/checkpoint-6 and began anew" in summary["doubt"] and summary["doubt"] in summary["told"]
    assert summary["incomplete"] is False and summary["steps"] == 8


def test_one_that_goes_on_is_told_so_once_a_step_was_seen(tmp_path: Path) -> None:
    summary = run(tmp_path, words=trainer("kill:7:1"))
    assert "went on from out/checkpoint-6, at least 1 committed step computed again" in summary["incidents"][0]["evidence"]
    assert summary["doubt"] is None and summary["incomplete"] is False and summary["steps_computed_twice"] == 1
    (tmp_path / "run").rename(tmp_path / "first")
    words = [
        "sh",
        "-c",
        "[ -e out2 ] && exit 0; mkdir out2; "
        f"{shlex.quote(sys.executable)} {shlex.quote(str(TRAINER))} --output_dir out2 --faults kill:5:1; exit 9",
    ]
    (tmp_path / "calls.txt").unlink()
    assert "where it began is not known" in run(tmp_path, words=words)["incidents"][0]["evidence"]


@pytest.mark.parametrize(
    "words",
    [trainer("leave:5:1", "--max_steps", "12"), ["sh", "-c", "for n in 1 2 3 4 5; do echo step $n/12; done | cat"]],
    ids=["script", "pipe"],
)
def test_an_exit_with_0_before_its_own_end_is_told_to_programs_too(tmp_path: Path, words: list[str]) -> None:
    summary = run(tmp_path, words=words)
    assert (summary["status"], summary["steps"], summary["total_steps"], summary["incomplete"]) == ("finished", 5, 12, True)
    assert "5 of the 12 steps" in summary["doubt"] and "5 of the 12 steps" in summary["told"]
    assert "But it ended after 5 of the 12 steps" in (tmp_path / "run/report.html").read_text()


def test_what_was_not_seen_is_doubted_where_the_terminal_doubts(tmp_path: Path) -> None:
    summary = run(tmp_path, words=["true"])
    assert summary["incomplete"] is None and summary["doubt"] in summary["told"] and "no progress was seen" in summary["doubt"]
    assert "ended well" not in summary["told"]


@pytest.mark.parametrize(
    ("lines", "epochs", "told"),
    [("Epoch [$n/3], Loss: 0.5", [3, 3], "epoch 3 of 3"), ("epoch $((n - 1)): train loss 0.5", [3, None], "epoch 3")],
    ids=["of-3", "from-0"],
)
def test_a_command_that_prints_epochs_alone_has_shown_progress(tmp_path: Path, lines: str, epochs: list[int | None], told: str) -> None:
    """It was told that no progress was seen, and its death was said to be at step 1, of which nobody knows."""
    ends = "[ -e was-here ] || { touch was-here; kill -9 $$; }"
    summary = run(tmp_path, words=["sh", "-c", f'n=1; echo "{lines}"; {ends}; for n in 1 2 3; do echo "{lines}"; done'])
    assert (summary["epochs"], summary["steps"], summary["doubt"]) == (epochs, None, None)
    assert f"ended well: {told}, no step was seen, 2 attempts" in summary["told"] and summary["incidents"][0]["step"] is None


def test_steps_that_are_counted_from_0_to_nobody_knows_where_are_a_lower_bound(tmp_path: Path) -> None:
    """`iter 0` to `iter 11` were told as 11 steps, where twelve were computed."""
    ends = "[ $n != 7 -o -e was-here ] || { touch was-here; kill -9 $$; }"
    summary = run(tmp_path, words=["sh", "-c", f"for n in 0 1 2 3 4 5 6 7 8 9 10 11; do echo iter $n: loss 0.5; {ends}; done"])
    assert (summary["steps"], summary["steps_exact"], summary["total_steps"]) == (11, False, None)
    assert "ended well: at least 11 steps, at least 7 computed twice" in summary["told"]


CAUGHT = 'Traceback (most recent call last):\\n  File "a.py", line 3, in f\\n    g()\\nKeyError: 7\\n'
STEPS = "for n in 1 2 3 4; do echo step $n/4; done"


@pytest.mark.parametrize(
    ("text", "doubt", "incomplete"),
    [
        ("echo Epoch 1/3", "it ended in epoch 1 of the 3 epochs it spoke of", True),
        (f"echo 'Epoch [2/3]'; {STEPS}", "it ended in epoch 2 of the 3 epochs it spoke of", True),
        (f"{STEPS.replace('/4', '/9')}; echo Early stopping at 4", "it says that it stopped early: Early stopping at 4", True),
        (f"{STEPS}; printf '{CAUGHT}'", "line 8 of its output: KeyError: 7", False),
        (f"{STEPS}; : --output_dir out", None, False),
    ],
    ids=["epochs alone", "epochs and steps", "stopped early", "a traceback", "nothing"],
)
def test_what_speaks_against_a_good_end_is_told_in_its_place(tmp_path: Path, text: str, doubt: str | None, incomplete: bool) -> None:
    summary = run(tmp_path, words=["sh", "-c", text])
    assert summary["status"] == "finished" and summary["incomplete"] is incomplete
    if doubt is None:
        assert summary["doubt"] is None and "ended well: 4 steps" in summary["told"] and "where it saves is not known" in summary["told"]
    else:
        assert doubt in summary["doubt"] and doubt in summary["told"] and "ended well" not in summary["told"]
        assert "Ended well" not in (tmp_path / "run/report.html").read_text()


@pytest.mark.parametrize(
    ("text", "well"),
    [
        ("echo step 1/4; printf '{0}'; echo step 2/4; echo step 3/4; echo step 4/4", True),
        ("for n in 0 1 2 3; do echo Loading $n; printf '{0}'; done; for n in 1 2 3 4 5; do echo epoch 1 step $n/5 loss 1.$n; done", True),
        ("for n in 1 2 3; do printf \"\\r $n/3 [00:0$n<00:00, 1.00it/s]\"; [ $n = 2 ] && printf '\\n{0}'; done; echo", True),
        ("echo step 1/4; echo step 2/4; echo step 3/4; echo step 4/4; printf '{0}'; echo done", False),
        ("echo step 1/9; echo step 2/9; echo step 3/9; printf '{0}'; echo step 4/9", False),
        ("echo training; printf '{0}'; echo trained", False),
    ],
    ids=["between steps", "before them", "in a bar", "behind them", "and no last step", "no steps"],
)
def test_a_traceback_that_the_training_outlived_is_told_and_takes_no_good_end_away(tmp_path: Path, text: str, well: bool) -> None:
    summary = run(tmp_path, words=["sh", "-c", text.format(CAUGHT)])
    assert ("ended well" in summary["told"]) is (summary["doubt"] is None) is well
    assert "KeyError: 7" in summary["told"] and "KeyError: 7" in (tmp_path / "run/report.html").read_text()
    assert ("and went on to its last step, line" in summary.get("lived_through", "")) is well


@pytest.mark.parametrize("written", ["", "log.txt", "final/weights.npz"])
def test_a_command_that_wrote_no_weights_where_it_saves_has_not_ended_well(tmp_path: Path, written: str) -> None:
    make = f"mkdir -p out/final; echo x > out/{written}; " if written else ""
    summary = run(tmp_path, "--checkpoints", "out", words=["sh", "-c", f"{make}{STEPS}"])
    nothing = "nothing was saved: no file of weights was written in out"
    assert (nothing in (summary["doubt"] or "")) == ("ended well" not in summary["told"]) == (not written.startswith("final"))
    assert bool(summary["nothing_saved"]) == bool(summary["doubt"])


@pytest.mark.parametrize(("losses", "doubted"), [("nan nan nan nan", True), ("2.1 nan nan nan", True), ("nan nan 2.0 1.9", False)])
def test_a_training_whose_last_losses_are_no_numbers_has_not_ended_well(tmp_path: Path, losses: str, doubted: bool) -> None:
    (tmp_path / "script.py").write_text(
        f"for step, loss in enumerate({losses.split()}, 1):\n    print(f'step {{step}}/4 loss {{loss}}', flush=True)\n"
    )
    summary = run(tmp_path, words=[sys.executable, "script.py"])
    assert ("the loss that it printed last is nan" in (summary["doubt"] or "")) == doubted
    assert ("ended well" in summary["told"]) != doubted


def test_rows_that_are_tokenized_are_no_steps(tmp_path: Path) -> None:
    """Neither in the summary nor while it goes on."""
    summary = run(tmp_path, words=trainer("", "--tokenize", "400"))
    assert (summary["steps"], summary["total_steps"], summary["doubt"]) == (8, 8, None)
    rows = [json.loads(line) for line in (tmp_path / "run/progress.jsonl").read_text().splitlines()]
    assert {row["total"] for row in rows} == {8}


@pytest.mark.parametrize(
    ("after", "options", "cause", "words"),
    [
        ("push", (), "network_unavailable", "ended with exit code 1"),
        ("hang", ("--hang-s", 8), "hang", "gave no sign of life"),
        ("exit", (), "unknown", "ended with exit code 7"),
    ],
)
def test_what_fails_behind_the_last_step_is_named_and_nothing_is_repeated(
    tmp_path: Path, after: str, options: tuple[object, ...], cause: str, words: str
) -> None:
    summary = run(tmp_path, *options, words=trainer("", "--after", after))
    assert (summary["status"], summary["attempts"], summary["steps"], summary["steps_computed_twice"]) == ("finished", 1, 8, 0)
    assert summary["after_training"]["result"] == "out/checkpoint-8" and summary["after_training"]["cause"] == cause
    assert "the training is complete, its result is out/checkpoint-8; behind its last step the command " + words in summary["doubt"]
    assert summary["doubt"] in summary["told"] and "ended well" not in summary["told"]
    page = (tmp_path / "run/report.html").read_text()
    assert "Trained to its end: 8 steps" in page and "Ended well" not in page
    assert "is finished (the training is complete" in run(tmp_path, *options, words=trainer("", "--after", after))["told"]


def test_a_failure_before_the_first_step_completes_no_earlier_training(tmp_path: Path) -> None:
    """A checkpoint of a last step that another run has made is no result of this one, even where it is to go on from it."""
    run(tmp_path, words=trainer(""))
    (tmp_path / "run").rename(tmp_path / "first")
    words = [sys.executable, "-c", "raise SystemExit(9)", "--output_dir", "out", "--resume_from_checkpoint", "out/checkpoint-8"]
    for command in (words, words[:-2]):
        (tmp_path / "script.py").write_text("raise SystemExit(9)")
        summary = run(tmp_path, words=[sys.executable, "script.py", *command[3:]], code=3)
        assert summary["status"] == "gave_up" and summary["after_training"] is None
        (tmp_path / "run").rename(tmp_path / f"run-{len(command)}")


def test_a_torn_last_checkpoint_completes_nothing(tmp_path: Path) -> None:
    summary = run(tmp_path, words=trainer("torn:8:1,push:8:3"), code=0)
    assert summary["attempts"] == 2 and [Path(one).name for one in summary["checkpoints_set_aside"]] == ["set-aside-checkpoint-8"]


@pytest.mark.parametrize(("faults", "state", "again"), [("kill:5:1", 4, 1), ("torn:4:1", 2, 2)])
def test_checkpoints_that_are_links_are_looked_at(tmp_path: Path, faults: str, state: int, again: int) -> None:
    summary = run(tmp_path, words=trainer(faults, "--scratch", "scratch"))
    assert f"went on from out/checkpoint-{state}," in summary["incidents"][0]["evidence"] and summary["steps_computed_twice"] == again
    assert (tmp_path / "scratch/checkpoint-4/adapter_model.safetensors").exists(), "the link is renamed, not what it leads to"


def test_a_link_to_nothing_is_told_and_a_second_name_is_none_of_its_own(tmp_path: Path) -> None:
    run(tmp_path, words=trainer("", "--max_steps", "4"))
    out = tmp_path / "out"
    (out / "checkpoint-6").symlink_to("/nowhere/checkpoint-6")
    (out / "checkpoint-8").symlink_to("checkpoint-2")
    assert [entry.name for _, entry in candidates(out, "trainer")] == ["checkpoint-6", "checkpoint-4", "checkpoint-2"]
    found = newest_whole(out, "trainer", {})
    assert found.path == out / "checkpoint-4" and "a link to /nowhere/checkpoint-6, which is not there" in found.aside[0][1]


SLOW = "(for n in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do echo step $n/16; sleep 0.5; done)"


@pytest.mark.parametrize(
    "text",
    [f"{SLOW} & exit 0", f"setsid sh -c '{SLOW}' & sleep 0.2", f"{SLOW.replace('/16', '')} & sleep 1"],
    ids=["a child", "a session of its own", "no total"],
)
def test_training_that_goes_to_the_background_is_followed_to_its_end(tmp_path: Path, text: str) -> None:
    summary = run(tmp_path, words=["sh", "-c", text])
    assert (summary["status"], summary["steps"], summary["attempts"], summary["doubt"]) == ("finished", 16, 1, None)
    assert "running in the background: it is followed to its end" in summary["told"]


def test_how_training_in_the_background_ends_is_how_the_command_ended(tmp_path: Path) -> None:
    text = "[ -e once ] && exit 0; touch once; (for n in 1 2 3 4 5 6 7 8 9; do echo step $n/9; sleep 0.5; done; exit 7) & exit 0"
    summary = run(tmp_path, words=["sh", "-c", text])
    assert summary["attempts"] == 2 and "exit code 7" in summary["told"]


@pytest.mark.parametrize(
    ("text", "attempts"), [("echo step 1/9 loss 2; exit 7", 2), ("echo no module; kill -9 $$", 2), ("echo step 9/9 loss 2; exit 7", 1)]
)
def test_training_that_falls_as_soon_as_it_is_in_the_background_is_no_good_end(text: str, attempts: int, tmp_path: Path) -> None:
    """It was told as ended well: nobody looked at what had gone within three seconds."""
    words = f"[ -e once ] && {{ echo step 9/9 loss 2; exit 0; }}; touch once; setsid sh -c 'sleep 0.5; {text}' & exit 0"
    summary = run(tmp_path, words=["sh", "-c", words])
    assert (summary["attempts"], summary["status"], summary["steps"]) == (attempts, "finished", 9)
    assert attempts == 1 or "exit code 7" in summary["told"] or "killed by SIGKILL" in summary["told"]


def test_training_in_the_background_is_stopped_as_its_user_wants(tmp_path: Path) -> None:
    child = start("run", "--run", tmp_path / "run", "--", "sh", "-c", f"{SLOW.replace('0.5', '1')} & exit 0", cwd=tmp_path)
    wait_until(lambda: "followed" in (read_json(tmp_path / "run/attempts/001/rank0.json") or {}))
    child.send_signal(signal.SIGINT)
    child.communicate()
    assert child.returncode == 130
    assert (read_json(tmp_path / "run/summary.json") or {})["status"] == "interrupted"


def test_training_that_goes_to_the_background_without_a_word_is_refused_and_not_finished(tmp_path: Path) -> None:
    summary = run(tmp_path, words=["sh", "-c", f"nohup sh -c '{SLOW}' > log & exit 0"], code=3)
    assert summary["status"] == "gave_up" and "running in the background, which was ended" in summary["reason"]
    assert "start it in the foreground" in summary["told"] and summary["attempts"] == 1


def test_what_goes_on_printing_behind_a_whole_training_is_not_followed_for_ever(tmp_path: Path) -> None:
    text = "while true; do echo in use; sleep 1; done & for n in 1 2 3 4; do echo step $n/4; done"
    summary = run(tmp_path, words=["sh", "-c", text])
    assert (summary["status"], summary["steps"]) == ("finished", 4) and "left running in the background, and was ended" in summary["doubt"]


def test_a_helper_that_is_left_behind_a_whole_training_takes_nothing_from_it(tmp_path: Path) -> None:
    text = "sleep 60 & for n in 1 2 3 4; do echo step $n/4; done"
    summary = run(tmp_path, words=["sh", "-c", text])
    assert (summary["status"], summary["steps"], summary["doubt"]) == ("finished", 4, None)
    (tmp_path / "run").rename(tmp_path / "first")
    summary = run(tmp_path, words=["sh", "-c", "sleep 60 & for n in 1 2 3 4; do echo step $n; done"])
    assert summary["status"] == "finished" and "'sleep 60' was left running in the background" in summary["doubt"]


COUNTS = "import os, sys; print('step', len(sys.stdin.read())); open('starts', 'a').write('x'); os.path.getsize('starts') > 1 or os.abort()"


GIVES = "import socket, sys; to = socket.socket(fileno=int(sys.argv[1])); socket.send_fds(to, [b'.'], [0]); sys.exit(to.recv(1)[0])"


def given(place: Path, text: str, words: list[str]) -> subprocess.CompletedProcess[str]:
    """What a shell makes of `text`, in which RUN stands for the run: what gives its standard input to a fork and has its exit code."""
    command = [sys.executable, "-m", "holdfast", "run", "--run", "run", "--", *words]
    if "<&-" in text:
        return subprocess.run(
            ["bash", "-c", text.replace("RUN", shlex.join(command))], cwd=place, capture_output=True, text=True, check=False
        )
    near, far = socket.socketpair()
    with near:
        with far:
            gives = shlex.join([sys.executable, "-ISc", GIVES, str(far.fileno())])
            shell = subprocess.Popen(["bash", "-c", text.replace("RUN", gives)], cwd=place, pass_fds=[far.fileno()])
        _, (given_input,), _, _ = socket.recv_fds(near, 1, 1)
        done = subprocess.run(command, stdin=given_input, cwd=place, capture_output=True, text=True, check=False)
        os.close(given_input)
        near.send(bytes([done.returncode]))
        done.returncode = shell.wait()
    return done


@pytest.mark.parametrize(
    ("text", "bytes_read"),
    [
        ("RUN < rows", 9),
        ("(read line; RUN) < rows", 5),
        ("RUN < empty", 0),
        ("cat rows | RUN", 9),
        ("(cat rows; sleep 1; cat rows) | RUN", 18),
    ],
)
def test_what_comes_by_standard_input_is_passed_on_to_each_start(tmp_path: Path, text: str, bytes_read: int) -> None:
    (tmp_path / "rows").write_text("one\nfive\n")
    (tmp_path / "empty").touch()
    if "read line" in text:  # bash has read the first line
        assert len("five\n") == bytes_read
    done = given(tmp_path, text, [sys.executable, "-c", COUNTS])
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f"step {bytes_read}\n") == 2, "the second start reads it all again"
    assert "|" not in text or (tmp_path / "run/stdin").stat().st_mode & 0o777 == 0o600


def test_what_came_by_a_pipe_is_given_again_where_the_run_is_taken_up(tmp_path: Path) -> None:
    """Also from where its folder lies by then; a finished run keeps what it had."""
    words = [sys.executable, "-c", "import os, sys; print('step', len(sys.stdin.read())); os.path.exists('well') or sys.exit(5)"]
    assert given(tmp_path, "printf four | RUN", ["sh", "-c", "cat | wc -c; test -e well"]).returncode == 3
    assert given(tmp_path, "rm -r run; printf four | RUN", words).returncode == 3
    (tmp_path / "well").touch()
    done = given(tmp_path, "mv run other; ln -s other run; RUN < /dev/null", words)
    assert done.returncode == 0 and "step 4\n" in done.stdout, done.stderr
    assert given(tmp_path, "printf more | RUN", words).returncode == 0 and (tmp_path / "run/stdin").read_text() == "four"


@pytest.mark.parametrize(
    ("text", "said"),
    [("yes | RUN", "is a pipe with more than 64.0 MiB in it"), ("exec < rows; rm rows; RUN", "a file that has no name any more")],
)
def test_an_input_that_cannot_be_read_again_is_refused_with_a_sentence(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "rows").write_text("one\nfive\n")
    done = given(tmp_path, text, ["true"])
    assert done.returncode == 2 and said in done.stderr and "< FILE" in done.stderr and not (tmp_path / "run").exists()


def test_a_pipe_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standard_input, "_PAUSE_MS", 10)
    kept, (read, write) = os.dup(0), os.pipe()
    os.dup2(read, 0)
    os.write(write, b"one")
    try:
        with pytest.raises(Stop, match="gave 3 bytes and did not end"):
            standard_input.given_input()
    finally:
        os.dup2(kept, 0)
        for end in (kept, read, write):
            os.close(end)


@pytest.mark.parametrize("text", ["sleep 3 | RUN", "true | RUN", "RUN <&-"])
def test_an_empty_input_keeps_nothing_from_running(tmp_path: Path, text: str) -> None:
    done = given(tmp_path, text, [sys.executable, "-c", "import sys; print('read', len(sys.stdin.read()))"])
    assert done.returncode == 0 and "read 0\n" in done.stdout


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--save_steps", "50"), "it saves every 50 steps (--save_steps); --save_steps below 6 keeps some"),
        (("--save_steps=50",), "it saves every 50 steps"),
        (("--save_steps", "50", "--no_resume"), "nothing was saved: no checkpoint in out"),
    ],
)
def test_a_command_that_saved_nothing_and_is_killed_again_is_told_so(tmp_path: Path, more: tuple[str, ...], says: str) -> None:
    summary = run(tmp_path, "--retries", 1, words=trainer("kill:5:1,kill:6:2", *more), code=3)
    assert says in summary["nothing_saved"] and "step 6 was the furthest" in summary["nothing_saved"]
    assert "attempt 2: started from its beginning: nothing was saved" in summary["told"]
    assert summary["nothing_saved"] in summary["told"] and "it begins anew, because nothing was saved" in summary["told"]
    assert "to resume" not in summary["told"] and "step 6 was the furthest" in (tmp_path / "run/report.html").read_text()
    answer = json.loads(holdfast("diagnose", tmp_path / "run", "--json").stdout)
    assert "Nothing was saved" in answer["explanation"]
    assert not any("goes on where it was" in remedy["what"] for remedy in answer["remedies"])


def test_checkpoints_that_were_removed_while_it_ran_are_not_told_as_never_saved(tmp_path: Path) -> None:
    place, command = RunFolder(tmp_path / "run"), Command(("true",), str(tmp_path), checkpoints="out")
    place.attempt(1).mkdir(parents=True)
    write_json(place.attempt(1) / "launch.json", {"started": 1.0})
    row = {"time": 1.0, "attempt": 1, "step": 7, "total": 9, "source": "output", "loss": None, "first": 1, "wrote": [2, 6]}
    place.append(place.progress_file, row)
    gone = f"what was saved is not there any more: the newest checkpoint seen in {short(tmp_path / 'out')} was of step 6"
    assert nothing_saved(place, command) == gone == wrote_nothing(place, command, 7)
    assert rerun(gone, command).endswith("it begins anew, because nothing of it is there any more")
    (tmp_path / "out/checkpoint-6").mkdir(parents=True)
    assert nothing_saved(place, command) == ""


def test_how_often_a_trainer_saves_is_said_as_its_default_where_no_argument_says_it() -> None:
    """A script may set it itself, and may have no such option."""
    trainer: Any = SimpleNamespace(argv=("python", "train.py"), launcher="transformers-trainer")
    told = _interval(trainer, 60)
    assert told == "; where a script says nothing else, transformers saves every 500 steps: save_steps below 60 keeps some"
    assert "keeps some" not in _interval(trainer, 600)


def test_where_it_saves_is_not_claimed_where_nobody_knows(tmp_path: Path) -> None:
    summary = run(tmp_path, "--retries", 1, words=["sh", "-c", "echo step 1/9; exit 7"], code=3)
    assert summary["nothing_saved"] is None and "to resume" not in summary["told"]
    assert "where it saves is not known (--checkpoints DIR tells), so it may begin anew" in summary["told"]
    (tmp_path / "run").rename(tmp_path / "first")
    summary = run(tmp_path, "--retries", 1, words=trainer("kill:5:1,raise:5:2"), code=3)
    assert summary["nothing_saved"] is None and "rerun the same command to resume" in summary["told"]


def test_what_others_are_told_of_a_node_that_was_lost_promises_nothing_of_ours(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(
        "Traceback (most recent call last):\nslurmstepd: error: *** JOB 812 ON gpu03 CANCELLED AT 2026-02-02T10:10:01 DUE TO NODE FAILURE, "
        "SEE SLURMCTLD LOG FOR DETAILS ***\n"
    )
    answer = json.loads(holdfast("diagnose", tmp_path / "log", "--json").stdout)
    assert answer["cause"] == "hardware_fault" and not any("holdfast goes on" in remedy["what"] for remedy in answer["remedies"])


def test_steps_computed_twice_are_a_lower_bound_where_nobody_told_each_of_them(tmp_path: Path) -> None:
    summary = run(tmp_path, words=trainer("kill:7:1", "--deaf", "--silent", "--step_s", "0.1"))
    assert summary["steps_computed_twice"] and summary["steps_computed_twice_exact"] is False
    assert f"at least {summary['steps_computed_twice']} computed twice" in summary["told"]
    assert re.search(r", at least [0-9]+ committed steps? computed again$", summary["incidents"][0]["evidence"])
    assert "at least" in (tmp_path / "run/report.html").read_text()
    rows = [{"attempt": 1, "step": 7, "source": "callback", "total": 9}, {"attempt": 2, "step": 9, "source": "output", "total": 9}]
    assert each_step_told(rows, {1: {}, 2: {}}) is True and each_step_told(rows[:1], {1: {}}) is None
    assert each_step_told([rows[0] | {"source": "output"}], {1: {}, 2: {}}) is False
    assert each_step_told([rows[0] | {"stages": True}], {1: {}, 2: {}}) is False, "of which stage a step was is not known"


FIRST = {"attempt": 1, "step": 9, "first": 1, "time": 1.0, "total": 12, "source": "output"}


@pytest.mark.parametrize(
    ("first", "begun", "says", "twice", "doubted"),
    [
        (7, 6, "went on from ck/last.pt, at least 3 committed steps computed again", 3, False),
        (1, 0, "was told to go on from ck/last.pt, and began anew, at least 9 committed steps computed again", 9, True),
        (10, 9, "went on from ck/last.pt, no step was seen to be computed again", 0, False),
        (None, None, "was to go on from ck/last.pt, and where it began is not known", 0, False),
    ],
)
def test_a_checkpoint_whose_name_tells_no_step_is_judged_by_the_first_step_that_follows(
    first: int | None, begun: int | None, says: str, twice: int, doubted: bool
) -> None:
    rows = [FIRST, *([FIRST | {"attempt": 2, "first": first, "step": 12, "time": 9.0}] if first else [])]
    launches = {1: {"started": 0.0}, 2: {"started": 5.0, "resumed_from": "ck/last.pt", "resumed_step": None}}
    report = {"attempt": 1, "step": 9, "committed_after": 9, "died": 4.0, "samples": [], "words": "killed by SIGKILL"}
    report |= {"diagnosis": {"cause": "unknown", "clues": []}, "decision": {"remedy": "resume"}}
    events = [{"event": "restored", "attempt": 2, "step": 0, "state": "ck/last.pt"}]
    told = Journals(rows, events, [report], launches, {1: {"ended": 4.0}, 2: {"ended": 9.0}})
    known = of_progress(told, {"argv": ["x"], "launcher": None}, 0)
    assert known["began"][2] == begun and known["steps_computed_twice"] == twice and bool(known["doubts"]) == doubted
    assert says in summarise("finished", None, told, known)["incidents"][0]["evidence"]


def test_where_it_began_is_not_told_of_a_command_that_prints_each_tenth_step() -> None:
    """Both attempts show 10 first: the second may have begun at 0 or at 5."""
    rows = [FIRST | {"first": 10, "step": 20}, FIRST | {"attempt": 2, "first": 10, "step": 30}]
    told = Journals(rows, [], [], {1: {}, 2: {"resumed_from": "ck/last.pt", "resumed_step": None}}, {1: {}, 2: {}})
    assert of_progress(told, {"argv": ["x"], "launcher": None}, 0)["began"][2] is None


def test_a_bar_to_fewer_steps_than_checkpoints_told_of_counts_something_else() -> None:
    """An evaluation's bar at the start of a script that prints nothing else: attempt 1 saved step 4, attempt 2 step 14."""
    rows = [{"time": 1.0, "attempt": 1, "step": 4, "total": None, "source": "checkpoint", "loss": None, "first": 4, "wrote": [4, 4]}]
    bar = {"time": 2.0, "step": 3, "total": 3, "source": "output", "loss": None, "first": 1, "wrote": None}
    rows += [bar | {"attempt": 2}, rows[0] | {"time": 3.0, "attempt": 2, "step": 14, "first": 14, "wrote": [8, 14]}, bar | {"attempt": 3}]
    assert [(row["attempt"], row["step"]) for row in believed(rows)] == [(1, 4), (2, 14)]
    assert believed([bar | {"attempt": 1}]), "it may be all there is"


def test_what_is_printed_behind_a_callback_that_stepped_aside_counts() -> None:
    """A command whose callback stepped aside in step 5 of 12 was told as one that ended there."""
    rows: list[Json] = [
        {"attempt": 1, "step": step, "source": source, "total": 12, "time": float(at), "first": 1}
        for at, (step, source) in enumerate([(400, "output"), (0, "callback"), (5, "callback"), (12, "output")])
    ]
    assert [row["step"] for row in believed(rows)] == [0, 5, 12]


def test_what_a_monitor_prints_beside_the_steps_is_no_sign_that_they_go_on(tmp_path: Path) -> None:
    signs, monitor = Signs(Command(("true",), str(tmp_path)), tmp_path, 1.0), "gpu memory in use 41 percent\n"

    def printed(text: str) -> bool:
        with (tmp_path / "output.log").open("a") as file:
            file.write(text)
        return signs.look(None).printed

    assert [printed(f"{monitor}step {n}/9 loss 2\n{monitor}") for n in range(1, 7)][:2] == [True, True]
    assert [printed(monitor.replace("41", str(n))) for n in (41, 17, 88)] == [False, False, False], "it hangs"
    assert printed("saving the model\n") and printed("Evaluating: 33%|##  | 1/3 [00:00<00:00, 9.10it/s]\r"), "what is new is a sign of life"
    assert printed("Evaluating: 66%|##  | 2/3 [00:00<00:00, 9.10it/s]\r") and not printed(monitor)
    assert all(Chatter().is_news(monitor, stepped=False) for _ in range(9)), "before any step all of it is"


def test_a_bar_that_a_better_source_outdid_tells_nothing_of_where_an_attempt_began(tmp_path: Path) -> None:
    """An evaluation's bar to 3 at the start of an attempt that goes on from step 3, and whose next steps its checkpoints tell."""
    signs = Signs(Command(("true",), str(tmp_path), checkpoints="out", callback=True), tmp_path, 1.0)
    (tmp_path / "output.log").write_text("".join(f"\r{33 * n:3d}%|##  | {n}/3 [00:00<00:00, 99.10it/s]" for n in (1, 2, 3)) + "\n")
    assert (signs.look(None).first, signs.look(None).source) == (1, "output")
    (tmp_path / "out/checkpoint-6").mkdir(parents=True)
    (tmp_path / "out/checkpoint-6/trainer_state.json").write_text('{"global_step": 6, "max_steps": 9}')
    seen = signs.last()
    assert (seen.step, seen.total, seen.source, seen.first) == (6, 9, "trainer_state.json", 6)


def test_what_follows_the_last_step_of_an_attempt_is_no_time_in_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of half a second, then an hour of silence: a hang, an evaluation, a queue at the end."""
    place = RunFolder(tmp_path)
    user = CommandRun(place, Command(("true",), str(tmp_path)), View(print, print, lambda: 0))
    attempt = Attempt(1, place.made(place.attempt(1)), None)
    signs = Signs(user.command, attempt.folder, 0.0)
    for at, step in [(100.0, 1), (100.5, 2), (101.0, 3), (101.5, 4), (102.0, 5), (3702.0, 5)]:
        monkeypatch.setattr("holdfast.machine.clock.now", lambda at=at: at)
        seen = ProgressSigns(step, 9, "output", at < 3000, False, False, 1, None, None)
        user.told.note(attempt, seen, signs, at_once=at > 3000)
    assert useful_seconds(list(place.progress()), {1: {"started": 99.0}}) == 2.0


@pytest.mark.parametrize(
    ("ending", "evidence", "says"),
    [
        ("killed by SIGKILL", "killed by SIGKILL", "the command was killed by SIGKILL"),
        ("killed by SIGTERM", None, "the command was killed by SIGTERM"),
        ("ended with exit code 1", "line 9: HTTPError", "the command ended with exit code 1: line 9: HTTPError"),
    ],
)
def test_how_a_command_ended_behind_its_last_step_is_said_once(ending: str, evidence: str | None, says: str) -> None:
    told = after_words({"result": "out/checkpoint-8", "ending": ending, "cause": "unknown", "evidence": evidence})
    assert told == f"the training is complete, its result is out/checkpoint-8; behind its last step {says}"


@pytest.mark.parametrize(
    ("step", "kind", "over", "done"),
    [(9, "finished", True, True), (8, "finished", True, False), (9, "killed", True, False), (9, "finished", False, False)],
)
def test_a_command_that_came_to_its_last_step_while_it_was_to_be_stopped_has_ended_well(
    step: int, kind: str, over: bool, done: bool, tmp_path: Path
) -> None:
    user = CommandRun(RunFolder(tmp_path), Command(("true",), str(tmp_path)), View(lambda _: None, print, lambda: 1))
    user.seen = ProgressSigns(step, 9, "output", False, False, False)
    known: Any = SimpleNamespace(over=over, failure_report=SimpleNamespace(ending=Ending(kind, 0, 3.0)))
    assert isinstance(user.choose(known, StopRequested()), Done if done else StopRequested)


@pytest.mark.parametrize(("elder", "says"), [(True, "the newest whole one is checkpoint-2"), (False, "there is no other")])
def test_which_checkpoint_there_is_beside_a_torn_one_is_told(tmp_path: Path, elder: bool, says: str) -> None:
    for step in (2, 4) if elder else (4,):
        folder = tmp_path / f"out/checkpoint-{step}"
        folder.mkdir(parents=True)
        (folder / "optimizer.pt").touch() if step == 4 else (folder / "trainer_state.json").write_text('{"global_step": 2}')
    told: list[str] = []
    states = States(
        RunFolder(tmp_path), Command(("true",), str(tmp_path), checkpoints=str(tmp_path / "out"), callback=True), None, told.append
    )
    assert (states.to_go_on_from() is not None) == elder
    assert told == [f"{tmp_path}/out/set-aside-checkpoint-4 is not whole: trainer_state.json is missing; renamed; {says}"]


EARLY = """
import os, re, signal, sys
from pathlib import Path
form, at, saves = sys.argv[1], int(sys.argv[2]), "save" in sys.argv
first, place = not Path("begun").exists(), Path("out")
Path("begun").touch()
place.mkdir(exist_ok=True)
start = max((int(re.search(r"\\d+", one.name)[0]) for one in place.iterdir()), default=0) if saves else 0
for step in range(start + 1, 7):
    print(form.format(step=step), flush=True)
    if saves and not step % 2:
        (place / f"step-{step}").mkdir()
        (place / f"step-{step}/weights.npz").write_bytes(b"weights")
    if first and step == at:
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(
    ("form", "at", "more", "lost"),
    [
        ("step {step}/6 loss 2.5", 2, (), 2),
        ("{{'step': {step}, 'loss': 0.25}}", 1, (), 1),
        ("step {step}", 2, (), 2),
        ("iteration {step} of 6", 1, (), 1),
        ("hello", 2, ("save",), 0),
    ],
    ids=["loss", "loss in a dict", "learned from the next attempt", "the first one", "checkpoints alone"],
)
def test_an_attempt_that_was_killed_before_its_third_step_has_shown_its_steps(
    form: str, at: int, more: tuple[str, ...], lost: int, tmp_path: Path
) -> None:
    (tmp_path / "early.py").write_text(EARLY)
    options = ("--checkpoints", "out") if more else ()
    summary = run(tmp_path, *options, words=[sys.executable, "early.py", form, str(at), *more])
    incident = summary["incidents"][0]
    assert (summary["steps"], summary["steps_computed_twice"], incident["lost_steps"]) == (6, lost, lost), incident
    assert (
        "no step was seen to be computed again" in incident["evidence"]
        if not lost
        else f"at least {lost} committed" in incident["evidence"]
    )


def test_numbers_of_another_length_than_the_steps_are_not_learned_from_a_later_attempt(tmp_path: Path) -> None:
    words = "[ -e begun ] && { for n in 1 2 3 4 5; do echo step $n/5; done; exit 0; }; touch begun; echo Step 2/3: tokenizing; exit 9"
    summary = run(tmp_path, words=["sh", "-c", words])
    assert (summary["steps"], summary["steps_computed_twice"], summary["incidents"][0]["lost_steps"]) == (5, 0, 0)


@pytest.mark.parametrize(
    ("again", "says"),
    [
        ("for n in 1 2 3 4; do echo step $n/6; sleep 0.2; done", "its newest start ended after 4 of the 6 steps it spoke of"),
        ("sleep 0", "no step of its newest start was seen"),
        ("for n in 1 2 3 4 5 6; do echo step $n/6; done", None),
    ],
)
def test_an_end_before_the_last_step_names_the_start_that_ended_there(tmp_path: Path, again: str, says: str | None) -> None:
    """It said that it ended after 6 of the 6 steps it spoke of, because another start had come that far."""
    words = f"[ -e begun ] && {{ {again}; exit 0; }}; touch begun; for n in 1 2 3 4 5 6; do echo step $n/6; done; exit 9"
    summary = run(tmp_path, words=["sh", "-c", words])
    assert "6 of the 6" not in summary["told"] + str(summary["doubt"])
    unknown = says is not None and says.startswith("no step")  # it may have had none left to do
    assert summary["incomplete"] is (None if unknown else says is not None) and (says is None or says in summary["told"])


def test_a_folder_of_checkpoints_that_another_run_saves_to_is_doubted(tmp_path: Path) -> None:
    command, said = Command(("true",), str(tmp_path), checkpoints="out"), list[str]()
    first, second = (States(RunFolder(tmp_path / name), command, None, said.append) for name in ("first", "second"))
    for states in (first, second):
        states.run.path.mkdir()
        states.claim()
    assert not said, "the folder is not there yet"
    (tmp_path / "out").mkdir()
    for step in (1, 2):
        first.reached(step)
        second.reached(step)
    assert len(said) == 1 and "another holdfast run saves to" in said[0]
    told = Journals([], list(second.run.events()), [], {1: {}}, {1: {}})
    assert "another holdfast run saved to" in of_progress(told, {"argv": ["x"], "launcher": None}, 0)["doubts"][0]
    assert not list(first.run.events())
    for states, started in ((first, 9e9), (first, 1.0), (second, 1.0)):  # one that began later shared nothing
        states.run.attempt(1).mkdir(parents=True, exist_ok=True)
        write_json(states.run.attempt(1) / "launch.json", {"started": started})
        states.note_sharing()
        assert len(list(states.run.events())) == (started == 1.0), "both are told, once"
    first.release()
    third = States(RunFolder(tmp_path / "third"), command, None, said.append)
    third.claim()
    assert len(said) == 1, "it is free again"
    third.release()


OLDER = """
import json, os, signal, sys
from pathlib import Path
told = [int(word.rpartition("-")[2]) for word in sys.argv if word.startswith("out/checkpoint-")]
start = max([0, *(step - 3 for step in told)])  # it trusts the checkpoint before alone
for step in range(start + 1, 13):
    print(f"step {step}/12 loss 2.5", flush=True)
    if step % 3 == 0:
        Path(f"out/checkpoint-{step}").mkdir(parents=True, exist_ok=True)
        Path(f"out/checkpoint-{step}/trainer_state.json").write_text(json.dumps({"global_step": step, "max_steps": 12, "epoch": 1}))
    if not told and step == 8:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_script_that_goes_on_from_an_older_checkpoint_is_not_said_to_begin_anew(tmp_path: Path) -> None:
    (tmp_path / "older.py").write_text(OLDER)
    summary = run(tmp_path, words=[sys.executable, "older.py", "--output_dir", "out"])
    assert "began anew" not in summary["doubt"] + summary["told"] + summary["incidents"][0]["evidence"]
    assert (
        "attempt 2 was told to go on from out/checkpoint-6 and went on from before it: its first step that was seen is 4"
        in summary["doubt"]
    )
    assert (summary["steps_computed_twice"], summary["incidents"][0]["lost_steps"]) == (5, 5), "steps 4 to 8"
    assert summary["incidents"][0]["evidence"].endswith("its first step that was seen is 4, at least 5 committed steps computed again")


@pytest.mark.parametrize(
    ("first", "second", "began"),
    [
        ({"first": 1}, {"first": 1}, 0),
        ({"first": 1}, {"first": 4}, 3),
        ({"first": 5}, {"first": 5}, 0),
        ({"first": 5, "wrote": [3, 6]}, {"first": None, "step": 3, "wrote": [3, 3]}, 0),
        ({"first": 1}, {"first": 7}, 6),
        ({"first": 7, "step": 7, "wrote": [2, 6]}, {"first": 6, "step": 6, "wrote": [6, 6]}, 5),
    ],
    ids=["anew", "an older one", "each fifth is shown", "by its checkpoints", "as told", "by a checkpoint that it writes again"],
)
def test_where_an_attempt_began_before_its_checkpoint_is_no_earlier_than_was_seen(first: Json, second: Json, began: int) -> None:
    rows = [FIRST | first, FIRST | {"attempt": 2, "step": 8} | second]
    launches = {1: {}, 2: {"resumed_from": "out/checkpoint-6", "resumed_step": 6}}
    assert begin_of(rows, launches, 2) == began


def test_an_attempt_that_came_to_a_second_stage_began_where_the_first_stage_showed_it() -> None:
    """Two Trainers in one script, the second of fewer steps: it was said to have begun anew, by the first step of that one."""
    rows = [FIRST | {"step": 8, "wrote": [4, 8]}]
    rows += [FIRST | {"attempt": 2, "step": step, "first": 9} for step in (9, 12)]
    rows += [FIRST | {"attempt": 2, "step": 8, "first": 1, "total": 8, "wrote": [4, 8]}]
    launches = {1: {}, 2: {"resumed_from": "out/checkpoint-8", "resumed_step": 8}}
    known = of_progress(Journals(rows, [], [], launches, {1: {}, 2: {}}), {"argv": ["x"], "launcher": None}, 0)
    assert (known["began"][2], known["doubts"], known["steps_computed_twice"]) == (8, [], 0)


def test_what_was_taken_for_steps_and_disbelieved_at_the_end_is_in_no_incident(tmp_path: Path) -> None:
    """Another process's bar, and one of micro-batches: 4,027 steps were said to be computed again where there were 12."""
    rows = [FIRST | {"step": 4027, "first": 4000, "total": 9000}, FIRST | {"attempt": 2, "step": 12, "first": 3, "wrote": [4, 12]}]
    report = {"attempt": 1, "step": 4027, "committed_before": 0, "committed_after": 4027, "died": 4.0, "samples": [], "words": "killed"}
    report |= {"diagnosis": {"cause": "unknown", "clues": []}, "decision": {"remedy": "resume"}}
    events = [{"event": "restored", "attempt": 2, "step": 2, "state": "out/checkpoint-2"}]
    launches = {1: {"started": 0.0}, 2: {"started": 5.0, "resumed_from": "out/checkpoint-2", "resumed_step": 2}}
    told = Journals(rows, events, [report], launches, {1: {"ended": 4.0}, 2: {"ended": 9.0}})
    (incident,) = summarise("finished", None, told, of_progress(told, {"argv": ["x"], "launcher": None}, 0))["incidents"]
    assert "4,027" not in incident["evidence"] and incident["step"] is None and not incident["lost_steps"], incident


def test_the_checkpoint_that_a_trainer_goes_on_from_tells_which_bar_counts_its_steps(tmp_path: Path) -> None:
    another = "\r 44%|##  | 4000/9000 [00:01<00:02, 9it/s]\r 44%|##  | 4001/9000 [00:01<00:02, 9it/s]\n"
    (tmp_path / "output.log").write_text(f"{another}\r 60%|##  | 7/12 [00:01<00:02, 9it/s]\r{another}")
    command = Command(("true",), str(tmp_path), "transformers-trainer", "out")
    assert Signs(command, tmp_path, 9e9).last().total == 9000, "nothing tells them apart"
    write_json(tmp_path / "launch.json", {"resumed_from": "out/checkpoint-6", "resumed_step": 6})
    (tmp_path / "out/checkpoint-6").mkdir(parents=True)
    for most, total in ((12, 12), (6, 9000)):  # one at its end says nothing of another stage
        (tmp_path / "out/checkpoint-6/trainer_state.json").write_text(json.dumps({"global_step": 6, "max_steps": most}))
        assert Signs(command, tmp_path, 9e9).last().total == total


@pytest.mark.parametrize(
    ("text", "resumed", "well", "step"),
    [
        ("step {n}/12 loss 2.5", 0, False, 12),
        ("step {n} of 12", 0, True, 12),
        ("step {n} of 12", 0, False, 11),  # it may have been in the midst of it
        ("step {n}/12 loss 2.5", 6, True, 12),
        ("step {n}/12 loss 2.5", 5, True, 11),
    ],
)
def test_a_count_from_0_is_at_its_end_in_an_attempt_that_went_on_too(
    text: str, resumed: int, well: bool, step: int, tmp_path: Path
) -> None:
    began = 6 if resumed else 0
    (tmp_path / "output.log").write_text("".join(text.format(n=n) + "\n" for n in range(began, 12)))
    write_json(tmp_path / "launch.json", {"resumed_from": "out/last.pt", "resumed_step": resumed})
    assert Signs(Command(("true",), str(tmp_path), checkpoints="out"), tmp_path, 1.0).last(well).step == step


@pytest.mark.parametrize(
    ("name", "more", "says"),
    [
        ("litgpt", ("finetune_lora", "m", "--out_dir", "out"), "--callback: LitGPT makes no Trainer of transformers'"),
        ("loop", (), "--callback was not at work in attempt 1: the command makes no Trainer of transformers'"),
    ],
)
def test_a_command_into_which_no_callback_can_be_put_is_told_so(name: str, more: tuple[str, ...], says: str, tmp_path: Path) -> None:
    """Its saves were read as a Trainer's: nothing was saved, it was said, or that it goes on from what nobody loads."""
    (tmp_path / "early.py").write_text(EARLY)
    (tmp_path / name).write_text(f"#!/bin/sh\nexec {sys.executable} early.py 'step {{step}}/6 loss 2' 3 save\n")
    (tmp_path / name).chmod(0o755)
    options = ["--callback", *([] if more else ["--checkpoints", "out"])]
    summary = run(tmp_path, *options, words=[f"./{name}", *more])
    assert summary["told"].count(says) == 1 and "going on from" not in summary["told"]
    assert summary["steps_computed_twice"] == 1 and summary["nothing_saved"] is None
    assert "attempt 2: started again; out/step-2 is there, and the command takes no option to go on from it\n" in summary["told"]


def test_rows_that_come_twice_are_doubted_when_an_attempt_goes_on_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, told = RunFolder(tmp_path / "run"), list[str]()
    run.path.mkdir()
    first = Attempt(1, run.made(run.attempt(1)), None)
    monkeypatch.setattr("holdfast.supervision.command.attempts.start", lambda *_: replace(first, number=2))
    user = CommandRun(run, Command(("true",), str(tmp_path), checkpoints="out", callback=True), View(print, told.append, lambda: 0))
    state = {"global_step": 8, "max_steps": 12, "epoch": 1.25, "num_train_epochs": sys.maxsize}
    (tmp_path / "out/checkpoint-8").mkdir(parents=True)
    (tmp_path / "out/checkpoint-8/trainer_state.json").write_text(json.dumps(state))
    point = ResumePoint("out/checkpoint-8", 8, tmp_path / "out/checkpoint-8")
    monkeypatch.setattr(user.states, "to_go_on_from", lambda: point)
    assert user.start() is not None
    known = of_progress(Journals([], list(run.events()), [], {1: {}, 2: {}}, {}), {"argv": ["x"], "launcher": None}, 0)
    assert "attempt 2: checkpoint-8 lies in pass 2" in known["doubts"][0] and sum("rows of it come twice" in text for text in told) == 1


FINDS = """
import json, os, signal
from pathlib import Path
file = Path("kept/last.pkl")
begin = int(file.read_text()) if file.exists() else 0
for step in range(begin + 1, 13):
    print(f"step {step}/12 loss {3 / step}", flush=True)
    if step % 4 == 0:
        file.parent.mkdir(exist_ok=True)
        file.write_text(str(step))
    if not begin and step == 10:
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("options", [(), ("--checkpoints", "kept")], ids=["an unknown folder", "a file of an unknown form"])
def test_a_script_that_finds_its_own_state_is_not_said_to_begin_anew(options: tuple[str, ...], tmp_path: Path) -> None:
    """It was told as started from the beginning, with 10 steps computed twice where there were 2, and nothing saved."""
    (tmp_path / "finds.py").write_text(FINDS)
    summary = run(tmp_path, *options, words=[sys.executable, "finds.py"])
    incident = summary["incidents"][0]
    assert (summary["steps"], summary["steps_computed_twice"], incident["lost_steps"]) == (12, 2, 2)
    assert incident["evidence"].endswith(
        "the next was told of no checkpoint, its first step that was seen is 9, at least 2 committed steps computed again"
    )
    assert "attempt 2: started again: " in summary["told"] and "beginning" not in summary["told"] and "nothing" not in summary["told"]
    assert summary["doubt"] is None and summary["nothing_saved"] is None


def test_a_checkpoint_that_nobody_can_tell_a_command_of_is_not_said_to_have_been_told(tmp_path: Path) -> None:
    """A folder of this day's outputs was taken for a checkpoint, and its script, which never heard of it, told as disobeying."""
    for name in ("out/2026-11-29", "run"):
        (tmp_path / name).mkdir(parents=True)
    user = CommandRun(
        RunFolder(tmp_path / "run"),
        Command(("sh", "-c", "exit 0"), str(tmp_path), checkpoints="out"),
        View(lambda _: None, print, lambda: 0),
    )
    for _ in range(2):
        attempt = user.start()
        assert attempt is not None
        user.watch(attempt)
    orders = read_json(attempt.folder / "launch.json") or {}
    assert (orders["resumed_from"], orders["resumed_step"]) == (None, None)
    assert [event["state"] for event in user.run.events() if event["event"] == "restored"] == ["the beginning"]


def test_a_step_that_a_bar_or_a_callback_shows_before_any_is_done_is_none_of_that_start(tmp_path: Path) -> None:
    (tmp_path / "output.log").write_text("\r 33%|###   | 4/12 [00:00<?, ?it/s]\r 42%|####  | 5/12 [00:01<00:07,  1.00it/s]\r")
    assert Signs(Command(("true",), str(tmp_path)), tmp_path, 1.0).last().first == 5
    signs = Signs(Command(("true",), str(tmp_path), callback=True), tmp_path, 1.0)
    for step, first in ((4, None), (6, 5)):
        write_json(tmp_path / "pulse.json", {"step": step, "steps": 12, "began": 4})
        assert signs.look(None).first == first
    rows = [FIRST | {"step": 6}, FIRST | {"attempt": 2, "first": None, "step": 4}, FIRST | {"attempt": 2, "first": 5, "step": 12}]
    assert [computed_twice(rows[:end], {1: {}, 2: {}}) for end in (2, 3)] == [0, 2]


@pytest.mark.parametrize(
    ("text", "step"),
    [
        ("12", 12),
        ('{"step": 11, "loss": 0.25}\n{"step": 12, "loss": 0.123456789012}\n', 12),
        ('{"step": 12, "loss": 0.25, "epoch": 1}\n{"step": 13, "lo', 12),
        ('{"iter": 0, "lr": 2e-05}\n', 0),
        ('{"done": 12, "loss": 2.5}', 12),
        ("12,0.5312,2e-05\n", 12),
        ("step 12.\n\n", 12),
        ("loss 0.25", None),
    ],
)
def test_the_step_of_a_progress_file_is_no_part_of_a_loss(text: str, step: int | None) -> None:
    """A log of JSON rows was read as 798,451,837,777 steps: the decimals of its last loss."""
    assert number_told(text) == step


def test_steps_that_the_attempt_after_the_next_computes_again_are_no_useful_time() -> None:
    """The newest checkpoint is damaged: the second attempt ends while it loads it, the third goes on from the one before."""

    def seen(attempt: int, first: int, last: int, at: float) -> list[Json]:
        return [
            {"time": at + step, "attempt": attempt, "step": step, "total": 20, "source": "callback", "first": first}
            for step in range(first, last + 1)
        ]

    first, third = seen(1, 1, 10, 0.0), seen(3, 6, 20, 100.0)
    launches: dict[int, Json] = {
        1: {"started": 0.0},
        2: {"started": 50.0, "resumed_from": "out/checkpoint-10", "resumed_step": 10},
        3: {"started": 100.0, "resumed_from": "out/checkpoint-5", "resumed_step": 5},
    }
    assert computed_twice([*first, *third], launches) == 5
    assert useful_seconds([*first, *third], launches) == 4.0 + 14.0, "from step 1 to 5, and from 6 to 20"
    silent = launches | {4: {"started": 200.0}}
    assert useful_seconds([*first, *third], silent) is None, "whether a start that showed no step began anew is not known"
    told = launches | {4: {"resumed_from": "out/checkpoint-15", "resumed_step": 15}}
    assert useful_seconds([*first, *third], told) == 4.0 + 9.0
