"""Turn what a dead Trainer's callback kept in memory into a regular checkpoint-N folder. Started by its own Python:

    python keep.py <<< '["SHARED_FILE", "FOLDER_OF_CHECKPOINTS", NEWER_THAN]'

It imports torch first and then reads its order, so one that waits loses no time; without an order it ends. Prints the folder's name;
nothing where there is no newer state. Everything is written with the torch that wrote the others, under a temporary name that is
given up last.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any


def main() -> int:
    from holdfast.callback import packed as _packed  # noqa: F401  (torch with it)

    if order := sys.stdin.readline():
        shared, place, newer_than = json.loads(order)
        keep(Path(shared), Path(place), newer_than)
    return 0


def keep(shared: Path, place: Path, newer_than: int) -> None:
    """Make the checkpoint and print its name; nothing where the state is of no later step. Raises OSError, ValueError."""
    from holdfast.callback.packed import unpack

    found = unpack(shared)
    if found is None or "pattern" not in found[0] or found[0]["step"] <= newer_than:
        return
    facts, tensors = found
    name = f"checkpoint-{facts['step']}"
    folder = place / f".holdfast-{name}"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        _write(folder, shared, facts, tensors)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)  # a full disk has no room for half of one
        raise
    folder.rename(place / name)
    _flush_folder(place)
    print(name)


def _write(folder: Path, shared: Path, facts: dict[str, Any], tensors: list[Any]) -> None:
    """Write all files of the checkpoint into a folder of its own, flushed."""
    from holdfast.callback.packed import back
    from holdfast.callback.shared import run_of
    from holdfast.callback.snapshot import WEIGHTS

    shutil.copytree(Path(run_of(shared), *Path(facts["pattern"]).parts[-3:]), folder)  # the run may have been fetched to another folder
    file = next(folder / name for name in WEIGHTS if (folder / name).exists())
    write_weights(file, dict(zip(facts["weights"], tensors, strict=False)))
    write_states(folder, {name: back(facts[name], tensors) for name in ("optimizer", "scheduler", "rng")})
    (folder / "trainer_state.json").write_text(facts["state"], encoding="utf-8")
    for one in folder.iterdir():
        if one.is_file():
            with one.open("rb") as handle:
                os.fsync(handle.fileno())
    _flush_folder(folder)


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_states(folder: Path, states: dict[str, Any]) -> None:
    """Write states as a Trainer does."""
    import torch

    names = {"optimizer": "optimizer.pt", "scheduler": "scheduler.pt", "rng": "rng_state.pth"}
    for name, state in states.items():
        if state is not None:
            torch.save(state, folder / names[name])


def write_weights(file: Path, values: dict[str, Any]) -> None:
    """Put new values into a safetensors file in place; its header stays as it was written."""
    import torch

    with file.open("r+b") as handle:
        length = int.from_bytes(handle.read(8), "little")
        header = json.loads(handle.read(length))
        for name, value in values.items():
            start, end = header[name]["data_offsets"]
            data = value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            if len(data) != end - start:
                raise ValueError(f"{name}: {len(data)} bytes for {end - start}")
            handle.seek(8 + length + start)
            handle.write(data)


def _know_holdfast() -> None:
    """Make our own package known by its file: the Python that runs this need not have it, and gets nothing else of ours."""
    package = Path(__file__).resolve().parents[1]
    spec = importlib.util.spec_from_file_location("holdfast", package / "__init__.py", submodule_search_locations=[str(package)])
    assert spec is not None and spec.loader is not None
    sys.modules["holdfast"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


if __name__ == "__main__":
    _know_holdfast()
    raise SystemExit(main())
