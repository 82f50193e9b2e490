"""Two trainings of one script are held against each other step by step: where the second departs, and what is another there."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import holdfast
from holdfast.callback.fingerprints import FILE, Fingerprints, hash_of, listen, moments
from holdfast.run import fingerprints
from holdfast.run.fingerprints import Look, compare_fingerprints, in_words, read_fingerprints
from holdfast.run.folder import RunFolder
from support.small_trainer import Rows

pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")
STEPS = 9


def test_both_sides_mean_the_same_file() -> None:
    assert fingerprints.FILE == FILE


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., RunFolder]:
    """Train the small model in this process as an attempt of a run; every step is looked at, however short it is."""
    from transformers import TrainingArguments

    from holdfast.callback import hf
    from holdfast.hf import HoldfastCallback
    from support.small_trainer import Ours, build

    monkeypatch.setattr("holdfast.callback.fingerprints.SHARE", 1e9)

    def run(name: str, attempt: int = 1, faults: str = "", resume: int | None = None, **changed: Any) -> RunFolder:
        place = tmp_path / name
        (place / f"attempts/{attempt:03}").mkdir(parents=True)
        (place / "command.json").write_text('{"argv": ["python"], "folder": "/"}')
        monkeypatch.setenv("HOLDFAST_ATTEMPT", str(place / f"attempts/{attempt:03}"))
        told: dict[str, Any] = {
            "output_dir": str(place / "out"), "max_steps": STEPS, "save_steps": 4, "per_device_train_batch_size": 4, "seed": 3,
            "learning_rate": 1e-2, "report_to": "none", "use_cpu": True, "disable_tqdm": True, "warmup_steps": 2,
        }  # fmt: skip
        hf._first.clear()  # each is as one of a process of its own
        hf._trainings.clear()
        trainer = build(TrainingArguments(**told | changed), Ours(faults))
        trainer.add_callback(HoldfastCallback(trainer))
        try:
            trainer.train(resume_from_checkpoint=str(place / f"out/checkpoint-{resume}") if resume else None)
        except RuntimeError:
            assert faults
        return RunFolder(place)

    return run


def beside(run: RunFolder, other: RunFolder) -> Any:
    return compare_fingerprints(read_fingerprints(run), read_fingerprints(other))


def test_a_run_that_died_and_went_on_is_the_undisturbed_one_in_each_step(train: Callable[..., RunFolder], tmp_path: Path) -> None:
    whole = train("whole")
    train("died", faults="raise:7:*")
    died = train("died", attempt=2, resume=4)
    found = beside(died, whole)
    assert found == {
        "steps": STEPS,
        "weights_looked_at": STEPS,
        "weights_last": STEPS,
        "looked_at": list(fingerprints.WORDS),
        "departs": None,
    }
    assert "the same rows, batches, learning rates, random states and weights (9 steps of both looked at" in in_words(found, "whole")
    loaded = [look for look in read_fingerprints(died) if look.loaded]
    assert [(look.attempt, look.step) for look in loaded] == [(2, 4)]
    (answer,) = json.loads(holdfast("compare", whole.path, died.path, "--json").stdout)["likely"]
    assert answer["cause"] == "none"


@pytest.mark.parametrize(
    ("changed", "what", "step"),
    [
        ({"ignore_data_skip": True}, "rows", 5),
        ({"lr_scheduler_type": "constant"}, "lr", 6),
        ({"seed": 4}, "rows", 5),
        ({"weights": True}, "weights", 4),
        ({"optimizer": True}, "optimizer", 4),
        ({"random": True}, "random", 5),
        ({"content": True}, "batch", 5),
    ],
)
def test_the_first_step_that_departs_and_what_is_another_there_are_named(
    changed: dict[str, Any], what: str, step: int, train: Callable[..., RunFolder], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train("whole")
    died = train("died", faults="raise:7:*")
    newest = died.path / "out/checkpoint-4"
    if "weights" in changed:
        from safetensors.torch import load_file, save_file

        weights = load_file(newest / "adapter_model.safetensors")
        save_file({name: value + 1e-6 for name, value in weights.items()}, newest / "adapter_model.safetensors", {"format": "pt"})
    if "optimizer" in changed:
        (newest / "optimizer.pt").unlink()
    if "random" in changed:
        (newest / "rng_state.pth").unlink()
        torch.manual_seed(99)
    if "content" in changed:  # the same rows by their numbers, of a file that was written anew
        of = Rows.__getitem__
        monkeypatch.setattr(Rows, "__getitem__", lambda self, at: of(self, at + 100))
    settings = {name: value for name, value in changed.items() if value is not True or name == "ignore_data_skip"}
    train("died", attempt=2, resume=4, **settings)
    departs = beside(died, whole)["departs"]
    assert (departs["what"], departs["step"], departs["attempt"]) == (what, step, 2)
    at = f"{'what attempt 2 loaded behind ' * departs['loaded']}step {step}"
    assert f"departs at {at} (attempt 2): {fingerprints.WORDS[what]}" in in_words(beside(died, whole), "whole")


@pytest.mark.parametrize(
    ("weights", "causes", "said"),
    [
        (
            (4, 8),
            range(1, 9),
            "at one of steps 5 to 8 (attempt 1): its weights are others, not looked at in each step between (the same in each: rows);",
        ),
        ((4, 8), (1, 2, 4, 5, 6, 8), "at one of steps 5 to 8 (attempt 1): its weights are others, not looked at in each step between;"),
        ((7, 8), (2, 8), "at step 8 (attempt 1): its weights are others;"),
        ((8,), (8,), "at one of steps 1 to 8 (attempt 1): its weights are others, not looked at in each step between;"),
    ],
)
def test_a_step_that_was_not_looked_at_is_not_said_to_be_that_of_the_other_training(
    weights: tuple[int, ...], causes: Iterable[int], said: str
) -> None:
    """Weights that are looked at each fourth step were said to depart at step 8, when it was step 5."""
    here, there = (
        [
            Look(1, n, False, ({"rows": "a"} if n in causes else {}) | ({"weights": f"{n}{name * (n == 8)}"} if n in weights else {}))
            for n in range(1, 9)
        ]
        for name in "ab"
    )
    assert said in in_words(compare_fingerprints(here, there), "it")


def test_batches_are_heard_of_and_never_drawn_from() -> None:
    class Drawing:
        def __init__(self, make: Callable[[Any, int], Any]) -> None:
            self.make = make

        def get_batch_samples(self, epoch_iterator: Any, num_batches: int) -> Any:
            return self.make(epoch_iterator, num_batches)

    class Answering:  # as TRL's for preferences had it
        def get_batch_samples(self, model: Any, batch: Any) -> Any:
            return ["an answer"], ["another"]

    drawn: list[Any] = []
    for make, heard in (
        (lambda rows, many: ([next(rows) for _ in range(many)], None), [1, 2]),
        (lambda rows, many: (iter([next(rows) for _ in range(many)]), None), []),
        (lambda rows, many: None, []),
    ):
        trainer = Drawing(make)
        listen(trainer, drawn)
        found = trainer.get_batch_samples(iter([1, 2, 3]), 2)
        assert drawn == heard
        assert found is None or [*found[0]] == [1, 2]
    asked = Answering()
    listen(asked, drawn)
    assert asked.get_batch_samples(None, None) == (["an answer"], ["another"]) and drawn == [] and not vars(asked)


def test_what_a_resumed_training_computed_before_it_was_cut_bounds_no_step_of_the_attempt_after_it() -> None:
    there = [Look(1, n, False, {"weights": str(n)}) for n in range(1, 9)]
    here = [*there[:6], Look(2, 4, True, {}), Look(2, 7, False, {"weights": "another"})]
    departs = compare_fingerprints(here, there)["departs"]
    assert (departs["not_before"], departs["step"]) == (5, 7)


def test_steps_that_nobody_looked_at_are_not_called_the_same(tmp_path: Path) -> None:
    empty = RunFolder(tmp_path)
    assert in_words(beside(empty, empty), "it").startswith("not known whether")


@pytest.mark.parametrize(
    ("looked", "said"),
    [
        ({"lr": [0.1], "random": "a"}, "the same learning rates, random states, as far as they were looked at (1 step"),
        ({"lr": [0.1], "weights": "a"}, "the same learning rates and weights (1 step"),
        ({"rows": "a"}, "the same rows, as far as they were looked at (1 step"),
        ({"weights": "a"}, "the same weights (1 step"),
    ],
)
def test_what_was_not_looked_at_is_not_called_the_same(looked: dict[str, Any], said: str) -> None:
    """A stream's rows, and those of a plain loop, have no numbers: they were called the same rows."""
    looks = [Look(1, 1, False, looked)]
    assert said in in_words(compare_fingerprints(looks, looks), "it")


