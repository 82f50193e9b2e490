"""What the faults of the fault language do to the process they fire in."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest

from holdfast.config.faults import Fault
from holdfast.trainer.common.job import happen

FIRE = """
import sys
from holdfast.config.faults import Fault
from holdfast.trainer.common.job import happen
happen(Fault(effect=sys.argv[1]))
sys.exit(99)
"""


@pytest.mark.parametrize(("effect", "code"), [("kill", -9), ("host_oom", -9), ("segfault", -11), ("abort", -6), ("exit", 0), ("raise", 1)])
def test_a_deadly_fault_ends_the_process_as_its_name_says(effect: str, code: int) -> None:
    assert subprocess.run([sys.executable, "-c", FIRE, effect], capture_output=True, check=False).returncode == code


@pytest.mark.parametrize(("effect", "factor"), [("zero_loss", 0.0), ("spike", 50.0), ("disk_full", 1.0)])
def test_a_fault_of_a_number_leaves_its_factor(effect: str, factor: float) -> None:
    assert happen(Fault.model_validate({"effect": effect, "factor": 50.0})) == factor


def test_a_fault_of_a_number_can_be_nan() -> None:
    assert math.isnan(happen(Fault(effect="nan_loss"))) and math.isnan(happen(Fault(effect="nan_grad")))
