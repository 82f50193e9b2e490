"""How losses are read out of the logs of different trainers, and what speaks against a course that looks well."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import orjson
import pytest

from holdfast.book import cards_of
from holdfast.diagnosis.diagnose import diagnose
from holdfast.diagnosis.logs.curve import curve_readings
from holdfast.diagnosis.logs.doubts import doubts
from holdfast.diagnosis.logs.text import Evidence, clean_lines
from holdfast.run.folder import RunFolder
from holdfast.supervision.diagnose_run import diagnose_run

MEGATRON = " iteration {} | lm loss: {} | loss scale: 1.0 | grad norm: {} | number of nan iterations: 0 |"
REWARDED = "{{'loss': 0.0, 'grad_norm': {}, 'reward': 0.9, 'reward_std': 0.8, 'epoch': 0.5}}"


@pytest.mark.parametrize(
    ("why", "log", "said"),
    [
        (
            "numbers in quotes",
            "{'loss': '2.1', 'grad_norm': '1.0'}\n{'loss': 'nan', 'grad_norm': 'nan'}",
            "becomes nan after healthy steps",
        ),
        ("the table of a notebook", "Step\tTraining Loss\n10\t1.2\n20\t0.0\n30\t0.0", "falls to 0 after healthy steps"),
        ("a table with bars", "| Step | Training Loss |\n| 10 | nan |\n| 20 | nan |", "is nan from the first logged step on"),
        ("a table with commas", "step,loss\n10,1.2\n20,2.9\n30,6.1\n40,8.0", "climbs"),
        ("a sentence with commas", "so, the loss, as they say,\n10,1.2\n20,2.9\n30,6.1\n40,8.0", None),
        (
            "a loss that is left out",
            MEGATRON.format(1, 0.7, 0.7) + "\n iteration 2 | loss scale: 1.0 | grad norm: nan |",
            "becomes nan after",
        ),
        ("no step was left", "{'train_runtime': '0.98', 'train_steps_per_second': '0', 'train_loss': '0', 'epoch': '3'}", None),
        (
            "steps, all masked",
            "{'train_runtime': '9.8', 'train_steps_per_second': '0.72', 'train_loss': '0'}",
            "is 0 from the first logged",
        ),
        ("a step that is skipped", " iteration 1 | loss scale: 8388608.0 | number of skipped iterations: 1 |", None),
        ("a policy's loss is 0 while it learns", REWARDED.format(0.9) + "\n" + REWARDED.format(0.4), "is finite and does not climb"),
        ("nothing moves, late in the run", REWARDED.format(0.0) + "\n" + REWARDED.format(0.0), "is 0 from the first logged step on"),
        ("a norm that is bad at the start only", "loss: 1.9, grad_norm: nan\nloss: 0.9, grad_norm: 3.9", "is finite and does not climb"),
        ("a norm that stays bad", "loss: 1.9, grad_norm: 3.9\nloss: 0.9, grad_norm: nan", "gradient norm is not finite"),
        ("three values that climb", "loss: 8.3\nloss: 9.9\nloss: 12.1", "climbs"),
        ("five values that rise", "\n".join(f"loss: {loss}" for loss in (0.98, 1.10, 1.13, 1.13, 1.32)), "rises through all that is shown"),
        ("five values that rise and fall", "\n".join(f"loss: {loss}" for loss in (0.98, 1.1, 0.99, 1.05, 1.32)), "does not climb"),
        ("five values that rise a little", "\n".join(f"loss: {loss}" for loss in (0.98, 1.01, 1.05, 1.09, 1.12)), "does not climb"),
        ("three values that jump", "loss: 8.3\nloss: 5.9\nloss: 9.1", "does not climb"),
    ],
)
def test_the_course_of_a_loss_is_told(why: str, log: str, said: str | None) -> None:
    told = [line.text for line in curve_readings(clean_lines(log))]
    assert (told == []) if said is None else any(said in text for text in told), (why, told)


def test_a_course_is_told_at_its_last_line() -> None:
    (reading,) = curve_readings(clean_lines("starting\nloss: 2.1\nloss: 2.0\nsaving\nloss: 1.9\ndone"))
    assert (reading.number, "does not climb" in reading.text) == (5, True)


BOOK = cards_of("failures")
EPOCHS = ((1.9, 1.281), (1.2, 1.347), (0.7, 1.602))  # training and held-out loss of each: learned by heart


def trainer_lines(epochs: Sequence[tuple[float, float]], name: str = "eval_loss") -> str:
    """What transformers' Trainer prints: five lines of training and one of evaluation an epoch."""
    lines = []
    for at, (loss, held_out) in enumerate(epochs):
        lines += [f"{{'loss': {loss - step / 50:.3f}, 'grad_norm': 0.5, 'epoch': {at + step / 5:.1f}}}" for step in range(5)]
        lines.append(f"{{'{name}': {held_out}, 'eval_runtime': 2.1, 'epoch': {at + 1}.0}}")
    return "\n".join(lines)


