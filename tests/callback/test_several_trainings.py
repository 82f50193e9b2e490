"""Several trainings in one process: none goes on from another's state, tells another's steps, or keeps another's SIGTERM."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from conftest import ROOT
from holdfast.base.files import write_json
from holdfast.callback.account import ATTEMPT
from holdfast.diagnosis.later_training import trains_later
from holdfast.processes.attempt import Attempt
from holdfast.report.seen_progress import computed_twice, each_step_told
from holdfast.run.command import Command
from holdfast.run.folder import RunFolder
from holdfast.run.types import Diagnosis, Ending
from holdfast.supervision.command import states as states_module
from holdfast.supervision.command.attempts import environment_of
from holdfast.supervision.command.command_run import CommandRun
from holdfast.supervision.command.good_end import cut_short
from holdfast.supervision.command.read_of_end import ReadOfEnd
from holdfast.supervision.command.signs import ProgressSigns, Signs
from holdfast.supervision.command.states import States
from holdfast.supervision.command.told_at_end import well
from holdfast.supervision.supervise import View

pytest.importorskip("transformers")
hf: Any = importlib.import_module("holdfast.callback.hf")


@pytest.fixture(autouse=True)
def own_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Be as a process that trains nothing yet, and leave SIGTERM as it was."""
    monkeypatch.setenv(ATTEMPT, str(RunFolder(tmp_path).made(tmp_path / "attempts/001")))
    monkeypatch.setattr(hf, "_first", {})
    monkeypatch.setattr(hf, "_trainings", hf.Counter())
    held = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, held)


class Training:
    """As much of a Trainer as its callbacks see."""

    def __init__(self, place: Path, steps: int = 6) -> None:
        self.callback = hf.HoldfastCallback()
        self.args = SimpleNamespace(output_dir=str(place), world_size=1, gradient_accumulation_steps=1, ignore_data_skip=False)
        self.state = SimpleNamespace(global_step=0, max_steps=steps, epoch=0.0)
        self.control = SimpleNamespace(should_log=False, should_evaluate=False, should_save=False)

    def tell(self, hook: str, **more: Any) -> None:
        getattr(self.callback, hook)(self.args, self.state, self.control, **more)

    def train(self, steps: int, ends: bool = True) -> None:
        self.tell("on_train_begin")
        for _ in range(steps):
            self.tell("on_step_begin")
            self.state.global_step += 1
            self.tell("on_step_end")
        if ends:
            self.tell("on_train_end")


