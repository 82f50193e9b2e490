"""Each architecture under each setting computes on the card what it computes on the CPU, and nothing of it lies elsewhere."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

from simulated import card
from support.architectures import ARCHITECTURES
from support.selection import part_of

pytestmark = card.needed
SETTINGS = 7


def test_ten_architectures_under_seven_settings() -> None:
    """`make test` takes a part, each architecture and each setting among it; that is ten cells."""
    chosen = part_of(product(ARCHITECTURES, range(SETTINGS)), share=SETTINGS)
    done = card.run(Path(__file__).parent / "archs_on_card.py", *(f"{name}:{setting}" for name, setting in chosen))
    assert done.returncode == 0, done.stderr[-4000:]
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(one["name"], one["setting"]) for one in found] == chosen
    assert {one["name"] for one in found} == set(ARCHITECTURES) and {one["setting"] for one in found} == set(range(SETTINGS))
    for one in found:
        assert one["where"] == "cuda:0" and one["disproof"] == [{}, ""], one
        exact = one["changes"].get("dtype") == "fp32"
        assert one["apart"] < (1e-6 if exact else 1e-2) and one["off"] < (1e-5 if exact else 1e-2), one
