"""One pass over data files: survey every block, in order, and write the clean rows where that is wanted. Never changes an input.

The work of a cleaning lies block by block in a folder beside the clean file until that is there, so an interrupted one goes on.
"""

from __future__ import annotations

import hashlib
import shutil
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

import numpy as np

from holdfast.base.files import Json, remove_abandoned, replacing, write_bytes
from holdfast.data.duplicates.seen import Mask
from holdfast.data.files.raw_row import json_line
from holdfast.data.survey.findings import Findings
from holdfast.data.survey.survey import Survey, read_survey
from holdfast.data.workers.workers import B, Crew, Work

_KEPT_AFTER = 32  # blocks; a cleaning of fewer is over before it can be worth going on with


class UnfinishedCleaning:
    """Surveys of a cleaning that is not done yet, under the names of their blocks."""

    def __init__(self, out: Path, key: str) -> None:
        self.folder = out.with_name(f".{out.name}.unfinished")
        self._key = hashlib.sha256(key.encode()).hexdigest()[:16]
        self.reused = 0

    def find(self, name: str) -> bytes | None:
        try:
            data = (self.folder / f"{self._key}-{name}").read_bytes()
            read_survey(data)
        except (OSError, ValueError):
            return None
        self.reused += 1
        return data

    def keep(self, name: str, data: bytes) -> None:
        self.folder.mkdir(exist_ok=True)
        write_bytes(self.folder / f"{self._key}-{name}", data, durable=False)

    def clear(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def check_files(files: list[str], held_out: list[str], crew: Crew[B], findings: Findings) -> None:
    """Survey all rows of `files`; those of `held_out` are only what these are compared with."""
    _hold_out(held_out, crew, findings)
    for file, block, survey in _surveys(files, crew, None):
        findings.take(file, block, survey)


def clean_files(
    files: list[str], held_out: list[str], crew: Crew[B], findings: Findings, out: Path, rejects: Path, mended: Path, key: str
) -> int:
    """Clean the files into three outputs, each whole or not at all; return the blocks an interrupted cleaning had done. Raises OSError."""
    unfinished = UnfinishedCleaning(out, key)
    _hold_out(held_out, crew, findings)
    with ExitStack() as stack:
        for path in (out, rejects, mended):
            remove_abandoned(path)
        handles = [stack.enter_context(replacing(path)) for path in (out, rejects, mended)]
        for file, block, survey in _surveys(files, crew, unfinished):
            rejected, left = findings.take(file, block, survey)
            _write(survey, left, handles[0])
            _write_lines(rejected, handles[1])
            changed = {int(line) for line in survey.lines[left]}
            entries = survey.entries("mended", file, block.first_line)
            _write_lines([entry for entry in entries if entry["line"] - block.first_line in changed], handles[2])
    unfinished.clear()
    return unfinished.reused


def _hold_out(files: list[str], crew: Crew[B], findings: Findings) -> None:
    for file, block, survey in _surveys(files, crew, None):
        findings.repetitions.hold_out(file, block.first_line, survey)


def _surveys(files: list[str], crew: Crew[B], unfinished: UnfinishedCleaning | None) -> Iterator[tuple[str, B, Survey]]:
    """Yield the survey of each block of the files, in order; some are begun ahead."""
    ahead: deque[tuple[str, B, str, Work | bytes]] = deque()
    for number, (file, block) in enumerate(crew.blocks(files)):
        name = block.name if unfinished and number >= _KEPT_AFTER else ""
        ahead.append((file, block, name, (unfinished.find(name) if unfinished and name else None) or crew.begin(block)))
        if len(ahead) > 2 * crew.count:
            yield _next(ahead, unfinished)
    while ahead:
        yield _next(ahead, unfinished)


def _next(ahead: deque[tuple[str, B, str, Work | bytes]], unfinished: UnfinishedCleaning | None) -> tuple[str, B, Survey]:
    file, block, name, work = ahead.popleft()
    if isinstance(work, bytes):
        return file, block, read_survey(work)
    data = work.result()
    if unfinished and name:
        unfinished.keep(name, data)
    return file, block, read_survey(data)


def _write(survey: Survey, left: Mask, handle: BinaryIO) -> None:
    if left.all():
        handle.write(survey.clean.tobytes())
        return
    lines = survey.clean.tobytes().splitlines(keepends=True)
    handle.writelines(lines[number] for number in np.flatnonzero(left))


def _write_lines(entries: list[Json], handle: BinaryIO) -> None:
    handle.writelines(map(json_line, entries))
