"""`holdfast run -- COMMAND`: what becomes of somebody else's training when it dies, hangs, tears its checkpoint or cannot work at all."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conftest import events, holdfast, start, wait_until
from holdfast.base.files import write_json
from holdfast.base.identity import identify
from holdfast.cli.commands.run import _script_of, known
from holdfast.cli.main import main
from holdfast.processes.attempt import Attempt
from holdfast.report.summarise import Journals, of_progress, summarise
from holdfast.run.command import Command
from holdfast.run.folder import RunFolder
from holdfast.run.types import Ending
from holdfast.supervision.command.attempts import end
from holdfast.supervision.command.command_run import CommandRun
from holdfast.supervision.command.signs import Signs
from holdfast.supervision.command.told_of_running import ToldOfRunning, row_due
from holdfast.supervision.policy.next_move import next_move
from holdfast.supervision.supervise import View
from holdfast.terminal.echo import Echo

TRAINER = Path(__file__).parents[1] / "support" / "fake_trainer.py"


def run(place: Path, *options: object, words: list[str], code: int = 0) -> dict[str, Any]:
    """What `holdfast run --json` says of a command; it ends with `code`."""
    done = holdfast("run", "--run", place / "run", "--json", *options, "--", *words, cwd=place)
    assert done.returncode == code, done.stderr
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary | {"told": done.stderr}


def trainer(faults: str = "", *more: str) -> list[str]:
    return [sys.executable, str(TRAINER), "--output_dir", "out", "--faults", faults, *more]


def resumed(place: Path) -> list[str | None]:
    """What each start was told to go on from."""
    found: list[str | None] = []
    for line in (place / "calls.txt").read_text().splitlines():
        found.append(line.partition("--resume_from_checkpoint ")[2].partition(" --")[0] or None)
    return found


@pytest.mark.parametrize(
    ("script", "callback", "said"),
    [
        ("from transformers import Trainer\nTrainer().train()", False, "with --callback it goes on from its last step"),
        ("if True:\n    import trl\n    trl.SFTTrainer(model)", False, "with --callback it goes on from its last step"),
        ("from transformers import Trainer\nTrainer().train()", True, "told by the callback"),
        ("# from transformers import Trainer\nTrainer().train()", False, "--checkpoints DIR tells"),
        ("import transformers\nmodel.train()", False, "--checkpoints DIR tells"),
        ("from holdfast.guard import guard", False, "kept in memory by holdfast.guard"),
        (None, False, "--checkpoints DIR tells"),
    ],
)
def test_a_script_that_makes_a_trainer_is_told_of_the_callback(script: str | None, callback: bool, said: str, tmp_path: Path) -> None:
    if script is not None:
        (tmp_path / "mine.py").write_text(script)
    assert said in known(Command(("python", "mine.py"), str(tmp_path), callback=callback))


@pytest.mark.parametrize(
    ("faults", "went_on_from", "again", "aside"),
    [
        ("", [None], 0, []),
        ("kill:5:1", [None, "out/checkpoint-4"], 1, []),
        pytest.param("raise:1:1,raise:5:2", [None, None, "out/checkpoint-4"], 2, [], marks=pytest.mark.long),
        ("torn:4:1", [None, "out/checkpoint-2"], 2, ["set-aside-checkpoint-4"]),
        pytest.param("nan:4:1", [None, "out/checkpoint-2"], 2, ["set-aside-checkpoint-4"], marks=pytest.mark.long),
        pytest.param("stateless:4:1", [None, "out/checkpoint-2"], 2, ["set-aside-checkpoint-4"], marks=pytest.mark.long),
        ("midsave:5:1", [None, "out/checkpoint-4"], 1, ["set-aside-checkpoint-6"]),
        pytest.param(
            "kill:7:1,torn:8:2", [None, "out/checkpoint-6", "out/checkpoint-6"], 3, ["set-aside-checkpoint-8"], marks=pytest.mark.long
        ),
    ],
)
def test_a_trainer_script_that_dies_goes_on_from_its_newest_whole_checkpoint(
    tmp_path: Path, faults: str, went_on_from: list[str | None], again: int, aside: list[str]
) -> None:
    summary = run(tmp_path, words=trainer(faults))
    assert resumed(tmp_path) == went_on_from
    assert summary["status"] == "finished" and summary["steps"] == 8
    assert summary["attempts"] == len(went_on_from) == len(summary["incidents"]) + 1
    assert summary["steps_computed_twice"] == again
    assert [Path(one).name for one in summary["checkpoints_set_aside"]] == aside
    assert all((tmp_path / "out" / name).exists() for name in aside), "renamed, not deleted"
    assert summary["launcher"] == "transformers-trainer" and summary["command"] == trainer(faults)
    assert (tmp_path / "out/checkpoint-8/trainer_state.json").exists()


@pytest.mark.parametrize(
    ("more", "went_on_from", "last"),
    [
        (("--epoch_steps", "3"), "out/checkpoint-6", 8),
        (("--epoch_steps", "4"), "out/checkpoint-8", 8),  # an epoch's last step: there is no epoch left
        (("--epoch_steps", "3", "--save_steps", "8"), "out/checkpoint-8", 9),  # there is no other
    ],
)
def test_a_trainer_that_died_after_its_last_step_computes_none_too_many(
    tmp_path: Path, more: tuple[str, ...], went_on_from: str, last: int
) -> None:
    summary = run(tmp_path, words=trainer("kill:8:1", *more))
    assert resumed(tmp_path) == [None, went_on_from]
    assert summary["status"] == "finished" and summary["steps"] == last
    assert ("computes one more" in summary["told"]) == ("--epoch_steps 3" in " ".join(more))


def test_a_trainer_in_a_shells_text_goes_on_where_it_saves(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    text = f"cd code; {shlex.quote(sys.executable)} {shlex.quote(str(TRAINER))} --output_dir out --faults kill:5:1 > log; exit $?"
    summary = run(tmp_path, words=["bash", "-c", text])
    assert resumed(tmp_path / "code") == [None, str(tmp_path / "code/out/checkpoint-4")]
    assert summary["incidents"][0]["cause"] == "unknown" and "(SIGKILL, in a shell's words)" in summary["incidents"][0]["ending"]
    assert summary["steps"] == 8 and "Ended well: 8 steps through 1 incident" in (tmp_path / "run/report.html").read_text()


def test_an_end_before_the_last_step_is_told_as_one(tmp_path: Path) -> None:
    """It stopped early, or a pipe hid how it died."""
    told = run(tmp_path, words=["sh", "-c", "for n in 1 2 3 4; do echo step $n/9; done"])["told"]
    assert "ended with exit code 0 after 4 of the 9 steps it spoke of" in told and "ended well" not in told


def test_a_script_without_an_option_to_go_on_begins_anew_and_that_is_remembered(tmp_path: Path) -> None:
    words = trainer("kill:5:1,kill:5:3", "--no_resume")
    summary = run(tmp_path, "--retries", 1, words=words, code=3)
    assert resumed(tmp_path) == [None, "out/checkpoint-4", None], "it is asked once"
    assert "it does not know --resume_from_checkpoint, which was added to it" in summary["told"]
    assert "attempt 3: started from its beginning; out/checkpoint-4 is there, and the command takes no option" in summary["told"]
    summary = run(tmp_path, words=words)
    assert resumed(tmp_path)[3:] == [None] and summary["status"] == "finished" and summary["steps"] == 8
    assert summary["steps_computed_twice"] == 10


def test_all_that_was_written_before_its_end_counts_as_progress(tmp_path: Path) -> None:
    summary = run(tmp_path, words=["sh", "-c", "for n in 1 2 3 4; do echo step $n/10; done; printf 'step 5/10'; exit 1"], code=3)
    assert (summary["steps"], summary["total_steps"], summary["attempts"]) == (5, 10, 3)


def test_weights_that_are_not_finite_are_no_good_end_whatever_the_exit_code(tmp_path: Path) -> None:
    summary = run(tmp_path, words=trainer("blind:8:1"))
    assert "ended with exit code 0, but its newest checkpoint is not whole: checkpoint-8: " in summary["told"]
    assert summary["status"] == "finished" and "checkpoint-8" in summary["doubt"] and (tmp_path / "out/checkpoint-8").exists()


def test_a_hang_is_ended_by_the_pace_that_was_learned(tmp_path: Path) -> None:
    summary = run(tmp_path, "--hang-s", 8, words=trainer("hang:5:1"))
    assert summary["incidents"][0]["cause"] == "hang" and resumed(tmp_path)[1] == "out/checkpoint-4"
    assert "attempt 1: gave no sign of life and was ended (hang): no step, no output and no sign of work for " in summary["told"]


@pytest.mark.long
def test_a_resume_flag_that_stands_there_is_replaced(tmp_path: Path) -> None:
    run(tmp_path, words=trainer("kill:4:1", "--save_steps", "3"))
    (tmp_path / "run").rename(tmp_path / "first")
    run(tmp_path, words=trainer("kill:7:3", "--resume_from_checkpoint", "out/checkpoint-3", "--save_steps", "3"))
    assert resumed(tmp_path)[-2:] == ["out/checkpoint-3", "out/checkpoint-6"]


def test_checkpoints_of_an_earlier_run_are_not_gone_on_from(tmp_path: Path) -> None:
    run(tmp_path, words=trainer("", "--max_steps", "6"))
    (tmp_path / "run").rename(tmp_path / "first")
    (tmp_path / "calls.txt").unlink()
    run(tmp_path, words=trainer("kill:3:1", "--save_steps", "2"))
    assert resumed(tmp_path) == [None, "out/checkpoint-2"], "not checkpoint-6, which another run has made"


def test_they_are_where_no_step_was_seen(tmp_path: Path) -> None:
    """Such a script says nothing of where it is; it dies at once if it is not told to go on."""
    run(tmp_path, words=trainer("torn:6:1", "--max_steps", "6"))
    (tmp_path / "run").rename(tmp_path / "first")
    silent = "import os, sys; '--resume_from_checkpoint' in sys.argv or os.kill(os.getpid(), 9); open('told', 'w').write(sys.argv[-1])"
    (tmp_path / "train.py").write_text(silent)
    done = run(tmp_path, words=[sys.executable, "train.py", "--output_dir", "out"])
    assert (tmp_path / "told").read_text() == "out/checkpoint-6"
    assert "checkpoint-6 was there before the first start" in done["told"]


@pytest.mark.parametrize(
    ("faults", "cause", "attempts"), [("raise:5:*", "gpu_kernel_fault", 3), pytest.param("exit:1:*", "unknown", 3, marks=pytest.mark.long)]
)
def test_what_fails_again_and_again_without_progress_is_given_up_with_a_post_mortem(
    tmp_path: Path, faults: str, cause: str, attempts: int
) -> None:
    summary = run(tmp_path, words=trainer(faults), code=3)
    assert summary["status"] == "gave_up" and summary["attempts"] == attempts
    assert summary["incidents"][-1]["cause"] == cause
    assert "2 attempts in a row ended so without progress" in summary["told"] and "its output: " in summary["told"]
    assert cause in (tmp_path / "run/post-mortem.md").read_text()
    (tmp_path / "run/report.html").unlink()
    assert holdfast("report", tmp_path / "run").returncode == 0
    page = (tmp_path / "run/report.html").read_text()
    assert "Given up after 5 steps" in page and cause in page if faults == "raise:5:*" else "Given up" in page
    found = json.loads(holdfast("diagnose", tmp_path / "run", "--json").stdout)
    assert found["cause"] == cause
    assert json.loads(holdfast("status", tmp_path / "run", "--json").stdout)["runs"][0]["state"] == "gave_up"


def test_a_failing_step_names_its_rows(tmp_path: Path) -> None:
    """As the callback notes them: a step that has begun, and was not done."""
    note = """(echo '{"done": 8}'; echo '{"step": 9, "samples": [3, 17]}') > $HOLDFAST_ATTEMPT/samples.jsonl; exit 9"""
    summary = run(tmp_path, "--retries", 0, words=["sh", "-c", note], code=3)
    assert (summary["incidents"][0]["step"], summary["incidents"][0]["samples"]) == (9, [3, 17])
    assert "in flight: step 9, of rows 3, 17 of its data set" in summary["told"]


def test_what_a_callback_tells_is_a_sign_of_life_without_a_step(tmp_path: Path) -> None:
    """An evaluation of an hour prints nothing; the callback beats at each of its batches."""
    signs, seen = Signs(Command(("true",), str(tmp_path)), tmp_path, 0.0), []
    for beat in (1.0, 1.0, 2.0):
        write_json(tmp_path / "pulse.json", {"step": 4, "time": beat})
        look = signs.look(None)
        seen.append((look.stepped, look.printed))
    assert seen == [(True, True), (False, False), (False, True)]


def test_with_leave_what_the_book_knows_is_tried_and_what_helped_is_kept(tmp_path: Path) -> None:
    summary = run(tmp_path, "--try", words=trainer("oom:5:*"))
    assert summary["status"] == "finished"
    assert [one["remedy"] for one in summary["remedies"]] == ["smaller-micro-batch"]
    last = (tmp_path / "calls.txt").read_text().splitlines()[-1]
    assert "--per_device_train_batch_size 4" in last and "--gradient_accumulation_steps 2" in last
    assert run_again_keeps(tmp_path)


def run_again_keeps(place: Path) -> bool:
    applied = events(place / "run", "remedy_applied")
    return [event["cause"] for event in applied] == ["gpu_out_of_memory"] and bool(events(place / "run", "remedy_helped"))


@pytest.mark.long
def test_without_leave_nothing_is_changed(tmp_path: Path) -> None:
    run(tmp_path, words=trainer("oom:5:*"), code=3)
    assert "--per_device_train_batch_size" not in (tmp_path / "calls.txt").read_text()


def test_a_command_that_others_ended_is_told_so(tmp_path: Path) -> None:
    """It was "killed by SIGTERM (launch_misconfigured); 1 attempts"."""
    summary = run(tmp_path, "--retries", 0, words=["sh", "-c", "kill -TERM $$"], code=3)
    assert "killed by SIGTERM; 1 attempt, and --retries 0 allows no more" in summary["told"]
    assert "cause: It was ended by signal 15 (SIGTERM) from outside. " in summary["told"] and "misconfigured" not in summary["told"]
    assert "1. Start the same command again" in summary["told"]


@pytest.mark.long
def test_retries_are_a_limit(tmp_path: Path) -> None:
    summary = run(tmp_path, "--retries", 1, words=trainer("kill:3:*,kill:5:*"), code=3)
    assert summary["attempts"] == 2 and "--retries 1 allows no more" in summary["told"]


def test_stopped_by_its_user_it_is_resumed_by_the_same_command(tmp_path: Path) -> None:
    words = trainer("", "--step_s", "0.3", "--max_steps", "6")
    child = start("run", "--run", tmp_path / "run", "--", *words, cwd=tmp_path)
    wait_until(lambda: (tmp_path / "out/checkpoint-2/trainer_state.json").exists())
    child.send_signal(signal.SIGTERM)
    assert ended(child) == 130
    assert json.loads((tmp_path / "run/summary.json").read_text())["status"] == "interrupted"
    assert run(tmp_path, words=words)["status"] == "finished"
    assert (resumed(tmp_path)[1] or "").startswith("out/checkpoint-")
    assert "is finished" in run(tmp_path, words=words)["told"], "a third time does not train again"


def test_a_command_whose_supervisor_was_killed_is_adopted(tmp_path: Path) -> None:
    words = trainer("", "--step_s", "0.3", "--max_steps", "30")
    child = start("run", "--run", tmp_path / "run", "--", *words, cwd=tmp_path)
    wait_until(lambda: (tmp_path / "out/checkpoint-2").exists())
    child.kill()
    ended(child)
    summary = run(tmp_path, words=words)
    assert "adopted the living attempt 1" in summary["told"] and summary["attempts"] == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # its process is nobody's to wait for here
@pytest.mark.parametrize("where", ["told.note", "start"])
def test_a_bug_of_ours_leaves_the_command_running_and_the_same_command_adopts_it(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A training of days was ended where an error of holdfast's own was met while it was watched over."""
    lines = ["import os, time", "for step in range(1, 7):", "    print(f'step {step}/6', flush=True)"]
    lines += ["    while step == 3 and not os.path.exists('go'):", "        time.sleep(0.05)"]
    (tmp_path / "train.py").write_text("\n".join(lines))
    words = [sys.executable, "train.py"]
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patched:
        fails = lambda *_, **__: {}["of ours"]  # noqa: E731
        if where == "start":
            patched.setattr(RunFolder, "event", fails)
        else:
            patched.setattr(ToldOfRunning, "note", fails)
        assert main(["run", "--run", "run", "--json", "--", *words]) == 70
    out, err = capsys.readouterr()
    last = err.splitlines()[-2:]
    assert "KeyError: 'of ours'" in err and "this is a bug in holdfast" in last[0] and "goes on, unwatched" in last[1]
    assert "the same holdfast run command adopts it" in json.loads(out)["hint"]
    pid = int(re.findall(r"trainer (\d+)", last[1])[0])
    assert Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[1] == words[1].encode(), "it lives"
    child = start("run", "--run", "run", "--", *words, cwd=tmp_path)
    told = tmp_path / "run/told.jsonl"
    wait_until(lambda: told.exists() and "adopted the living attempt 1" in told.read_text())
    (tmp_path / "go").touch()
    assert ended(child) == 0
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert (summary["status"], summary["attempts"], summary["steps"]) == ("finished", 1, 6)


