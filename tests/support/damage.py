"""Make good files and folders bad, from a seed: what people receive, what a disk tears, what somebody plants."""

from __future__ import annotations

import copy
import json
import os
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import yaml

WILD: tuple[Any, ...] = (
    *(None, True, 0, -1, 1, 2**31, 2**63 - 1, 10**40, -0.5, 1e308, float("nan"), float("inf")),
    *("", "x", "\x1b[2J\x1b]0;t\x07", "\u202eabc", "\ud800", "../../etc/passwd", "/dev/zero", "a\nb", "x" * 5000, "NaN", "0x10"),
    *([], {}, [None], [[]], [{}], {"": None}, {"a": {"b": []}}, ["x"] * 300, [1, "a", None]),
)
LINES = (b"null\n", b"[]\n", b"7\n", b'"x"\n', b"{}\n", b"{\n", b"\xff\xfe\n", b"\0\n", b"[" * 5000 + b"\n", b"x" * 100_000 + b"\n")


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a tree of mappings and lists, the root first."""
    found = [path]
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        found += places(child, (*path, key))
    return found


def mutated(value: Any, rng: random.Random) -> Any:
    """The tree with one to three of its values replaced, removed, renamed or repeated."""
    tree = json.loads(json.dumps(value))
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        at = rng.choice(places(tree))
        if not at:
            return copy.deepcopy(rng.choice(WILD)) if rng.random() < 0.1 else tree
        holder = tree
        try:
            for key in at[:-1]:
                holder = holder[key]
            old = holder[at[-1]]
        except (KeyError, IndexError, TypeError):
            continue
        act = rng.random()
        if act < 0.2:
            del holder[at[-1]]
        elif act < 0.3 and isinstance(holder, dict):
            holder[rng.choice(["", "x", "steps", "__proto__", "a b"])] = holder.pop(at[-1])
        elif act < 0.45 and isinstance(old, (int, float)):
            holder[at[-1]] = rng.choice([-old, old * 10**6, old + 0.5, str(old), [old]])
        else:
            holder[at[-1]] = copy.deepcopy(rng.choice(WILD))
    return tree


def as_json(tree: Any) -> bytes:
    return json.dumps(tree).encode("utf-8", "surrogatepass")


def torn(data: bytes, rng: random.Random) -> bytes:
    """The bytes as a disk, a download or a stranger may leave them."""
    act = rng.randrange(7)
    if act == 0:
        return data[: rng.randrange(len(data) + 1)]
    if act == 1:
        changed = bytearray(data or b"\0")
        for _ in range(rng.randrange(1, 20)):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        return bytes(changed)
    if act == 2:
        return rng.choice(LINES)
    if act == 3:
        at = rng.randrange(len(data) + 1)
        return data[:at] + rng.choice(LINES) + data[at:]
    if act == 4:
        return data + data[: rng.randrange(len(data) + 1)]
    if act == 5:
        return b"\0" * len(data)
    return b"" if rng.random() < 0.5 else data[::-1]


def replaced(file: Path, data: bytes) -> None:
    file.unlink(missing_ok=True)  # it may be a second name of a good one
    file.write_bytes(data)


def spoil(file: Path, rng: random.Random) -> str:
    """Damage one file in place; what was done."""
    act = rng.random()
    if act < 0.08:
        return planted(file, rng)
    data = file.read_bytes()
    if act < 0.3:
        replaced(file, torn(data, rng))
        return f"{file.name} torn"
    if file.suffix == ".jsonl":
        lines = data.splitlines()
        if lines:
            number = rng.randrange(len(lines))
            try:
                lines[number] = as_json(mutated(orjson.loads(lines[number]), rng))
            except orjson.JSONDecodeError:
                lines[number] = rng.choice(LINES).strip()
        replaced(file, b"\n".join(lines) + b"\n")
    elif file.suffix == ".yaml":
        try:
            tree = yaml.safe_load(data)
        except (yaml.YAMLError, ValueError):  # it was torn before
            replaced(file, torn(data, rng))
        else:
            replaced(file, yaml.safe_dump(mutated(tree, rng), allow_unicode=False).encode("utf-8", "surrogatepass"))
    elif file.suffix == ".safetensors":
        replaced(file, mutated_tensors(data, rng))
    else:
        try:
            replaced(file, as_json(mutated(orjson.loads(data), rng)))
        except orjson.JSONDecodeError:
            replaced(file, torn(data, rng))
    return f"{file.name} changed"


def planted(file: Path, rng: random.Random) -> str:
    """Something that is no file in a file's place."""
    kind = rng.choice(["folder", "pipe", "loop", "/dev/zero", "/etc/passwd", "dangling", "gone", "unreadable"])
    if kind == "unreadable":
        data = file.read_bytes()
        replaced(file, data)
        file.chmod(0)
        return f"{file.name} is {kind}"
    file.unlink()
    if kind == "folder":
        file.mkdir()
    elif kind == "pipe":
        os.mkfifo(file)
    elif kind == "loop":
        file.symlink_to(file.name)
    elif kind != "gone":
        file.symlink_to(kind)
    return f"{file.name} is {kind}"


def mutated_tensors(data: bytes, rng: random.Random) -> bytes:
    """A safetensors file with another header, or another length of it."""
    if len(data) < 8:  # it was torn before
        return torn(data, rng)
    (length,) = struct.unpack("<Q", data[:8])
    if rng.random() < 0.2:
        return struct.pack("<Q", rng.choice([0, 1, max(length, 1) - 1, min(length, 2**63) + 1, 2**40, 2**64 - 1])) + data[8:]
    try:
        header = as_json(mutated(orjson.loads(data[8 : 8 + length]), rng))
    except orjson.JSONDecodeError:
        return torn(data, rng)
    return struct.pack("<Q", len(header)) + header + data[8 + length :]


def copied(folder: Path, to: Path) -> Path:
    """The folder again, its files as second names of the same bytes: `spoil` gives what it changes bytes of its own."""
    return shutil.copytree(folder, to, copy_function=os.link, symlinks=True)


def spoil_some(folder: Path, rng: random.Random, wanted: Callable[[Path], bool] = lambda _: True) -> str:
    """Damage one file of a folder, or a few."""
    done = []
    for _ in range(rng.choice([1, 1, 1, 1, 2, 4])):
        files = [file for file in sorted(folder.rglob("*")) if file.is_file() and not file.is_symlink() and wanted(file)]
        if files:
            done.append(spoil(rng.choice(files), rng))
    return "; ".join(done)