def history(epochs: Sequence[tuple[float, float]]) -> list[dict[str, float]]:
    """log_history of trainer_state.json."""
    return [
        row for at, (loss, held_out) in enumerate(epochs) for row in ({"epoch": at, "loss": loss}, {"epoch": at, "eval_loss": held_out})
    ]


def table(epochs: Sequence[tuple[float, float]], head: str, between: str) -> str:
    return "\n".join([head, *(between.join(map(str, (at, *losses))) for at, losses in enumerate(epochs, 1))])


FORMS: dict[str, Callable[[Sequence[tuple[float, float]]], str]] = {
    "Trainer": trainer_lines,
    "Trainer, and its end": lambda epochs: trainer_lines(epochs) + "\n{'train_runtime': 812.3, 'train_loss': 1.27, 'epoch': 3.0}",
    "a set with a name": lambda epochs: trainer_lines(epochs, "eval_math_loss"),
    "a notebook": lambda epochs: table(epochs, "Epoch\tTraining Loss\tValidation Loss", "\t"),
    "CSV": lambda epochs: table(epochs, "step,loss,eval_loss", ","),
    "trainer_state.json": lambda epochs: json.dumps({"best_metric": 1.281, "log_history": history(epochs)}, indent=2),
    "JSON lines": lambda epochs: "\n".join(map(json.dumps, history(epochs))),
    "a sentence a line": lambda epochs: "\n".join(f"epoch {at}: loss: {loss} - val_loss: {out}" for at, (loss, out) in enumerate(epochs)),
    "ours": lambda epochs: "\n".join(f"loss {loss}\nstep {at}: held-out loss {out:.4f}" for at, (loss, out) in enumerate(epochs)),
}


FALLING = [5.136, 3.578, 2.827, 2.454, 2.273, 2.174]


@pytest.mark.parametrize(
    "summary",
    [
        "{'train_runtime': 9.1, 'train_samples_per_second': 6.6, 'train_loss': 3.07, 'epoch': 1.0}",
        "***** train metrics *****\n  epoch = 1.0\n  train_loss = 3.0737\n  train_runtime = 0:00:09",
        "Recipe finished. average loss: 3.6",
        "validation: mean loss 3.9",
        "Evaluation results: loss = 3.9",
        "final test: loss=3.900",
        "wandb: train_loss 3.9",
    ],
)
def test_a_loss_that_a_summary_says_once_is_no_step_of_the_course(summary: str) -> None:
    steps = "\n".join(f"{{'loss': {loss}, 'learning_rate': 0.0001, 'epoch': {at / 6:.2f}}}" for at, loss in enumerate(FALLING))
    [told] = curve_readings(clean_lines(f"{steps}\n{summary}"))
    assert told.text == "reading: loss is finite and does not climb (6 values, last 2.17)"
    first = [line.text for line in curve_readings(clean_lines(f"initial loss: 9.2\n{steps}"))]
    assert first == [told.text]
    lost = [line.text for line in curve_readings(clean_lines(f"{steps}\nthe loss nan is no number"))]
    assert lost == ["reading: loss becomes nan after healthy steps"], "what is not finite is never left out"