def test_a_run_is_followed_and_stopped_from_another_terminal(tmp_path: Path) -> None:
    words = ["sh", "-c", "while true; do echo tick; sleep 0.2; done"]
    child = start("run", "--run", tmp_path / "run", "--", *words, cwd=tmp_path)
    wait_until(lambda: (tmp_path / "run/attempts/001/rank0.json").exists())
    looker = start("attach", tmp_path / "run", cwd=tmp_path)
    assert looker.stdout is not None and "tick\n" in iter(looker.stdout.readline, ""), "it shows what the command prints"
    child.kill()
    ended(child)
    stopped = holdfast("stop", tmp_path / "run", cwd=tmp_path)
    assert stopped.returncode == 0 and "interrupted" in stopped.stdout
    out, _ = looker.communicate(timeout=300)
    assert not left_by(tmp_path)
    assert looker.returncode == 130, out


@pytest.mark.parametrize(
    ("now", "last", "due"), [(1000.5, 1000.0, False), (1001.5, 1000.0, True), (100.0, 1000.0, True), (9e9, 1000.0, True), (10.0, 0.0, True)]
)
def test_a_clock_that_jumps_stops_no_account_of_steps(now: float, last: float, due: bool) -> None:
    assert row_due(now, last, began=0.0) == due


def test_a_clock_that_was_put_back_makes_no_negative_goodput() -> None:
    rows = [{"attempt": 1, "step": step, "time": 5000.0 - step, "total": 3, "source": "output", "loss": None} for step in (1, 3)]
    facts = {"launches": {1: {"started": 5000.0, "session": "a"}}, "endings": {1: {"ended": 1400.0}}}
    command = {"argv": ["x"], "launcher": None}
    journals = Journals(rows, [], [], **facts)
    told = summarise("finished", "", journals, of_progress(journals, command, 0))
    assert (told["wall_seconds"], told["goodput"], told["steps"]) == (None, None, 3)


