"""The tokenised rows of a run in one safetensors file, mapped rather than loaded. Written by the data check, read by the trainer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import orjson
from safetensors import safe_open
from safetensors.numpy import save

from holdfast.core.config import Data
from holdfast.core.files import write_bytes
from holdfast.core.table import split_rows
from holdfast.rows.read import Source


@dataclass(frozen=True)
class TokenSet:
    """Rows one after the other: row i is ids[starts[i]:starts[i+1]]; `learned` is 1 where a token is a target.

    ids int32 [tokens], learned uint8 [tokens], starts int64 [rows + 1], file int32 [rows], line int64 [rows].
    """

    ids: npt.NDArray[np.int32]
    learned: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.int64]
    file: npt.NDArray[np.int32]
    line: npt.NDArray[np.int64]
    files: tuple[str, ...]
    held_out_files: int  # how many of the last files hold rows for evaluation
    pad: int

    def __len__(self) -> int:
        return len(self.starts) - 1

    def row(self, number: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
        span = slice(int(self.starts[number]), int(self.starts[number + 1]))
        return self.ids[span], self.learned[span]

    def length(self, number: int) -> int:
        return int(self.starts[number + 1] - self.starts[number])

    def source(self, number: int) -> Source:
        return Source(self.files[int(self.file[number])], int(self.line[number]))


def save_tokens(path: Path, tokens: TokenSet) -> None:
    arrays = {name: getattr(tokens, name) for name in ("ids", "learned", "starts", "file", "line")}
    facts = orjson.dumps({"files": tokens.files, "held_out_files": tokens.held_out_files, "pad": tokens.pad}).decode()
    write_bytes(path, save(arrays, metadata={"holdfast": facts}))


def load_tokens(path: Path) -> TokenSet:
    """Map a saved token set. Raises FileNotFoundError, or SafetensorError when the file is damaged."""
    with safe_open(path, framework="np") as handle:
        facts = orjson.loads(handle.metadata()["holdfast"])
        arrays = {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118  (no mapping)
    return TokenSet(**arrays, files=tuple(facts["files"]), held_out_files=facts["held_out_files"], pad=facts["pad"])


def split(tokens: TokenSet, data: Data, seed: int) -> tuple[list[int], list[int]]:
    """(training rows, rows for evaluation): by file where the config names files for evaluation, else a share drawn by seed."""
    if not tokens.held_out_files:
        return split_rows(len(tokens), data.held_out, seed)
    first = len(tokens.files) - tokens.held_out_files
    return np.flatnonzero(tokens.file < first).tolist(), np.flatnonzero(tokens.file >= first).tolist()