@pytest.mark.parametrize("values", [["nan"] * 4, [1.0, 2.0, 3.0, "nan"], ["inf"] * 4])
def test_a_run_whose_held_out_loss_is_not_finite_is_not_called_healthy(values: list[object]) -> None:
    said = []
    for at in range(40):
        said.append(f"{{'loss': {3.0 * 0.95**at:.4f}, 'grad_norm': 1.01, 'learning_rate': 9.0e-05, 'epoch': {(at + 1) / 40:.2f}}}")
        if at % 10 == 9:
            said.append(f"{{'eval_loss': {values[at // 10]}, 'eval_runtime': 1.0, 'epoch': {(at + 1) / 40:.2f}}}")
    lines = clean_lines("\n".join(said))
    assert diagnose(Evidence(tuple(lines)), BOOK).cause != "healthy"
    assert any(doubt.seen.startswith("the held-out loss is not finite in") for doubt in doubts(lines))


@pytest.mark.parametrize("form", FORMS)
def test_a_run_whose_held_out_loss_rises_is_not_called_healthy(form: str) -> None:
    found = diagnose(Evidence(tuple(clean_lines(FORMS[form](EPOCHS)))), BOOK)
    assert found.cause == "unknown", found
    assert "rises after evaluation 1 of 3, where it is lowest: 1.281 -> 1.347 -> 1.602" in found.explanation
    assert "while the training loss falls" in found.explanation and "Keep the state of evaluation 1" in found.explanation
    better = [(loss, out) for (loss, _), out in zip(EPOCHS, (1.281, 1.2, 1.205), strict=True)]
    assert diagnose(Evidence(tuple(clean_lines(FORMS[form](better)))), BOOK).cause == "healthy", "what evaluations differ by"


def test_a_held_out_loss_that_rises_alone_is_told_without_a_reason() -> None:
    found = diagnose(Evidence(tuple(clean_lines(trainer_lines([(1.2, 1.3), (1.3, 1.35), (1.4, 1.6)])))), BOOK)
    assert found.cause == "unknown" and "by heart" not in found.explanation and "1.3 -> 1.35 -> 1.6" in found.explanation


@pytest.mark.parametrize("said", ["Continuing training from checkpoint, will skip", "Loading model from out/checkpoint-50.", ""])
@pytest.mark.parametrize(
    ("after", "look"), [((0.3, 0.29, 0.31, 0.3), "divided by"), ((10.8, 9.9, 7.5, 3.1, 2.0, 1.8, 1.8, 1.8), "optimizer's state")]
)
def test_a_loss_that_jumps_at_a_resume_is_not_called_healthy(said: str, after: tuple[float, ...], look: str) -> None:
    """Where no line says that it was resumed, the epochs that go back do."""
    back = 2 if not said else 0
    lines = [f"{{'loss': {loss}, 'grad_norm': 0.5, 'epoch': {at / 10}}}" for at, loss in enumerate((1.9, 1.85, 1.8, 1.82, 1.8))]
    lines += [said, *(f"{{'loss': {loss}, 'grad_norm': 0.5, 'epoch': {(5 + at - back) / 10}}}" for at, loss in enumerate(after))]
    found = diagnose(Evidence(tuple(clean_lines("\n".join(lines)))), BOOK)
    assert found.cause == "unknown" and "does not go on where it was at a resume: 1.82 before" in found.explanation, found
    assert look in found.explanation
    level = [line.replace(str(after[0]), "1.81") for line in lines[:7]]
    assert diagnose(Evidence(tuple(clean_lines("\n".join(level)))), BOOK).cause == "healthy"
    same = [line for line in lines if line != said] if said else lines[:5]
    assert "resume" not in diagnose(Evidence(tuple(clean_lines("\n".join(same)))), BOOK).explanation, "nothing says that it was resumed"