def test_steps_of_two_trainings_of_a_process_are_not_held_against_each_other(tmp_path: Path) -> None:
    """The rows of the first fold departed from those of the last one."""
    model, run = torch.nn.Linear(2, 2), RunFolder(tmp_path)
    run.attempt(1).mkdir(parents=True)
    for training, row in enumerate([5, 7, 9], 1):
        prints = Fingerprints(run.attempt(1), training)
        prints.begin(1, [row], None)
        prints.end(1, model, None)
        prints.close()
    found = beside(run, run)
    assert (found["departs"], found["steps"]) == (None, 3)


def test_looks_grow_apart_where_they_cost_more_than_their_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(10**6))
    monkeypatch.setattr("holdfast.callback.fingerprints.time.perf_counter", lambda: float(next(now)))
    prints = Fingerprints(tmp_path)
    model = torch.nn.Linear(2, 2)
    for step in range(1, 3000):
        prints.begin(step, [step], torch.optim.SGD(model.parameters(), lr=0.1))
        prints.end(step, model, None)
    prints.close()
    looked = [json.loads(line)["step"] for line in (tmp_path / FILE).read_text().splitlines()]
    assert looked[:2] == [1, 2] and len(looked) < 60 and all(step % 64 == 0 for step in looked if step > 256)


