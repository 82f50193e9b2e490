"""Which files are meant by files, folders, patterns, data sets of the hub and addresses. Opens none of them."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable
from pathlib import Path

from holdfast.base.errors import USAGE, Stop
from holdfast.base.inert import refuse_unwritable_name
from holdfast.base.units import counted
from holdfast.config.rows_elsewhere import elsewhere
from holdfast.data.files.stream import bare_suffix
from holdfast.row_sources.fetch import fetch_rows, to_stderr
from holdfast.row_sources.splits import Use, of_use, shown_some, without_facts

_OF_ROWS = {".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet", ".arrow", ".txt"}

_OF_MODELS = ("config.json", "adapter_config.json")  # beside which JSON is a model's


def expand(paths: Iterable[str], use: Use = "learned") -> list[str]:
    """Return the files, in order, each once; those of a folder or a pattern by name, hidden ones left out.

    use: what for. Where a folder or a pattern has files of a split that judges beside others, those are not learned, and the others do not
    judge; what is left out is said on stderr. Those of the hub and of addresses are fetched. Raises Stop(2) for what names none.
    """
    found: list[str] = []
    for path in paths:
        place = Path(path).expanduser()
        if place.is_dir():
            shown = sorted(str(file) for file in place.rglob("*") if _is_shown(file, place))
            own = without_facts([file for file in shown if bare_suffix(file) in _OF_ROWS])
            runs = {found.parent for found in place.rglob("run.json") if (found.parent / "attempts").is_dir()} - {place}
            inside = _without_own(path, list(map(Path, own)), runs)
            if not inside:
                raise Stop(USAGE, f"{path} is a folder without row files", f"looked for {', '.join(sorted(_OF_ROWS))}, also compressed")
            _tell_unread(path, [Path(file) for file in shown if bare_suffix(file) not in _OF_ROWS], place, runs)
            found += of_use(path, inside, str(place), use, to_stderr)
        elif place.exists() and not place.is_file():
            raise Stop(USAGE, f"{path} is a pipe or a device; rows are read more than once", "write them to a file first")
        elif place.exists():
            found.append(str(place))
        else:
            anchor = Path(place.anchor)  # "" for a path from here
            if elsewhere(path):
                found += fetch_rows(path, use)
                continue
            matching = sorted(str(file) for file in anchor.glob(str(place.relative_to(anchor))) if file.is_file())
            if not matching and place.is_symlink():
                raise Stop(USAGE, f"{path} is a link to {place.readlink()}, which leads to no file", f"look at it with: ls -l {path}")
            if not matching:
                raise Stop(USAGE, f"{path}: no such file", _near(place))
            found += of_use(path, matching, _above(matching), use, to_stderr)
    for file in found:
        refuse_unwritable_name(Path(file))
    return list(dict.fromkeys(found))


def _without_own(asked: str, files: list[Path], runs: set[Path]) -> list[str]:
    """Return the files without those that runs and models keep for themselves in folders below; print how many are left out."""
    beside = {run.parent for run in runs}

    def is_own(file: Path) -> bool:
        of_export = file.name == "holdfast.json" or (file.name.endswith(".plan.json") and _beside(file, ".plan.json", ".yaml").is_file())
        of_model = file.suffix == ".json" and any((file.parent / name).is_file() for name in _OF_MODELS)
        return of_export or of_model or (file.name == "models.jsonl" and file.parent in beside) or not runs.isdisjoint(file.parents)

    own = {file for file in files if is_own(file)}
    if own:
        to_stderr(f"{asked}: left out {counted(len(own), 'file')} that runs, plans and models keep for themselves: they hold no rows")
    return [str(file) for file in files if file not in own]


def _tell_unread(asked: str, files: list[Path], folder: Path, runs: set[Path]) -> None:
    """Print which files of a folder are not read for their endings, but for those of runs and models."""
    left = [
        str(file.relative_to(folder))
        for file in files
        if runs.isdisjoint(file.parents) and not any((file.parent / name).is_file() for name in _OF_MODELS)
    ]
    if left:
        text = next((name for name in left if bare_suffix(name) == ".md"), "")
        said = f"left out {counted(len(left), 'file')} with no ending that rows have: {shown_some(left, 3)}"
        to_stderr(f"{asked}: {said}" + (f"; to read {text} as text, name it itself" if text else ""))


def _beside(file: Path, end: str, other: str) -> Path:
    return file.with_name(file.name.removesuffix(end) + other)


def _above(files: list[str]) -> str:
    """Return the folder that all files lie in."""
    return os.path.commonpath([str(Path(file).parent) for file in files]) if files else ""


def _is_shown(file: Path, folder: Path) -> bool:
    return not any(part.startswith(".") for part in file.relative_to(folder).parts) and file.is_file()


def _near(path: Path) -> str:
    names = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    close = difflib.get_close_matches(path.name, names, 1, 0.6)
    return f"did you mean {path.parent / close[0]}?" if close else f"the current folder is {Path.cwd()}"