def pulse(place: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((place / "attempts/001/pulse.json").read_text())
    return found


def test_another_trainer_that_only_evaluates_does_not_take_back_that_the_training_is_done(tmp_path: Path) -> None:
    Training(tmp_path / "out").train(6)
    Training(tmp_path / "out").tell("on_prediction_step")
    assert (pulse(tmp_path)["phase"], pulse(tmp_path)["step"]) == ("done", 6)
    assert cut_short(Attempt(1, tmp_path / "attempts/001", None), Ending("finished", 0, 9.0)) == ""


def test_a_script_that_only_evaluates_ends_well(tmp_path: Path) -> None:
    Training(tmp_path / "out").tell("on_prediction_step")
    assert cut_short(Attempt(1, tmp_path / "attempts/001", None), Ending("finished", 0, 9.0)) == ""


def test_each_training_stops_at_sigterm_and_none_keeps_it(tmp_path: Path) -> None:
    first, second = Training(tmp_path / "out"), Training(tmp_path / "out")
    first.train(6)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, "a process whose training is over can be ended"
    first.train(2, ends=False)  # breaks off, and its script goes on
    second.train(2, ends=False)
    os.kill(os.getpid(), signal.SIGTERM)
    second.tell("on_step_end")
    assert second.control.should_save
    with pytest.raises(SystemExit):
        second.tell("on_save")


def test_a_sigterm_handler_of_the_scripts_own_stays(tmp_path: Path) -> None:
    def own(*_: object) -> None: ...

    signal.signal(signal.SIGTERM, own)
    Training(tmp_path / "out").train(6)
    assert signal.getsignal(signal.SIGTERM) is own


@pytest.mark.parametrize(("names", "trainings"), [("a", 1), ("aa", 2), ("ab", 1), ("aba", 2), ("aab", 2)])
def test_the_pulse_tells_into_which_folders_was_trained_and_how_often(names: str, trainings: int, tmp_path: Path) -> None:
    for name in names:
        Training(tmp_path / name).train(2)
    told = pulse(tmp_path)
    assert (told["training"], told["trainings"]) == (len(names), trainings)
    assert told["places"] == [str(tmp_path / name) for name in dict.fromkeys(names)] and told["place"] == told["places"][0]


@pytest.mark.parametrize(("names", "stays"), [("a", True), ("ab", False)])
def test_what_is_in_memory_when_a_later_training_begins_is_not_its_state(
    names: str, stays: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_SNAPSHOT", str(tmp_path / "snapshot"))
    (tmp_path / "snapshot").touch()
    for name in names:
        Training(tmp_path / name).train(1)
    assert (tmp_path / "snapshot").exists() is stays, "of the first training it may be what a full disk left there"


def test_a_training_that_begins_again_with_smaller_batches_is_one(tmp_path: Path) -> None:
    training = Training(tmp_path / "out")
    training.train(2, ends=False)
    training.state.global_step = 0
    training.train(6)
    assert pulse(tmp_path)["trainings"] == 1


def test_an_error_of_the_callbacks_own_takes_back_what_it_told_of_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A finished command was started again: its pulse had stayed at its first step."""
    monkeypatch.setattr(hf.HoldfastCallback, "_look", lambda *_: 1 // 0)
    Training(tmp_path / "out").train(6)
    assert pulse(tmp_path)["phase"] == "training" and pulse(tmp_path)["aside"]
    seen = Signs(Command(("true",), str(tmp_path), callback=True), tmp_path / "attempts/001", 0.0).last()
    assert seen.source != "callback", "others tell its steps from here on"
    assert cut_short(Attempt(1, tmp_path / "attempts/001", None), Ending("finished", 0, 9.0)) == ""


def test_a_model_of_plain_torch_has_no_snapshots_and_everything_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_SNAPSHOT", str(tmp_path / "snapshot"))
    training, model = Training(tmp_path / "out"), torch.nn.Linear(2, 2)
    training.tell("on_train_begin", model=model)
    told = [json.loads(line)["event"] for line in (tmp_path / "attempts/001/inside.jsonl").read_text().splitlines()]
    assert told == ["no_snapshots"] and not training.callback.aside


def test_of_two_callbacks_of_one_trainer_the_one_that_its_script_added_is_at_work(tmp_path: Path) -> None:
    training = Training(tmp_path / "out")
    theirs, trainer = hf.HoldfastCallback(drops=3), SimpleNamespace()
    ours = hf.HoldfastCallback(trainer)
    trainer.callback_handler = SimpleNamespace(callbacks=[ours, theirs])
    for training.callback in (ours, theirs):
        training.tell("on_train_begin")
    assert (ours.aside, theirs.aside, theirs.trainer, pulse(tmp_path)["trainings"]) == (True, False, trainer, 1)


def test_a_disk_that_takes_nothing_puts_nobody_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The callback stepped aside for good, and the command, whose newest pulse told of an earlier step, was started again at its end."""
    training = Training(tmp_path / "out")
    training.train(5, ends=False)
    before = pulse(tmp_path)["step"]
    monkeypatch.setattr("holdfast.callback.account._write", lambda *_: (_ for _ in ()).throw(OSError(28, "no space left on device")))
    monkeypatch.setattr(training.callback.account, "_cost", 0.0)
    training.state.global_step = 6
    for hook in ("on_step_end", "on_train_end"):
        training.tell(hook)
    training.callback.account.ends(cause="x")
    assert not training.callback.aside and pulse(tmp_path)["step"] == before
    assert cut_short(Attempt(1, tmp_path / "attempts/001", None), Ending("finished", 0, 9.0)) == ""


@pytest.mark.parametrize(
    ("in_round", "iterations", "kept"),
    [(None, 1, [1, 2, 3, 4, 5, 6]), (2, 1, [1, 2, 3, 4, 5, 6]), (4, 1, [2, 4, 6]), (2, 3, [3, 6]), (8, 2, [])],
)
def test_a_state_is_kept_where_the_answers_that_were_sampled_once_are_used_up(
    in_round: int | None, iterations: int, kept: list[int], tmp_path: Path
) -> None:
    """GRPO with num_iterations or steps_per_generation: a state amid them goes on with other answers, and out of step with its rows."""
    training, found = Training(tmp_path / "out"), list[int]()
    training.args.steps_per_generation = in_round
    training.callback.trainer = SimpleNamespace(_step=0, num_iterations=iterations)
    training.tell("on_train_begin")
    ended = SimpleNamespace(end_step=lambda: found.append(training.state.global_step), keep=lambda *_: None, packer=None)
    training.callback.snapshots = ended
    for _ in range(6):
        training.tell("on_step_begin")
        training.callback.trainer._step += 2  # micro-batches
        training.state.global_step += 1
        training.tell("on_step_end")
    assert found == kept and not training.callback.aside


@pytest.fixture
def train() -> Iterator[Any]:
    """Trainer.train as `holdfast run --callback` wraps it, in a process of its own; returns what it was told to go on from."""
    spec = importlib.util.spec_from_file_location("site_of_a_process", ROOT / "src/holdfast/callback/site/sitecustomize.py")
    assert spec is not None and spec.loader is not None
    found, site = list(sys.meta_path), importlib.util.module_from_spec(spec)
    spec.loader.exec_module(site)

    class Trainer:
        def __init__(self, place: Path) -> None:
            self.args = SimpleNamespace(output_dir=str(place))

        def train(self, resume_from_checkpoint: Any = None, trial: Any = None) -> Any:
            return resume_from_checkpoint

    begin = Trainer.__init__
    site._wrap(Trainer)
    Trainer.__init__ = begin  # type: ignore[method-assign]
    yield lambda place, *told, **more: Trainer(place).train(*told, **more)
    sys.meta_path[:] = found


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "out/checkpoint-4"
    place.mkdir(parents=True)
    monkeypatch.setenv("HOLDFAST_RESUME", str(place))
    return place


def test_one_training_of_a_process_goes_on_from_the_checkpoint(tmp_path: Path, checkpoint: Path, train: Any) -> None:
    """Each fold of a cross-validation went on from the newest fold's checkpoint, and so from rows that it held out."""
    assert train(tmp_path / "other") is None
    assert [train(checkpoint.parent), train(checkpoint.parent)] == [str(checkpoint), None]


def test_each_stage_goes_on_from_its_own(tmp_path: Path, checkpoint: Path, train: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    later = tmp_path / "dpo/checkpoint-2"
    later.mkdir(parents=True)
    monkeypatch.setenv("HOLDFAST_RESUME", f"{checkpoint}\n{later}")
    assert [train(checkpoint.parent), train(later.parent), train(later.parent)] == [str(checkpoint), str(later), None]


@pytest.mark.parametrize("told", [{"trial": {"learning_rate": 0.1}}, {"trial": object()}])
def test_a_trial_of_a_search_begins_anew(told: dict[str, Any], checkpoint: Path, train: Any) -> None:
    assert train(checkpoint.parent, **told) is None


def test_a_folder_behind_a_link_is_known(tmp_path: Path, checkpoint: Path, train: Any) -> None:
    (tmp_path / "scratch").symlink_to(tmp_path)
    assert train(tmp_path / "scratch/out") == str(checkpoint)


def test_what_the_script_says_itself_counts_and_is_the_one(tmp_path: Path, checkpoint: Path, train: Any) -> None:
    assert [train(checkpoint.parent, "theirs"), train(checkpoint.parent)] == ["theirs", None]


def states_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **told: Any) -> tuple[States, list[Path]]:
    """Return the states of a run whose attempt ended with this pulse; and where what is in memory was made a checkpoint."""
    made: list[Path] = []
    monkeypatch.setattr(states_module, "make_checkpoint", lambda _python, _shared, place, *_: made.append(place) or "")
    monkeypatch.setattr(States, "_newest", lambda *_: None)
    run = RunFolder(tmp_path)
    write_json(tmp_path / "attempts/001/pulse.json", {"step": 3, "python": sys.executable, "place": str(tmp_path / "out")} | told)
    states = States(run, Command(("python", "t.py"), str(tmp_path), checkpoints="out", callback=True), None, print)
    states.snapshot = tmp_path / "snapshot"
    states.snapshot.touch()
    states.keep(Attempt(1, run.attempt(1), None))
    return states, made


@pytest.mark.parametrize(("places", "into"), [(None, "out"), (["out"], "out"), (["out", "dpo"], "dpo")])
def test_the_state_of_a_later_stage_becomes_a_checkpoint_of_its_own(
    places: list[str] | None, into: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A preference training's state became the newest checkpoint of the training before it, which went on from it."""
    told = {"places": [str(tmp_path / name) for name in places]} if places else {}
    states, made = states_of(tmp_path, monkeypatch, **told)
    assert (made, states.snapshot.exists()) == ([tmp_path / into], False)


def test_each_stage_is_given_its_own_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states, _ = states_of(tmp_path, monkeypatch, places=[str(tmp_path / name) for name in ("out", "dpo", "merge")])
    write_json(tmp_path / "attempts/001/launch.json", {"started": 1000.0})
    for at, name in [(900, "dpo/checkpoint-8"), (1100, "dpo/checkpoint-4"), (1100, "out/checkpoint-6")]:
        (tmp_path / name).mkdir(parents=True)
        write_json(tmp_path / name / "trainer_state.json", {"global_step": int(name[-1])})
        os.utime(tmp_path / name / "trainer_state.json", (at, at))
    assert states.of_later_trainings() == [tmp_path / "dpo/checkpoint-4"], "that of step 8 is of another run"
    found = environment_of(states.command, [tmp_path / "out/checkpoint-6", *states.of_later_trainings()], states.snapshot)
    assert found["HOLDFAST_RESUME"] == f"{tmp_path}/out/checkpoint-6\n{tmp_path}/dpo/checkpoint-4"


def test_a_command_that_trains_twice_into_one_folder_begins_anew_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states, made = states_of(tmp_path, monkeypatch, trainings=2)
    (tmp_path / "out/checkpoint-4").mkdir(parents=True)
    monkeypatch.setattr(States, "_newest", lambda *_: states_module.NewestCheckpoint(tmp_path / "out/checkpoint-4", 4))
    assert not made and states.to_go_on_from() is None
    write_json(states.run.made(tmp_path / "attempts/002") / "pulse.json", {"step": 1, "trainings": 1})
    assert states.to_go_on_from() is None, "nor after a start that came to its first training alone"
    user = CommandRun(states.run, states.command, View(print, print, lambda: 0))
    assert "trains more than once into one folder" in user._how("the beginning", None)


@pytest.mark.parametrize(("own", "learned"), [(False, "out/name"), (True, "out")])
def test_a_trainer_that_saves_elsewhere_than_its_argument_says_is_followed_there(
    own: bool, learned: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TrainingArguments(output_dir=f"{args.output_dir}/{name}"): its checkpoints were looked for one folder above."""
    states, _ = states_of(tmp_path, monkeypatch, place=str(tmp_path / "out/name"))
    (tmp_path / ("out/checkpoint-2" if own else "out/name/checkpoint-2")).mkdir(parents=True)
    command = states.learn(Attempt(1, tmp_path / "attempts/001", None), callback=True)
    assert command.place == tmp_path / learned


@pytest.mark.parametrize(("noted", "step", "samples"), [(9, 9, (3, 17)), (5, 8, ()), (8, 8, ())])
def test_rows_that_were_noted_of_an_earlier_step_are_not_those_in_flight(
    noted: int, step: int, samples: tuple[int, ...], tmp_path: Path
) -> None:
    """A disk that was full for a moment ended the notes; the step told of at the end was that one."""
    run, command = RunFolder(tmp_path), Command(("python", "t.py"), str(tmp_path), callback=True)
    (tmp_path / "attempts/001/samples.jsonl").write_text(json.dumps({"step": noted, "samples": [3, 17]}) + "\n")
    seen = ProgressSigns(8, 12, "callback", stepped=False, printed=False, worked=False)
    end = ReadOfEnd(run, command, None, States(run, command, None, print), seen, Attempt(1, run.attempt(1), None), Ending("error", 1, 3.0))
    report = end.wreck()
    assert (report.step, report.samples) == (step, samples)


@pytest.mark.parametrize(
    ("trainings", "says"), [(None, "ended well: 6 steps, 1"), (3, "ended well: 6 steps in the longest of its 3 trainings, 1")]
)
def test_the_steps_of_several_trainings_are_told_as_those_of_the_longest(trainings: int | None, says: str) -> None:
    summary = dict.fromkeys(("incomplete", "steps_dropped", "goodput", "after_training", "doubt", "steps_computed_twice"))
    more = {"trainings": trainings} if trainings else {}
    assert well(summary | {"steps": 6, "total_steps": 6, "attempts": 1} | more).startswith(says)


def test_the_result_of_a_command_of_several_stages_is_that_of_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it hung behind its last step, the checkpoint of its first stage was told as the result."""
    states, _ = states_of(tmp_path, monkeypatch, training=2, places=[str(tmp_path / "out"), str(tmp_path / "dpo")])
    write_json(tmp_path / "attempts/001/launch.json", {"started": 1000.0})
    monkeypatch.setattr(states_module, "newest_whole", lambda place, *_: states_module.NewestCheckpoint(place / "checkpoint-4", 4))
    for name in ("out", "dpo"):
        (tmp_path / name / "checkpoint-4").mkdir(parents=True)
        write_json(tmp_path / name / "checkpoint-4/trainer_state.json", {"global_step": 4, "max_steps": 4})
    seen = Signs(states.command, tmp_path / "attempts/001", 0.0).last()
    assert seen.has_stages
    found = states.complete(replace(seen, step=4, total=4))
    assert found is not None and found.path == tmp_path / "dpo/checkpoint-4" and found.name == str(found.path)


@pytest.mark.parametrize(("reached", "complete"), [(4, True), (3, False)])
def test_a_start_that_had_nothing_left_to_do_is_of_a_complete_training(tmp_path: Path, reached: int, complete: bool) -> None:
    """Killed behind its last step, and at each start from there on, it was started eight times more and given up."""
    run = RunFolder(tmp_path / "run")
    run.attempt(1).mkdir(parents=True)
    write_json(run.attempt(1) / "launch.json", {"started": 1.0})
    run.append(run.progress_file, {"attempt": 1, "step": reached, "total": 4, "source": "output", "time": 2.0}, durable=False)
    (tmp_path / "out/step-4").mkdir(parents=True)
    (tmp_path / "out/step-4/weights.npz").write_bytes(b"weights")
    states = States(run, Command(("true",), str(tmp_path), checkpoints="out"), None, print)
    found = states.complete(ProgressSigns(None, None, None, stepped=False, printed=False, worked=False))
    assert (found is not None and found.step == 4) == complete


def test_steps_of_a_later_stage_that_went_on_from_its_own_checkpoint_are_not_counted_as_computed_twice() -> None:
    rows = [{"attempt": at, "step": 7, "total": 8, "source": "callback", "first": 1, "time": 1.0, "stages": True} for at in (1, 2)]
    launches: dict[int, Any] = {1: {}, 2: {"resumed_step": 4, "resumed_from": "sft/checkpoint-4", "resumed_later": True}}
    assert (computed_twice(rows, launches), each_step_told(rows, launches)) == (0, False)


FUNCTIONS = """
def sft():
    SFTTrainer().train()
    save()  # 4
def dpo(name):
    trainer = make(name)
    trainer.train()  # 7
def again(trainer):
    while True:
        try:
            trainer.train()  # 11
            break
        except MemoryError:
            smaller()
"""


@pytest.mark.parametrize(
    ("script", "line", "later"),
    [
        ("sft()\nrows = load()\ndpo('a')", 17, True),
        ("sft()\ndpo('a')\npush()", 18, False),
        ("for fold in folds:\n    dpo(fold)\n    measure()", 18, True),
        ("if kind:\n    sft()\n    push()\nelse:\n    dpo('a')", 18, False),
        ("with place:\n    sft()\ntrainer.train()", 17, True),
        ("sft()\nmodel.train()\nself.model.train()", 16, False),
        ("again(trainer)\npush()", 11, False),
        ("def main():\n    sft()\n    return\n    dpo('a')\nmain()", 17, False),
        ("def main():\n    sft()\n    self.dpo('b')\nmain()", 17, True),
        ("try:\n    sft()\nfinally:\n    dpo('a')", 17, True),
        ("this is no Python", 17, False),
    ],
)
def test_whether_another_training_follows_is_read_of_the_script(script: str, line: int, later: bool, tmp_path: Path) -> None:
    file = tmp_path / "script.py"
    file.write_text(FUNCTIONS + "\n" + script)
    assert trains_later([(str(file), line), (str(tmp_path / "gone.py"), 1)]) is later


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("later", [True, False])
def test_an_error_between_two_trainings_is_not_the_end_of_the_command(
    told: bool, later: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script that failed behind its SFT, before its DPO, was told to be complete, with exit code 0."""
    script = tmp_path / "script.py"
    script.write_text("sft.train()\nrows = load()\n" + ("dpo.train()" if later else "push()"))
    pulse = {"called_at": [[str(script), 1]]} if told else {}
    states, _ = states_of(tmp_path, monkeypatch, **pulse)
    monkeypatch.setattr(States, "complete", lambda *_: states_module.ResumePoint("out/checkpoint-4", 4, tmp_path / "out/checkpoint-4"))
    end = ReadOfEnd(states.run, states.command, None, states, None, Attempt(1, states.run.attempt(1), None), Ending("error", 1, 3.0))
    traceback = ["Traceback (most recent call last):", f'  File "{script}", line 2, in <module>', "FileNotFoundError: rows"]
    after = end.after_training(Diagnosis("unknown", 0.0), [] if told else traceback)
    assert (after is None) is later


def test_the_callback_tells_where_its_script_made_the_training(tmp_path: Path) -> None:
    Training(tmp_path / "out").train(2)
    assert __file__ in [file for file, _ in pulse(tmp_path)["called_at"]]


@pytest.mark.parametrize(
    ("script", "line", "later"),
    [
        ("from parts.training import finetune\nfinetune('a')\nfinetune('b')", 2, True),
        ("from parts.training import finetune\nfinetune('a')\npush()", 2, False),
        ("from parts.training import finetune as tune, push\nfor fold in folds:\n    tune(fold)\npush()", 3, True),
        ("from parts import stages\nstages.sft()\nstages.dpo()", 2, True),
        ("import parts.stages as s\ns.sft()\ns.push()", 2, False),
        ("from parts.stages import sft, dpo\nsft()\ndpo()", 2, True),
        ("from elsewhere import finetune\nfinetune('a')\nfinetune('b')", 2, False),
    ],
)
def test_a_training_that_follows_in_another_file_of_the_script_is_seen(script: str, line: int, later: bool, tmp_path: Path) -> None:
    """What hung behind the first of two was told as complete, and the second never began."""
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts/training.py").write_text("from . import stages\ndef finetune(out):\n    make(out).train()\ndef push(): ...\n")
    stages = "from .training import finetune\ndef sft():\n    finetune(1)\ndef dpo():\n    finetune(2)\ndef push(): ...\n"
    (tmp_path / "parts/stages.py").write_text(stages)
    (tmp_path / "script.py").write_text(script)
    assert trains_later([(str(tmp_path / "script.py"), line)]) is later