def test_the_weights_of_the_last_step_are_looked_at_however_seldom_those_of_others_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights that departed behind the last look at them were told as the same."""
    monkeypatch.setattr("holdfast.callback.fingerprints.SHARE", 1e-12)
    run, model = RunFolder(tmp_path), torch.nn.Linear(2, 2)
    run.attempt(1).mkdir(parents=True)
    prints = Fingerprints(run.attempt(1))
    for step in range(1, 12):
        prints.begin(step, [step], None)
        prints.end(step, model, None, last=step == 11)
    prints.close()
    found = beside(run, run)
    assert found["weights_last"] == 11 and found["weights_looked_at"] < 4, found


def test_moments_in_lists_are_hashed_by_their_bits() -> None:
    """A long tensor prints its first and last numbers: two states of LBFGS that differ in between were the same."""
    model = torch.nn.Linear(40, 40)
    optimizer = torch.optim.LBFGS(model.parameters())

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        found = (model(torch.ones(2, 40)) - 1).square().mean()
        found.backward()
        return found

    optimizer.step(loss)  # type: ignore[arg-type]
    before = hash_of(moments(optimizer))
    torch.set_printoptions(precision=2)
    assert hash_of(moments(optimizer)) == before
    torch.set_printoptions(profile="default")
    optimizer.state_dict()["state"][0]["old_dirs"][0][700] += 1e-3
    assert hash_of(moments(optimizer)) != before


def test_a_state_without_bytes_is_not_hashed() -> None:
    class Odd:
        def state_dict(self) -> dict[str, Any]:
            return {"state": {0: {"moment": object()}}}

    with pytest.raises(TypeError, match="object in the optimizer's state"):
        hash_of(moments(Odd()))


def test_a_command_is_held_against_an_earlier_run_of_it(tmp_path: Path) -> None:
    from support.small_trainer import __file__ as script

    options = {"output_dir": "out", "max_steps": "6", "save_steps": "2", "report_to": "none", "use_cpu": "true"}
    words = ["--", sys.executable, script, *(word for name, value in options.items() for word in (f"--{name}", value))]
    ours = ("run", "--callback", "--no-standby", "--json")
    done = holdfast(*ours, "--run", "a", *words, cwd=tmp_path)
    assert done.returncode == 0 and "compared" not in json.loads(done.stdout), done.stderr
    words[words.index("out")] = "other"
    done = holdfast(*ours, "--run", "b", "--compare", "a", *words, "--learning_rate", "0.001", cwd=tmp_path)
    compared = json.loads(done.stdout)["compared"]
    assert compared["departs"]["what"] == "lr" and compared["says"] in done.stderr
    refused = holdfast("run", "--callback", "--run", "c", "--compare", "nowhere", *words, cwd=tmp_path)
    assert refused.returncode == 2 and "that is no run of holdfast run" in refused.stderr