def test_what_is_ended_is_what_the_attempt_has_started(tmp_path: Path) -> None:
    """Whatever rank0.json names; and in whatever session it is, though its shim is gone."""
    attempt = Attempt(1, tmp_path / "attempts/001", None)
    attempt.folder.mkdir(parents=True)
    (tmp_path / "trainer.lock").touch()
    environment = os.environ | {"HOLDFAST_ATTEMPT": str(attempt.folder)}
    bystander = subprocess.Popen(["sleep", "600"], start_new_session=True)
    orphan = subprocess.Popen(["sleep", "600"], start_new_session=True, env=environment)
    try:
        write_json(attempt.folder / "rank0.json", {"identity": identify(bystander.pid)})
        assert "was not started by this attempt" in end(attempt, tmp_path / "trainer.lock")
        assert bystander.poll() is None and orphan.poll() is None
        (attempt.folder / "rank0.json").unlink()
        assert end(attempt, tmp_path / "trainer.lock") == ""
        assert orphan.wait(20) == -signal.SIGKILL and bystander.poll() is None
    finally:
        bystander.kill()
        orphan.kill()
        bystander.wait()


def test_two_runs_on_one_folder_are_one_too_many(tmp_path: Path) -> None:
    child = start("run", "--run", tmp_path / "run", "--", "sleep", "60", cwd=tmp_path)
    wait_until(lambda: (tmp_path / "run/attempts/001/rank0.json").exists())
    told = run(tmp_path, words=["sleep", "60"], code=1)["told"]
    assert f"is held by process {child.pid}" in told
    child.send_signal(signal.SIGINT)
    assert ended(child) == 130


