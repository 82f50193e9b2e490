"""Write rows of files into other files, each whole or not at all. Decides nothing about a row; never changes an input."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from holdfast.base.disk import place_of
from holdfast.base.errors import BLOCKED, USAGE, Stop
from holdfast.base.file_errors import at_place
from holdfast.base.files import is_full, replacing
from holdfast.data.duplicates.keys import RowLine, lines_of

_OTHER_FORMS = {
    *(".csv", ".tsv", ".parquet", ".arrow", ".feather", ".txt", ".md", ".yaml", ".yml", ".html"),
    *(".xlsx", ".xls", ".ods", ".gz", ".zst", ".bz2", ".xz", ".zip"),
}


def refuse_outputs(outputs: list[Path], inputs: list[str], tables: Sequence[Path] = ()) -> None:
    """Raise Stop(2) where an output would replace an input or another output, is a folder, or is named like another form of file.

    tables: outputs that are no JSON Lines.
    """
    taken = {place_of(file): file for file in inputs}
    for output in outputs:
        if output not in tables and output.suffix.lower() in _OTHER_FORMS:
            raise Stop(USAGE, f"{output}: rows are written as JSON Lines", f"name it {output.with_suffix('.jsonl')}")
        if output.is_dir():
            raise Stop(USAGE, f"{output} is a folder", "name a file in it")
        place = place_of(output)
        if place in taken:
            what = "one of the inputs, which are never overwritten" if taken[place] in inputs else "named twice"
            raise Stop(USAGE, f"{output} is {what}", "choose another name")
        taken[place] = str(output)


def write_lines(files: list[str], count: int, outputs: list[Path], part_of: Callable[[int, RowLine], int]) -> list[int]:
    """Write row i of `files`, of which there are `count`, to outputs[part_of(i, row)]; -1: nowhere. How many rows each output has.

    Raises Stop(1) for rows that changed in number, and for what cannot be written.
    """
    written: Counter[int] = Counter()
    number = -1
    try:
        with ExitStack() as stack:
            for output in outputs:
                output.parent.mkdir(parents=True, exist_ok=True)
            handles = [stack.enter_context(replacing(output)) for output in outputs]
            for number, line in enumerate(lines_of(files, whole=True)):
                part = part_of(number, line) if number < count else -1
                if part >= 0:
                    handles[part].write(line.text)
                    written[part] += 1
            if number + 1 != count:
                raise Stop(
                    BLOCKED, f"there were {count:,} rows, now there are {number + 1:,}: something writes to the files", "start again"
                )
    except OSError as error:
        raise cannot_write(error, outputs[0]) from None
    return [written[at] for at in range(len(outputs))]


def cannot_write(error: OSError, out: Path) -> Stop:
    """Return the Stop for a failed write: its cause and its cure."""
    if is_full(error):
        return Stop(BLOCKED, f"the disk of {out} is full; nothing was written", "make room and give the same command: it goes on")
    return at_place(error, out, "cannot be written", "choose another place for it")