@pytest.mark.parametrize("foreign", [False, True])
def test_a_finished_run_whose_held_out_loss_rose_is_not_called_healthy(tmp_path: Path, foreign: bool) -> None:
    run = RunFolder(tmp_path)
    (tmp_path / "summary.json").write_bytes(
        orjson.dumps({"status": "finished", "steps": 30, "loss": {"first": 2.0, "last": 0.7}, "health": []})
    )
    if foreign:
        run.command_file.write_text("{}")
        for number, part in enumerate((EPOCHS[:1], EPOCHS[1:]), 1):
            run.attempt(number).mkdir(parents=True)
            (run.attempt(number) / "output.log").write_text(trainer_lines(part))
    else:
        rows = [{"step": step, "loss": 2.0 - step / 25} for step in range(1, 31)]
        run.steps_file.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
        held_out = [{"step": 10 * at, "loss": loss} for at, (_, loss) in enumerate(EPOCHS, 1)]
        run.evaluations_file.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in held_out))
    found, _ = diagnose_run(run, BOOK)
    assert found.cause == "unknown" and "1.281 -> 1.347 -> 1.602, while the training loss falls" in found.explanation, found
    assert foreign or "step 10: evaluate.keep_best" in found.explanation


ONE_RUN = "".join(f"step {n}/8 loss {2.5 - n * 0.1:.4f}\n" for n in range(1, 9))


@pytest.mark.parametrize(
    ("log", "still"),
    [
        (ONE_RUN * 2, False),
        (ONE_RUN.replace("step", "iter") * 3, False),
        ("".join(f"Epoch {epoch}/2\n{ONE_RUN}" for epoch in (1, 2)), True),
        ("".join(ONE_RUN.replace("step", f"epoch {epoch} step") for epoch in (1, 2)), True),
    ],
    ids=["two runs in one log", "three of them", "epochs", "epochs in its lines"],
)
def test_the_same_losses_again_mean_that_nothing_is_updated_in_epochs_alone(log: str, still: bool) -> None:
    assert any("no weight is updated" in line.text for line in curve_readings(clean_lines(log))) is still


@pytest.mark.parametrize(
    ("losses", "cause"),
    [
        (("0.0001",) * 8, "unknown"),
        (("0.69",) * 6, "unknown"),
        (("0.9123", "0.8123", "0.7123", "0.7") * 2, "unknown"),
        (("2.3456",) * 6, "no_learning_signal"),
        (("0.9123", "1.0123", "0.7123", "0.7") * 2, "no_learning_signal"),
        (("0.9123", "0.8123", "0.7123", "0.7", "0.9123", "0.8123", "0.7123", "0.69"), "healthy"),
    ],
)
def test_equal_losses_of_few_digits_do_not_say_that_no_weight_is_updated(losses: tuple[str, ...], cause: str) -> None:
    """An update may be smaller than the digits show; a gradient of 0 says it whatever they are."""
    lines = [f"{{'loss': {loss}, 'grad_norm': 0.5, 'learning_rate': 1e-05, 'epoch': {at / 3}}}" for at, loss in enumerate(losses)]
    found = diagnose(Evidence(tuple(clean_lines("\n".join(lines)))), BOOK)
    assert found.cause == cause
    assert ("too few to tell whether a weight is updated" in found.explanation) is (cause == "unknown")
    still = "\n".join(lines).replace("'grad_norm': 0.5", "'grad_norm': 0.0")
    assert diagnose(Evidence(tuple(clean_lines(still))), BOOK).cause == "no_learning_signal"


@pytest.mark.parametrize("code", [0, 1, None])
def test_what_a_program_lived_through_is_told_as_that(code: int | None) -> None:
    """An exit code of 0 takes no cause back, which is what the log says; what it means is told beside it."""
    log = f"{ONE_RUN}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\nevaluation is tried again\nsaved\n"
    found = diagnose(Evidence(tuple(clean_lines(log)), code), cards_of("failures"))
    assert found.cause == "gpu_out_of_memory"
    assert any("the program lived through this" in clue.text for clue in found.clues) is (code == 0)