ONCE_NAMED = "while [ ! -e run/attempts/001/rank0.json ]; do sleep 0.01; done; "  # its shim writes nothing into the folder any more
SCRIPT = "import os, signal, sys, time\n"
FORKS = (
    SCRIPT + "if os.fork(): sys.exit(0)\nos.setsid()\nif os.fork(): sys.exit(0)\nprint(os.getpid(), file=open('pid', 'w'))\ntime.sleep(600)"
)


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["no-such-program", "x"], 2, "there is no command 'no-such-program'"),
        ([], 2, "no command is given"),
        (["--steps", "5"], 2, "--steps is not an option of holdfast run"),
        (["./plain.txt"], 2, "is not executable"),
        ([sys.executable, "-u", "nope.py"], 2, "nope.py: no such file; the current folder is"),
        ([sys.executable, "planing.py"], 2, "did you mean plain.py?"),
        (["./wrong"], 1, "it could not be started"),
        (["true"], 0, "no progress was seen, so whether it did its work is not known"),
        ([sys.executable, "-c", FORKS], 3, "running in the background, which was ended"),
        (["sh", "-c", ONCE_NAMED + "rm -rf run; echo on"], 0, "which went on: it has ended with exit code 0; nothing else is known of it"),
        (["sh", "-c", ONCE_NAMED + "rm -rf run; exit 5"], 3, "which went on: it has ended with exit code 5; nothing else is known of it"),
        (["sh", "-c", ONCE_NAMED + "rm -rf run/attempts; echo on"], 0, "the command goes on, and no step of it is seen any more"),
        ([sys.executable, "-c", "input('password: ')"], 3, "EOFError"),
        ([sys.executable, "-c", SCRIPT + "os.chdir('elsewhere'); sys.exit(9)"], 3, "ended with exit code 9"),
    ],
    ids=[
        "missing",
        "none",
        "option",
        "not-executable",
        "no-script",
        "near",
        "no-program",
        "no-progress",
        "background",
        "deletes",
        "deletes-and-fails",
        "deletes-attempts",
        "asks",
        "elsewhere",
    ],
)
def test_a_command_that_cannot_be_watched_over_ends_with_a_sentence(tmp_path: Path, words: list[str], code: int, says: str) -> None:
    (tmp_path / "plain.txt").write_text("echo hello")
    (tmp_path / "plain.py").touch()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "wrong").write_bytes(b"\x7fELF nonsense")
    (tmp_path / "wrong").chmod(0o755)
    told = run(tmp_path, words=words, code=code)["told"]
    assert says in told and "bug in holdfast" not in told
    wait_until(lambda: not left_by(tmp_path), 20)  # no orphan; its shim ends a moment later


