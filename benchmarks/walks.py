"""Through which files of holdfast a command goes, and how often it opens what it reads: preparing a run, and an export.

python benchmarks/walks.py train CONFIG          until the first trainer would be started
python benchmarks/walks.py export RUN [merged]   of a finished run

A call from one file into another is an arrow; it climbs where it leads to a file that is further from the ground, which imports none.
"""

from __future__ import annotations

import ast
import collections
import functools
import shutil
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any

import holdfast
from holdfast.cli.commands import train
from holdfast.cli.main import main

_ROOT = Path(holdfast.__file__).parent
_SOURCES = (".safetensors", ".json", ".jinja", ".yaml", ".jsonl")


@functools.cache
def _floor(file: str) -> int:
    """Return how far a file is from the ground, by what it imports at its head."""
    below = [0]
    for node in ast.parse(Path(file).read_text()).body:
        for name in [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)] if isinstance(node, ast.ImportFrom) else []:
            place = _ROOT.parent / str(name).replace(".", "/")
            below += [_floor(str(one)) for one in (place.with_suffix(".py"),) if one.is_file()]
    return 1 + max(below)


def walk(words: list[str]) -> None:
    arrows, opened = collections.Counter[tuple[str, str]](), collections.Counter[str]()

    def step(frame: FrameType, event: str, _: Any) -> None:
        to, back = frame.f_code.co_filename, frame.f_back
        if event == "call" and to.startswith(str(_ROOT)) and back and (caller := back.f_code.co_filename) != to:
            arrows[caller, to] += caller.startswith(str(_ROOT))

    def opens(event: str, given: tuple[Any, ...]) -> None:
        if event == "open" and str(given[0]).endswith(_SOURCES) and not (isinstance(given[2], int) and given[2] & 3):
            opened["/".join(Path(str(given[0])).parts[-2:])] += 1

    sys.addaudithook(opens)
    sys.setprofile(step)
    code = main(words)
    sys.setprofile(None)
    ours = {arrow: count for arrow, count in arrows.items() if count}
    up = sum(_floor(to) > _floor(caller) for caller, to in ours)
    files = {file for arrow in ours for file in arrow}
    weights = sum(count for name, count in opened.items() if name.endswith(".safetensors"))
    again = {name: count for name, count in opened.most_common() if count > 1 and not name.endswith(".safetensors")}
    print(f"exit code {code}: {len(files)} files, {len(ours)} arrows, {up} of them climb; weights opened {weights} times, by stretches;")
    told = ", ".join(f"{name} x{count}" for name, count in again.items())
    print(f"other files {opened.total() - weights} times, {sum(again.values()) - len(again)} of these again: {told}")


if __name__ == "__main__":
    what, place, *kind = sys.argv[1:]
    folder = Path(tempfile.mkdtemp(prefix="holdfast-walks-"))
    if what == "train":
        train.run_to_end = lambda *_: (0, {})  # type: ignore[assignment]
        walk(["train", place, "--run", str(folder / "run"), "--quiet"])
    else:
        walk(["export", place, "--to", kind[0] if kind else "merged", "--out", str(folder / "out")])
    shutil.rmtree(folder)