def trainer_steps(losses: Sequence[float], norm: float = 0.7, more: str = "") -> str:
    return "\n".join(f"{{'loss': {loss:.4f}, 'grad_norm': {norm}, 'epoch': {at / 10:.1f}{more}}}" for at, loss in enumerate(losses))


DECAYING = [2.2 * 0.9**step for step in range(30)]
CLOSED = "{'train_runtime': 812.3, 'train_loss': 1.2, 'epoch': 3.0}"
RAISED = 'Traceback (most recent call last):\n  File "/x/train.py", line 10, in <module>\n'
OUT_OF_MEMORY = f"{RAISED}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
NO_SPACE = f"{RAISED}OSError: [Errno 28] No space left on device"


def cause_of(log: str, code: int | None = None) -> str:
    return str(diagnose(Evidence(tuple(clean_lines(log)), code), BOOK).cause)


@pytest.mark.parametrize(
    ("why", "log"),
    [
        ("a small loss is rounded to 0", trainer_steps([2.0, 1.5, 0.9, 0.5, 0.2, 0.08, 0.02, 0.004, 0.001, 0.0002, 0.00004, 0.00002])),
        ("the KL term lets a policy's loss rise from 0", trainer_steps([0.0004 * step for step in range(25)], more=", 'reward': 0.4")),
        ("a loss summed over a batch falls", "\n".join(f"step {at} loss {2000 * loss:.1f}" for at, loss in enumerate(DECAYING))),
        (
            "SGD learns at a rate of 5",
            "\n".join(f"| epoch 1 | {at} batches | lr 5.00 | loss {5 + loss:5.2f} |" for at, loss in enumerate(DECAYING)),
        ),
        (
            "batches are printed every ten, epochs from 0",
            "\n".join(f"[Epoch {at // 5}/6] [Batch {at % 5 * 10}/50] [loss: {loss:.3f}]" for at, loss in enumerate(DECAYING)),
        ),
    ],
)
def test_a_healthy_course_is_accused_of_nothing(why: str, log: str) -> None:
    assert cause_of(log) == "healthy", why


def test_what_only_sounds_like_a_healthy_course_is_not_one() -> None:
    dead = trainer_steps(DECAYING) + "\n" + trainer_steps([0.0] * 5, norm=math.nan)
    assert cause_of(dead) == "nonfinite_numerics"
    assert cause_of("\n".join(f"step {at} loss {2000 + 90 * at}" for at in range(30))) == "divergence"
    assert cause_of("\n".join(f"step {at} lr 5.0 loss {9.5 + at % 3 / 10}" for at in range(30))) == "divergence"
    cut = "\n".join(f"[Epoch {at // 5}/20] [Batch {at % 5 * 10}/50] [loss: {loss:.3f}]" for at, loss in enumerate(DECAYING[:13]))
    assert cause_of(cut) == "unknown"


@pytest.mark.parametrize("end", ["KeyboardInterrupt", "AssertionError: my check"])
def test_losses_in_a_log_are_no_words_of_a_cause(end: str) -> None:
    assert cause_of(f"{trainer_steps(DECAYING)}\n{RAISED}{end}", 1) == "unknown"


def test_a_failure_that_training_went_on_after_is_not_what_ended_it() -> None:
    survived = f"{OUT_OF_MEMORY}\nDecreasing batch size to: 4\n{trainer_steps(DECAYING)}"
    assert cause_of(f"{survived}\n{NO_SPACE}", 1) == "disk_full"
    assert cause_of(f"{OUT_OF_MEMORY}\n{NO_SPACE}\n{trainer_steps(DECAYING)}", 1) == "gpu_out_of_memory"
    found = diagnose(Evidence(tuple(clean_lines(f"{survived}\n{CLOSED}"))), BOOK)
    assert found.confidence < 0.5
    assert any("30 losses and the training's closing words stand below this" in clue.text for clue in found.clues)