@pytest.mark.parametrize("removes", ["rm -rf run/attempts", "rm -rf run/attempts/*", "rm run/attempts/*/wreck.json"])
def test_a_command_that_removes_its_attempts_is_given_up_as_any_other(tmp_path: Path, removes: str) -> None:
    """What counted its deaths was removed with them, so it was started again and again."""
    named = "while ! ls run/attempts/*/rank0.json; do sleep 0.01; done; "
    text = f"echo x >> starts; [ $(wc -l < starts) -gt 3 ] && exit 0; {named}{removes}; exit 5"
    summary = run(tmp_path, words=["sh", "-c", text], code=3)
    assert "2 attempts in a row ended so without progress" in summary["told"]
    assert (tmp_path / "starts").read_text() == "x\n" * 2 and summary["attempts"] == 2


def test_a_command_whose_folder_was_removed_is_shown_to_its_end_and_stopped_where_its_user_wants_that(tmp_path: Path) -> None:
    text = "echo begun; while [ -e run ]; do sleep 0.05; done; echo goes on; sleep 600"
    child = start("run", "--run", tmp_path / "run", "--", "sh", "-c", text, cwd=tmp_path)
    assert child.stdout and "begun\n" in iter(child.stdout.readline, "")
    shutil.rmtree(tmp_path / "run")
    assert "goes on\n" in iter(child.stdout.readline, "")
    child.send_signal(signal.SIGINT)
    assert ended(child) == 130
    wait_until(lambda: not left_by(tmp_path), 20)


