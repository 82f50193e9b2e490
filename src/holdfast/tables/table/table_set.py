"""The arrays of a table in a run folder, mapped: what a trainer reads. Rows by number; memory does not grow with them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from holdfast.data.token_set.arrays import map_arrays
from holdfast.run.sampling.shuffle import Rows
from holdfast.tables.table.form import Form

UNUSED, TRAINING, HELD_OUT = 0, 1, 2
_ROWS = 1 << 16  # looked at together


@dataclass(frozen=True)
class TableSet:
    """inputs: [rows, form.width] scaled; codes: [rows, categories]; target: scaled numbers, or numbers of classes; part: what a row is for.

    time: microseconds, 0 without a column of times; group: where rows are parted by it, but for older runs.
    """

    form: Form
    files: tuple[str, ...]
    inputs: npt.NDArray[np.float32]
    codes: npt.NDArray[np.int32]
    target: npt.NDArray[np.float32]
    part: npt.NDArray[np.uint8]
    file: npt.NDArray[np.int32]
    line: npt.NDArray[np.int64]
    time: npt.NDArray[np.int64]
    group: npt.NDArray[np.int32] | None = None

    def __len__(self) -> int:
        return len(self.part)

    def source(self, row: int) -> str:
        """Return file and line of a row."""
        return f"{self.files[self.file[row]]}:{self.line[row]}"

    def rows_of(self, part: int) -> Rows:
        """Return the rows for training, or held out; in the order of time where there is one."""
        return by_time(np.flatnonzero(self.part == part), self.time)


def by_time(rows: Rows, time: npt.NDArray[np.int64]) -> Rows:
    """Sort these rows by time, the oldest first; already sorted ones are returned as they are, which needs no memory."""
    pairs = (time[rows[start : start + _ROWS + 1]] for start in range(0, len(rows), _ROWS))
    return rows if all((np.diff(some) >= 0).all() for some in pairs) else rows[np.argsort(time[rows], kind="stable")]


def load_table(path: Path) -> TableSet:
    """Map a table. Raises FileNotFoundError, or ValueError where the file is damaged."""
    facts, arrays = map_arrays(path)
    form = Form.model_validate(facts["form"])
    rows = len(arrays["part"])
    shaped = arrays | {"inputs": arrays["inputs"].reshape(rows, form.width), "codes": arrays["codes"].reshape(rows, len(form.categories))}
    return TableSet(form=form, files=tuple(facts["files"]), **shaped)
