"""The file of the rows in flight: what a death in mid-write left at its end is cut before the next line is written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler

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


class Stream(IterableDataset[int]):
    """A stream that knows its length."""

    def __len__(self) -> int:
        return 8

    def __iter__(self) -> Iterator[int]:
        return iter(range(8))


def test_the_rows_of_a_stream_have_no_numbers_that_could_be_told(tmp_path: Path) -> None:
    loader = DataLoader(Stream(), batch_size=2)
    rows = SamplerRows(loader, 1, tmp_path)
    rows.begin_epoch(0)
    assert len(list(loader)) == 4
    rows.begin(1)
    rows.close()
    assert rows.now == [] and json.loads((tmp_path / FILE).read_text()) == {"step": 1, "samples": []}