@pytest.mark.parametrize(
    ("words", "script"),
    [
        ("python3.11 -u -X dev train.py --lr 1", "train.py"),
        ("python -m train", None),
        ("python -uc pass", None),
        ("python -", None),
        ("accelerate launch --config_file a.yaml t.py x.py", "t.py"),
        ("torchrun --nproc-per-node 2 --log-dir out.py t.py", "t.py"),
        ("torchrun -m t.py", None),
        ("./train.py a.py", None),
    ],
)
def test_the_script_of_a_command_is_known_by_its_interpreter_or_launcher(words: str, script: str | None) -> None:
    assert _script_of(words.split()) == script


def ended(child: subprocess.Popen[str]) -> int:
    """Its exit code, once it has ended."""
    child.communicate(timeout=300)
    return child.returncode


def left_by(place: Path) -> list[int]:
    """Processes whose current folder is this one or was deleted from it."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                where = str((entry / "cwd").readlink())
            except OSError:
                continue
            if where.startswith(str(place)):
                found.append(int(entry.name))
    return found


def test_options_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    for options, says in [
        (["--progress", "step ("], "missing ), unterminated subpattern"),
        (["--hang-s", "0"], "--hang-s 0: not a number of seconds above 0"),
        (["--retries", "-1"], "--retries -1: below 0"),
    ]:
        assert says in run(tmp_path, *options, words=["true"], code=2)["told"]


def test_another_commands_folder_is_left_alone(tmp_path: Path) -> None:
    run(tmp_path, words=["false"], code=3)
    assert "is the run of another command: false" in run(tmp_path, words=["true"], code=2)["told"]


def test_a_command_that_ignores_sigterm_is_killed_after_a_while(tmp_path: Path) -> None:
    script = SCRIPT + "signal.signal(signal.SIGTERM, signal.SIG_IGN); open('up', 'w'); time.sleep(600)"
    child = start("run", "--run", tmp_path / "run", "--stop-s", "0.5", "--", sys.executable, "-c", script, cwd=tmp_path)
    wait_until(lambda: (tmp_path / "up").exists())
    child.send_signal(signal.SIGTERM)
    assert ended(child) == 130
    assert not left_by(tmp_path)


def test_a_flood_without_a_line_end_is_cut_in_its_middle(tmp_path: Path) -> None:
    words = ["sh", "-c", "echo first; head -c 150000000 /dev/zero | tr '\\0' x; echo; echo last"]
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "run", "--run", str(tmp_path / "run"), "--", *words],
        cwd=tmp_path,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0 and done.stdout.endswith(b"last\n")
    log = (tmp_path / "run/attempts/001/output.log").read_bytes()
    assert log.startswith(b"first\n") and log.endswith(b"last\n") and len(log) < 100 << 20


def test_a_log_that_was_cut_in_its_middle_while_nobody_looked_is_shown_to_its_end(tmp_path: Path) -> None:
    log, shown = tmp_path / "output.log", tmp_path / "shown"
    log.write_bytes(b"x" * 1000)
    descriptor = os.open(shown, os.O_WRONLY | os.O_CREAT)
    echo = Echo(descriptor)
    echo.follow(log)
    echo.look()
    log.write_bytes(b"cut\nlast\n")
    echo.drain()
    os.close(descriptor)
    assert shown.read_bytes().endswith(b"last\n")


def test_output_is_shown_as_it_comes_and_progress_is_told_by_an_expression_or_a_file(tmp_path: Path) -> None:
    words = ["sh", "-c", "for i in 1 2 3; do echo at $i of 3; echo $i > at.txt; sleep 0.3; done"]
    done = holdfast("run", "--run", tmp_path / "a", "--progress", r"at (\d+) of (\d+)", "--", *words, cwd=tmp_path)
    assert done.stdout == "at 1 of 3\nat 2 of 3\nat 3 of 3\n"
    summary = json.loads((tmp_path / "a/summary.json").read_text())
    assert (summary["steps"], summary["total_steps"], summary["progress_from"]) == (3, 3, "output")
    holdfast("run", "--run", tmp_path / "b", "--progress", "at.txt", "--", *words, cwd=tmp_path)
    summary = json.loads((tmp_path / "b/summary.json").read_text())
    assert (summary["steps"], summary["progress_from"]) == (3, "file")


def test_a_start_without_an_option_that_was_refused_waits_for_nothing(tmp_path: Path) -> None:
    run, command = RunFolder(tmp_path / "run"), Command(("python", "train.py"), str(tmp_path))
    attempt = Attempt(1, run.attempt(1), None)
    attempt.folder.mkdir(parents=True)
    seconds = {}
    for option in ("", "--resume_from_checkpoint"):
        write_json(attempt.folder / "launch.json", {"argv": ["python"], "env": {}, "settings": {}, "added_option": option})
        (attempt.folder / "output.log").write_text("Error: No such option: --resume_from_checkpoint\n")
        user = CommandRun(run, command, View(print, print, lambda: 0))
        known = user.collect(attempt, Ending("error", 2, 1.0), earlier=False)
        user.apply(known, user.choose(known, next_move(known, None, stop=False)))
        seconds[option] = user.pauses.seconds
    assert seconds == {"": 0.5, "--resume_from_checkpoint": 0.0}


def test_a_command_line_that_its_own_parser_refuses_is_started_once(tmp_path: Path) -> None:
    text = "import argparse; p = argparse.ArgumentParser(prog='mine.py'); p.add_argument('--lr', type=float); p.parse_args()"
    summary = run(tmp_path, words=[sys.executable, "-c", text, "--lr", "fast"], code=3)
    assert summary["attempts"] == 1
    assert "argument --lr: invalid float value: 'fast'" in summary["told"] and "its --help shows which there are" in summary["told"]


def test_a_parsers_words_from_a_program_that_has_worked_are_no_refusal(tmp_path: Path) -> None:
    text = "import sys; print('x.py: error: unrecognized arguments: --lr', file=sys.stderr); print('step 1'); sys.exit(2)"
    assert run(tmp_path, words=[sys.executable, "-c", text], code=3)["attempts"] > 1


@pytest.mark.parametrize(("ending", "pause"), [("killed", 0.0), ("error", 0.0), ("at once", 0.5)])
def test_an_attempt_that_lived_longer_than_any_pause_is_started_again_at_once(ending: str, pause: float, tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    attempt = Attempt(1, run.attempt(1), None)
    attempt.folder.mkdir(parents=True)
    write_json(attempt.folder / "launch.json", {"argv": ["python"], "env": {}, "settings": {}})
    user = CommandRun(run, Command(("python", "train.py"), str(tmp_path)), View(print, print, lambda: 0))
    end = Ending("killed", -9, 30.0) if ending == "killed" else Ending("error", 1, 30.0 if ending == "error" else 1.0)
    known = user.collect(attempt, end, earlier=False)
    user.apply(known, user.choose(known, next_move(known, None, stop=False)))
    assert user.pauses.seconds == pause


def test_a_terminal_is_given_where_there_is_one(tmp_path: Path) -> None:
    import pty

    master, slave = pty.openpty()
    words = [sys.executable, "-c", "import os, sys; print('terminal', sys.stdout.isatty(), os.isatty(2))"]
    command = [sys.executable, "-m", "holdfast", "run", "--run", str(tmp_path / "run"), "--", *words]
    child = subprocess.Popen(command, cwd=tmp_path, stdout=slave, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    os.close(slave)
    assert child.wait(60) == 0
    assert b"terminal True True" in os.read(master, 1 << 16)
    os.close(master)
