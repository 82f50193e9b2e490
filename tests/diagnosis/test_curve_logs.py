"""How losses are read out of the logs of different trainers."""

from __future__ import annotations

import pytest

from holdfast.diagnosis.logs.curve import curve_readings
from holdfast.diagnosis.logs.text import clean_lines

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
