"""What folds say together: an interval that holds what it promises, and no claim without one."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from holdfast.base.errors import Stop
from holdfast.base.files import write_json
from holdfast.base.intervals import blocks_of, interval, interval_of_groups, reach, verdict
from holdfast.cli.commands.walk import refuse_other_rows
from holdfast.run.folder import RunFolder
from holdfast.tables.walk_forward import together


def fold(gains: list[float], trades: int = 40, net: float = 0.0) -> dict[str, object]:
    values = np.array(gains)
    rule = {"trades": trades, "hits": 0.5, "net_return": interval(values * 0 + net), "total": net * trades}
    deal = {"rules": {"model": rule, "flat": rule | {"trades": 0}}, "gain": interval(values), "cost": 0.0, "best_naive": "flat"}
    return {"rows": len(gains), "gain": interval(values), "trades": deal}


def test_folds_are_judged_together() -> None:
    draw = np.random.default_rng(0)
    better = [fold((0.05 + 0.1 * draw.normal(size=600)).tolist()) for _ in range(3)]
    found = together(better)
    assert found["verdict"] == "better" and found["gain"]["mean"] == pytest.approx(0.05, abs=0.02)
    assert "better than naive forecasts" in found["says"] and found["trades"]["rules"]["model"]["trades"] == 120
    nothing = together([fold((0.1 * draw.normal(size=600)).tolist()) for _ in range(3)])
    assert nothing["verdict"] == "cannot_tell" and "nothing is predicted" in nothing["says"]
    worse = together([fold((-0.05 + 0.1 * draw.normal(size=600)).tolist())])
    assert worse["verdict"] == "worse" and "nothing is predicted" in worse["says"]


@pytest.mark.parametrize("rows", [(100, 100), (100, 120)])
def test_folds_of_two_tables_are_not_judged_together(rows: tuple[int, ...], tmp_path: Path) -> None:
    """A walk was stopped in the middle, the bars of another month were added, and the command given again."""
    folds = [RunFolder(tmp_path / f"fold-{number}") for number in rows]
    for run, count in zip(folds, rows, strict=True):
        run.path.mkdir(exist_ok=True)
        write_json(run.data_report_file, {"rows": count})
    if len({*rows}) == 1:
        refuse_other_rows(folds)
    else:
        with pytest.raises(Stop, match="fold-100 100, fold-120 120"):
            refuse_other_rows(folds)


def test_of_a_few_rows_nothing_is_claimed() -> None:
    assert blocks_of(np.ones(20)) == [] and interval(np.ones(20))["interval"] is None
    assert verdict(None) == "cannot_tell" and reach([1.0] * 4) is None


@pytest.mark.parametrize(("horizon", "series"), [(50, 1), (20, 1), (10, 4)])
def test_rows_that_share_a_horizon_are_no_evidence_each(horizon: int, series: int) -> None:
    """Sums over the same events say one thing many times: without telling, something is claimed of nothing three times as often as 5 %."""
    draw, claimed = np.random.default_rng(2), {0: 0, horizon * series: 0}
    for _ in range(1000):
        moves = draw.normal(size=20 * horizon + horizon)
        values = np.repeat(np.convolve(moves, np.ones(horizon), "valid")[: 20 * horizon], series)
        for shared in claimed:
            found = interval(values, shared)["interval"]
            claimed[shared] += found is not None and verdict(found) != "cannot_tell"
    assert claimed[horizon * series] / 1000 < 0.1 < claimed[0] / 1000


def test_rows_of_one_group_are_no_evidence_each() -> None:
    """Twelve patients, whose rows stand among each other's: of how the next one fares, their rows tell as often as there are patients."""
    draw, claimed = np.random.default_rng(3), {"rows": 0, "groups": 0}
    for _ in range(300):
        group = draw.permutation(np.repeat(np.arange(12, dtype=np.int32), draw.integers(20, 60, 12)))
        values = draw.normal(size=12)[group] + 0.1 * draw.normal(size=len(group))
        for name, found in (("rows", interval(values)), ("groups", interval_of_groups(values, group))):
            claimed[name] += verdict(found["interval"]) != "cannot_tell"
    assert claimed["groups"] / 300 < 0.1 and claimed["rows"] / 300 > 0.5
    assert interval_of_groups(np.ones(40), np.repeat(np.arange(4, dtype=np.int32), 10))["interval"] is None, "of four nothing is claimed"
    even = np.arange(60.0)
    by_part = interval_of_groups(even, np.repeat(np.arange(30, dtype=np.int32), 2))
    assert by_part["blocks"] == pytest.approx(interval(np.repeat(even, 3))["blocks"]) and by_part["mean"] == 29.5


def test_an_interval_holds_the_truth_as_often_as_it_says() -> None:
    """Of rows that lean on the one before (0.8), where an interval row by row would hold it in half of the cases."""
    draw, held, by_row = np.random.default_rng(1), 0, 0
    for _ in range(300):
        values = np.zeros(3000)
        noise = draw.normal(size=3000)
        for at in range(1, 3000):
            values[at] = 0.8 * values[at - 1] + noise[at]
        low, high = interval(values)["interval"]
        held += low <= 0 <= high
        half = 1.96 * values.std() / math.sqrt(len(values))
        by_row += abs(values.mean()) <= half
    assert held / 300 > 0.88 and by_row / 300 < 0.6
