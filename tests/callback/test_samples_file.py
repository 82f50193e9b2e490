"""The file of the rows in flight: what a death in mid-write left at its end is cut before the next line is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from torch.utils.data import BatchSampler, SequentialSampler

from holdfast.callback.rows import FILE, SamplerRows


class Loader:
    """As much of a data loader as is asked."""

    def __init__(self) -> None:
        self.batch_sampler = BatchSampler(SequentialSampler(range(8)), 2, drop_last=False)

    def __len__(self) -> int:
        return 4


@pytest.mark.parametrize("torn", ["", '{"done": 3}\n', '{"done": 3}\n{"step": 4, "sam', '{"st'])
def test_a_torn_line_is_cut_before_the_next(tmp_path: Path, torn: str) -> None:
    (tmp_path / FILE).write_text(torn)
    rows = SamplerRows(Loader(), 1, tmp_path)
    rows.end(5)
    rows.close()
    whole = torn[: torn.rfind("\n") + 1]
    assert [json.loads(line) for line in (tmp_path / FILE).read_text().splitlines()] == [
        *(json.loads(line) for line in whole.splitlines()),
        {"done": 5},
    ]
