"""An error of the file system is a sentence with a way on, whatever verb meets it; never a bug of ours."""

from __future__ import annotations

import errno
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.base.errors import Stop
from holdfast.base.file_errors import at_place, file_error_in, of_the_file
from holdfast.base.files import replacing
from holdfast.base.identity import myself
from holdfast.base_model.folder import stored_tensors
from holdfast.cli.main import main
from holdfast.config.config import Config
from holdfast.data.files import stream
from holdfast.data.tokens.codec import load_codec
from holdfast.processes.tree import bearing
from holdfast.report.bundle_parts import listing, read_parts
from holdfast.report.run.report_parts import readings
from holdfast.run.folder import RunFolder
from holdfast.supervision import finish
from holdfast.supervision.command import attempts as command_attempts
from holdfast.supervision.command import command_run
from holdfast.supervision.remote.state import Sender
from holdfast.supervision.remote.targets import SharedFolder
from holdfast.supervision.standing import look
from holdfast.terminal.run_view import Terminal

edge = importlib.import_module("holdfast.cli.main")  # the package gives the function this name

KINDS = ("ENOSPC", "EDQUOT", "EFBIG", "EROFS", "EIO", "EACCES", "EPERM", "ENAMETOOLONG", "ENOENT", "EMFILE", "ESTALE", "ELOOP")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["/some/file", None])
def test_an_error_of_the_file_system_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kind: str, name: Any
) -> None:
    number = getattr(errno, kind)

    def fail(_: Any) -> Any:
        raise OSError(number, os.strerror(number), name)

    parser = SimpleNamespace(parse_args=lambda argv: SimpleNamespace(json=False, verb_module=SimpleNamespace(run=fail)))
    monkeypatch.setattr(edge, "build_parser", lambda: parser)
    assert edge.main([]) == 1
    told = capsys.readouterr().err
    assert "->" in told and "Traceback" not in told and (name is None or number in (errno.EMFILE,) or name in told)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MemoryError("Unable to allocate 128. MiB"), "128. MiB"),
        (MemoryError(), "memory ran out"),
        (RuntimeError("can't start new thread"), "ulimit -u"),
        (
            ImportError("No numpy.\nOriginal error was: libx.so: failed to map segment from shared object\n"),
            "ulimit -v",
        ),
        (FileNotFoundError(errno.ENOENT, "No such file or directory"), "the current folder was removed"),
    ],
    ids=["array", "memory", "thread", "library", "folder"],
)
def test_a_limit_of_the_system_is_no_bug(
    error: Exception, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`data check` under `ulimit -v 300000` ended with 70; in a folder that was removed, "a file is not there"."""

    def fail(_: Any) -> Any:
        raise error

    parser = SimpleNamespace(parse_args=lambda argv: SimpleNamespace(json=False, verb_module=SimpleNamespace(run=fail)))
    monkeypatch.setattr(edge, "build_parser", lambda: parser)
    if isinstance(error, OSError):
        gone = tmp_path / "gone"
        gone.mkdir()
        monkeypatch.chdir(gone)
        gone.rmdir()
    assert edge.main([]) == 1
    told = capsys.readouterr().err
    assert words in told and "->" in told and "Traceback" not in told


def test_a_command_that_its_disk_kept_from_starting_is_begun_by_the_same_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was told "rerun the same command: nothing is lost", which was refused: the folder was not empty, and no run folder."""
    run, real = tmp_path / "run", os.mkdir

    def fail(path: Any, *more: Any, **named: Any) -> None:
        if str(path).endswith("attempts"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        real(path, *more, **named)

    words = ["run", "--run", str(run), "--", sys.executable, "-c", "print('step 1/1')"]
    with monkeypatch.context() as broken:
        broken.setattr(os, "mkdir", fail)
        assert main(words) == 3
    assert main(words) == 0


def test_a_shim_whose_disk_fails_prints_a_sentence(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "holdfast.processes.shim", str(tmp_path / "none")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and "could not be begun" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("kind", ["EIO", "EACCES", "EMFILE", "ESTALE", "ENOENT", "EISDIR"])
def test_a_file_that_cannot_be_read_now_is_not_called_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Nobody begins a run again, or downloads a model again, for a disk that fails or a limit; only where no such file is there."""
    number = getattr(errno, kind)

    def fail(path: Path, *more: Any) -> Any:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr("holdfast.run.folder.read_small", fail)
    monkeypatch.setattr("holdfast.base_model.folder.open_regular", fail)
    for read, remedy in ((RunFolder(tmp_path).config, "begin again"), (lambda: stored_tensors(tmp_path / "w"), "download it again")):
        with pytest.raises((Stop, OSError)) as failed:
            read()
        assert (isinstance(failed.value, Stop) and remedy in str(failed.value)) == (kind in ("ENOENT", "EISDIR"))


@pytest.mark.parametrize("place", ["out.jsonl", "/some/folder/out.jsonl"])
def test_a_place_that_is_none_is_told_apart_from_a_disk_that_fails_and_from_another_file(place: str) -> None:
    """Only the first is helped by another place."""

    def told(number: int, name: str | None = None) -> str:
        return str(at_place(OSError(number, os.strerror(number), name), place, "cannot be written", "choose another --out"))

    assert f"{place} cannot be written" in told(errno.EISDIR) and "choose another --out" in told(errno.EACCES, str(Path(place).absolute()))
    assert "choose another --out" in told(errno.EACCES, str(Path(place).absolute().parent)), "its folder"
    for number, remedy in ((errno.EIO, "dmesg"), (errno.EMFILE, "ulimit -n"), (errno.EFBIG, "ulimit -f"), (errno.ENOSPC, "make room")):
        assert remedy in told(number) and "another" not in told(number)
    other = told(errno.EACCES, "/other/rows.jsonl")
    assert "/other/rows.jsonl may not be read" in other and place not in other
    assert "holds 5 bytes" in str(at_place(OSError(errno.EFBIG, "holds 5 bytes, 4 are read", place), place, "cannot be read", "")), (
        "a limit of ours"
    )


def test_an_error_of_the_system_told_by_a_library_is_one() -> None:
    """tokenizers and safetensors, in Rust, raise errors of their own; pyarrow and gzip an OSError, with and without a number."""
    assert isinstance(of_the_file(ValueError("no such variant")), ValueError)
    assert isinstance(of_the_file(Exception("No such file (os error 2)")), Exception)
    assert of_the_file(OSError("Not a gzipped file")).errno is None
    with pytest.raises(OSError, match="tokenizer") as failed:
        of_the_file(Exception("Input/output error (os error 5)"), "tokenizer.json")
    assert failed.value.errno == errno.EIO
    with pytest.raises(OSError, match="parquet"):
        of_the_file(OSError(errno.EIO, "Error reading bytes from file"), "rows.parquet")


def test_a_file_that_safetensors_calls_missing_and_that_is_there_is_not_called_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has these words for every error by which a file cannot be opened: too many open files, a disk that fails."""
    file = tmp_path / "model.safetensors"
    printed = f"Traceback (most recent call last):\nFileNotFoundError: No such file or directory: {file}"
    assert file_error_in(printed) is None, "it is true"
    file.touch()
    told = str(file_error_in(printed))
    assert str(file) in told and "dmesg" in told and "ulimit -n" in told and "No such file" not in told

    def fail(path: Path, *more: Any) -> Any:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    with monkeypatch.context() as broken:
        broken.setattr(Path, "open", fail)
        assert "fails to read" in str(file_error_in(printed))


def test_what_could_not_be_written_is_named_by_its_own_name(tmp_path: Path) -> None:
    with pytest.raises(OSError) as failed, replacing(tmp_path / "none" / "out.jsonl"):
        pass
    assert failed.value.filename == str(tmp_path / "none" / "out.jsonl")


class _Failing:
    """A stream whose disk fails after some bytes."""

    def __init__(self, parts: list[bytes]) -> None:
        self.parts = parts

    def read1(self, size: int) -> bytes:
        if not self.parts:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return self.parts.pop(0)


def test_rows_behind_a_disk_that_fails_are_not_taken_for_missing(
    assets: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`data clean` wrote the rows before it and ended with 0; `data check --json` said nothing on standard error."""
    monkeypatch.setattr(stream, "_decompressed", lambda handle, compression: _Failing([assets.rows.read_bytes()[:3000]]))
    out = tmp_path / "clean.jsonl"
    for words in (["check", assets.rows, "--json"], ["clean", assets.rows, "--out", out, "--json"]):
        assert main(["data", *map(str, words)]) == 1
        told = capsys.readouterr()
        assert json.loads(told.out)["status"] == "refused"
        assert "rows.jsonl fails to read" in told.err and "dmesg" in told.err
    assert not list(tmp_path.iterdir()), "nothing is written, and no temporary file left"


def test_a_tokenizer_that_cannot_be_read_now_is_not_called_damaged(assets: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(file: str) -> Any:
        raise Exception("Too many open files (os error 24)")

    monkeypatch.setattr("holdfast.data.tokens.codec.Tokenizer", SimpleNamespace(from_file=fail))
    with pytest.raises(OSError, match="Too many open files") as failed:
        load_codec(assets.model)
    assert failed.value.errno == errno.EMFILE


def test_a_newest_checkpoint_that_cannot_be_read_now_is_not_passed_over_for_an_older_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`move` said "sent the state after step 4" of a run whose last step is 6, and ended with 0."""
    run = RunFolder(tmp_path / "run")
    for step in (4, 6):
        folder = run.checkpoints / f"step-{step:08d}"
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text(json.dumps({"run": "a", "files": {"state": {"sha256": "0"}}}))
    (run.path / "run.json").write_text(json.dumps({"id": "a"}))
    sender = Sender(run, SharedFolder(tmp_path / "away"))
    assert sender.send() is None, "what is not there is passed over"

    def fail(path: Path) -> str:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    monkeypatch.setattr(sender, "_hash", fail)
    with pytest.raises(OSError, match="state"):
        sender.send()


def test_a_report_without_its_readings_is_none_where_they_cannot_be_read_and_one_where_they_are_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunFolder(tmp_path)
    run.readings_file.write_text('{"time": 1, "gpus": [], "step": 1, "cpu": "?"}\n')
    assert set(readings(run)) == {"charts", "rows", "signs"}

    def fail(file: Path) -> Any:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(file))

    monkeypatch.setattr("holdfast.report.run.report_parts.kept", fail)
    with pytest.raises(OSError, match="readings"):
        readings(run)


def test_a_finished_run_whose_summary_or_rows_cannot_be_read_now_is_not_called_dead_at_step_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunFolder(tmp_path)
    (run.checkpoints / "step-00000006").mkdir(parents=True)
    for kind in ("attempt_started", "finished"):
        run.event(kind)
    run.summary_file.write_text('{"status": "finished"}')
    run.steps_file.write_text('{"step": 6}\n')

    def fail(path: Path, *more: Any) -> Any:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    assert (look(run).state, look(run).step) == ("finished", 6)
    monkeypatch.setattr("holdfast.supervision.standing.read_json", fail)
    monkeypatch.setattr("holdfast.run.folder.last_line", fail)
    seen = look(run)
    assert (seen.state, seen.step) == ("finished", 6)
    assert "summary.json cannot be read: Input/output error" in seen.problems
    assert "steps.jsonl cannot be read: Input/output error" in seen.problems
    run.event("attempt_started")
    assert look(run).state == "dead", "it went on since"


def test_a_run_whose_attempts_or_end_cannot_be_read_now_is_not_called_dead_or_without_attempts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`status` said 0 attempts; `diagnose` "nothing is known of its loss", or that all processes had ended at once."""
    run = RunFolder(tmp_path / "run")
    run.attempt(1).mkdir(parents=True)
    run.steps_file.write_text('{"step": 6}\n')
    run.config_file.write_text("")
    run.event("attempt_started")
    run.event("finished")
    run.summary_file.write_text('{"status": "finished", "steps": 6, "loss": {"first": 5.0, "last": 4.0}}')

    def fail(path: Any, *more: Any) -> Any:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    with monkeypatch.context() as broken:
        broken.setattr(RunFolder, "attempts", fail)
        assert main(["status", str(run.path)]) == 0
        assert "? attempts" in (told := capsys.readouterr().out) and "! attempts cannot be read: Permission denied" in told
        assert main(["status", str(run.path), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["runs"][0]["attempts"] is None
    for unread in (["read_json"], ["read_json", "_told"]):
        with monkeypatch.context() as broken:
            for name in unread:
                broken.setattr(f"holdfast.supervision.standing.{name}", fail)
            assert main(["diagnose", str(run.path)]) == 0
        told = capsys.readouterr().out
        assert "summary.json cannot be read: Permission denied" in told and "reboot" not in told and "loss" not in told


def test_a_last_checkpoint_that_cannot_be_read_at_the_end_is_named_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With too many open files, a run at its end was told to check the disk alone."""
    run = RunFolder(tmp_path)
    run.attempt(1).mkdir(parents=True)
    run.steps_file.write_text('{"step": 6}\n')
    passed_over = [{"checkpoint": "step-00000006", "reason": "state cannot be read (Too many open files)"}]
    monkeypatch.setattr(finish, "newest_valid", lambda run: (None, passed_over))
    monkeypatch.setattr(finish, "keep_newest", lambda *_: None)
    config = Config(model="m", data={"files": ["rows.jsonl"]}, train={"steps": 6})  # type: ignore[arg-type]
    with pytest.raises(Stop, match="step-00000006: state cannot be read"):
        finish.finish(run, config, [], Terminal(to_stderr=False, quiet=True), lambda: False)


def test_a_bundle_names_the_folders_it_could_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that may not be read was left out without a word; one whose disk fails ended the command."""
    run = tmp_path / "run"
    for number in ("001", "002"):
        (run / "attempts" / number).mkdir(parents=True)
        (run / "attempts" / number / "launch.json").write_text("{}")
    real = os.scandir
    for number in (errno.EACCES, errno.EIO):

        def fail(path: Any, number: int = number) -> Any:
            if str(path).endswith("001"):
                raise OSError(number, os.strerror(number), str(path))
            return real(path)

        monkeypatch.setattr(os, "scandir", fail)
        parts = {part.name: part.note for part in read_parts(run, lambda log: ("", ""))}
        assert parts == {"attempts/001": f"cannot be read: {os.strerror(number)}", "attempts/002/launch.json": ""}
        assert f"attempts/001 cannot be read: {os.strerror(number)}" in listing(run)


@pytest.mark.parametrize(
    "words",
    [
        *(["status"], ["report"], ["bundle"], ["trial", "--step", "1"], ["stop"], ["verify"], ["attach"]),
        *(["export", "--to", "adapter", "--out", "x"], ["run", "--run"], ["diagnose"], ["data", "check"]),
    ],
    ids=lambda words: words[0],
)
def test_a_link_that_leads_to_itself_is_told_and_no_bug(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to("loop")
    named = [*words, str(loop), "--", "true"] if words[0] == "run" else [*words[:1], *words[1:2] * (words[0] == "data"), str(loop)]
    more = [] if words[0] in ("run", "data") else words[1:]
    assert main([*named, *more]) in (1, 2)
    told = capsys.readouterr().err
    assert str(loop) in told and "->" in told and "bug in holdfast" not in told


def test_without_proc_a_run_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """`train`, `run`, `stop` and `check` ended with 70 where /proc is not mounted."""
    monkeypatch.setattr("holdfast.base.identity.identify", lambda pid: None)
    with pytest.raises(Stop, match="/proc is not mounted") as told:
        myself()
    assert told.value.code == 1 and "mount -t proc" in told.value.hint


@pytest.mark.parametrize(("fails", "code"), [(1, 0), (1 << 30, 1)], ids=["once", "always"])
def test_a_command_whose_orders_cannot_be_read_is_watched_over_again_or_ended(
    fails: int, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With too many open files `run` ended with 1, and left the command running with nobody to watch over it."""
    script, real, left = tmp_path / "train.py", command_run.read_launch_spec, [fails]
    script.write_text(f"import time\nfor step in range(1, 6):\n    print(f'step {{step}}/5', flush=True)\ntime.sleep({1 + 600 * code})")

    def fail(folder: Path) -> Any:
        if left[0]:
            left[0] -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return real(folder)

    monkeypatch.setattr(command_run, "read_launch_spec", fail)
    monkeypatch.setattr(command_run, "_LONGEST_PAUSE_S", 1.0)
    assert edge.main(["run", "--run", str(tmp_path / "run"), "--json", "--", sys.executable, str(script)]) == code
    out, err = capsys.readouterr()
    summary = json.loads(out)
    assert not bearing(command_attempts.ATTEMPT, str(tmp_path / "run/attempts/001")), "the command lives"
    if code:
        assert "ulimit -n" in summary["hint"] and "cannot be watched over any more: it is ended" in err
    else:
        assert (summary["status"], summary["steps"], summary["attempts"]) == ("finished", 5, 1)
