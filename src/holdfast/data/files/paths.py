"""Which files are meant by files, folders, patterns, data sets of the hub and addresses. Opens none of them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path

from holdfast.base.errors import USAGE, Stop
from holdfast.base.inert import refuse_unwritable_name
from holdfast.config.rows_elsewhere import elsewhere
from holdfast.data.files.stream import bare_suffix
from holdfast.row_sources.fetch import fetch_rows

_OF_ROWS = {".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet", ".arrow", ".txt"}


def expand(paths: Iterable[str]) -> list[str]:
    """The files, in order, each once; those of a folder or a pattern by name, hidden ones left out.

    Those of the hub and of addresses are fetched. Raises Stop(2) for what names none.
    """
    found: list[str] = []
    for path in paths:
        place = Path(path).expanduser()
        if place.is_dir():
            inside = sorted(str(file) for file in place.rglob("*") if _is_row_file(file, place))
            if not inside:
                raise Stop(USAGE, f"{path} is a folder without row files", f"looked for {', '.join(sorted(_OF_ROWS))}, also compressed")
            found += inside
        elif place.exists() and not place.is_file():
            raise Stop(USAGE, f"{path} is a pipe or a device; rows are read more than once", "write them to a file first")
        elif place.exists():
            found.append(str(place))
        else:
            anchor = Path(place.anchor)  # "" for a path from here
            if elsewhere(path):
                found += fetch_rows(path)
                continue
            matching = sorted(str(file) for file in anchor.glob(str(place.relative_to(anchor))) if file.is_file())
            if not matching and place.is_symlink():
                raise Stop(USAGE, f"{path} is a link to {place.readlink()}, which leads to no file", f"look at it with: ls -l {path}")
            if not matching:
                raise Stop(USAGE, f"{path}: no such file", _near(place))
            found += matching
    for file in found:
        refuse_unwritable_name(Path(file))
    return list(dict.fromkeys(found))


def _is_row_file(file: Path, folder: Path) -> bool:
    hidden = any(part.startswith(".") for part in file.relative_to(folder).parts)
    return not hidden and bare_suffix(file.name) in _OF_ROWS and file.is_file()


def _near(path: Path) -> str:
    names = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    close = difflib.get_close_matches(path.name, names, 1, 0.6)
    return f"did you mean {path.parent / close[0]}?" if close else f"the current folder is {Path.cwd()}"
