"""A run's state at another place: `states/step-N.json` lists its files by hash, `blobs/SHA256` holds each once. Whole or absent.

A manifest is written last, and only of blobs that are there; a reader checks every byte against it before it uses any. So an upload that
ends in the middle leaves blobs nobody names, and a place that shows files late shows an older state.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import orjson

from holdfast.base.disk import flush_tree
from holdfast.base.errors import BLOCKED, Stop
from holdfast.base.files import Json, fsync_folder, read_json, sha256
from holdfast.base.safe_open import read_small
from holdfast.run.artifact import KINDS
from holdfast.run.folder import RunFolder
from holdfast.run.snapshots.checkpoint import MANIFEST, checkpoint_name, checkpoint_steps
from holdfast.supervision.remote.targets import Target

_STATE = re.compile(r"step-(\d{8,12})\.json")
_HASH = re.compile(r"[0-9a-f]{64}")
_JOURNALS = (
    *("steps.jsonl", "events.jsonl", "evaluations.jsonl", "timeline.jsonl", "quarantine.jsonl", "rejects.jsonl"),
    *("progress.jsonl", "told.jsonl"),
)
_WHOLE = (
    "run.json",
    "command.json",
    "stdin",
    "config.yaml",
    "machine.json",
    "plan.json",
    "data.json",
    "frozen.json",
    "summary.json",
    "evaluation.json",
    "report.html",
)
_LARGE = ("data.safetensors", "start_adapter.safetensors")
_FOLDERS = (*KINDS, "rollbacks", "attempts")
_CHECKPOINTS = ("checkpoints", "memory")  # memory: of a command's callback
_SMALL_BYTES = 4 << 20  # of a file under attempts/ that goes along: what ended each one, not gigabytes of log
_TRIES = 3  # at files that the writer takes away meanwhile
_FORMAT = 1


@dataclass(frozen=True)
class Sent:
    """A state that is at the other place: its step, bytes of all its files, and of those that were not there before."""

    step: int
    files: int
    bytes: int
    new_bytes: int
    seconds: float


@dataclass
class Sender:
    """Brings states of one run to one place. It remembers hashes of files that have not changed."""

    run: RunFolder
    target: Target
    hashes: dict[tuple[str, int, int], str] = field(default_factory=dict)
    there: set[str] = field(default_factory=set)

    def newest(self, last: bool) -> tuple[int, object] | None:
        """Return what is to be sent, (step, identity), or None where there is nothing. last: at the end of the run."""
        steps = checkpoint_steps(self.run)
        return (steps[-1], self.run.summary_file.exists()) if steps else None

    def marked(self, sent: Sent, newest: tuple[int, object]) -> tuple[int, object]:
        """Return what `newest` gives while there is nothing newer than what was sent."""
        return sent.step, newest[1]

    def send(self, keep: int = 3) -> Sent | None:
        """Send the newest checkpoint with all that a start needs beside it; None where there is none. Raises OSError and Stop(1)."""
        began = time.monotonic()
        self._refuse_other_run()
        for left in reversed(range(_TRIES)):
            try:
                found = self._files()
                if found is None:
                    return None
                step, files = found
                sizes = {name: self._blob(source) for name, source in files}
                break
            except FileNotFoundError:  # pruned meanwhile; what is newer is there by now
                if not left:
                    raise
        new = sum(size for _, size, fresh in sizes.values() if fresh)
        listed = {name: {"sha256": digest, "bytes": size} for name, (digest, size, _) in sizes.items()}
        manifest = {
            "format": _FORMAT,
            "run": self.run.id(),
            "step": step,
            "host": platform.node(),
            "time": round(time.time(), 3),
            "files": listed,
        }
        self.target.put(f"states/{checkpoint_name(step)}.json", orjson.dumps(manifest))
        self._prune(keep, manifest)
        return Sent(step, len(listed), sum(size for _, size, _ in sizes.values()), new, time.monotonic() - began)

    def _refuse_other_run(self) -> None:
        other = read_run_id(self.target)
        if other is None:
            self.target.put("run.json", orjson.dumps({"id": self.run.id(), "name": self.run.path.name}))
        elif other != self.run.id():
            text = f"{self.target.address} holds another run ({other[:12]}, this is {self.run.id()[:12]})"
            raise Stop(BLOCKED, text, "give each run a place of its own, for example with its name at the end of the address")

    def _files(self) -> tuple[int, list[tuple[str, Path | bytes]]] | None:
        """Return (step of the newest whole checkpoint, a state's files): checkpoints first, so that no journal is behind them."""
        whole = [step for step in checkpoint_steps(self.run) if self._is_whole(self.run.checkpoints / checkpoint_name(step))]
        if not whole:
            return None
        files: list[tuple[str, Path | bytes]] = []
        for step in whole:
            files += self._under(self.run.checkpoints / checkpoint_name(step))
        files += [(name, self.run.path / name) for name in _LARGE if (self.run.path / name).is_file()]
        return whole[-1], [*files, *self._journals()]

    def _journals(self) -> list[tuple[str, Path | bytes]]:
        """Return the files that tell of the run beside its state."""
        files: list[tuple[str, Path | bytes]] = []
        for folder in _FOLDERS:
            most = _SMALL_BYTES if folder == "attempts" else None
            files += self._under(self.run.path / folder, most)
        files += [(name, read_small(self.run.path / name, 1 << 30)) for name in _WHOLE if (self.run.path / name).is_file()]
        for name in _JOURNALS:
            if (self.run.path / name).is_file():
                text = read_small(self.run.path / name, 1 << 40)
                files.append((name, text[: text.rfind(b"\n") + 1]))
        return files

    def _under(self, folder: Path, most_bytes: int | None = None) -> Iterator[tuple[str, Path | bytes]]:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not path.is_symlink() and (most_bytes is None or path.stat().st_size <= most_bytes):
                yield path.relative_to(self.run.path).as_posix(), path

    def _is_whole(self, folder: Path) -> bool:
        """True if a checkpoint's files are those of its manifest. Neither a damaged one nor another run's is sent. Raises OSError."""
        manifest = read_json(folder / MANIFEST) or {}
        try:
            files = manifest["files"].items()
            return manifest["run"] == self.run.id() and all(self._hash(folder / name) == facts["sha256"] for name, facts in files)
        except (FileNotFoundError, KeyError, TypeError):  # not a disk that fails: an older state would be sent for the newest
            return False

    def _hash(self, path: Path) -> str:
        facts = path.stat()
        key = (str(path), facts.st_size, facts.st_mtime_ns)
        if key not in self.hashes:
            self.hashes[key] = sha256(path)
        return self.hashes[key]

    def _blob(self, source: Path | bytes) -> tuple[str, int, bool]:
        """Have a file's bytes at the other place: (hash, size, whether they had to be sent)."""
        digest = hashlib.sha256(source).hexdigest() if isinstance(source, bytes) else self._hash(source)
        size = len(source) if isinstance(source, bytes) else source.stat().st_size
        fresh = digest not in self.there and self.target.size(f"blobs/{digest}") != size
        if fresh:
            self.target.put(f"blobs/{digest}", source)
        self.there.add(digest)
        return digest, size, fresh

    def _prune(self, keep: int, newest: Json) -> None:
        """Remove states but the newest `keep` of those that were not taken back, and blobs that none of these names."""
        steps = states_at(self.target)
        kept = [step for step in steps if step <= newest["step"] or not taken_back(self.run, self.target, step)][-keep:]
        named = {facts["sha256"] for facts in newest["files"].values()}
        for step in kept:
            if step != newest["step"] and (manifest := _manifest(self.target, step)):
                named |= {facts["sha256"] for facts in manifest["files"].values()}
        for step in sorted({*steps} - {*kept}):
            self.target.remove(f"states/{checkpoint_name(step)}.json")
        for name in self.target.names("blobs"):
            if name not in named and _HASH.fullmatch(name):
                self.target.remove(f"blobs/{name}")
                self.there.discard(name)


def read_run_id(target: Target) -> str | None:
    """Return the id of the run whose states are at a place; None where there is none."""
    if target.size("run.json") is None:
        return None
    try:
        value = orjson.loads(target.read("run.json"))["id"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return None
    return value if isinstance(value, str) else None


def states_at(target: Target) -> list[int]:
    """Return the steps of the states at a place, oldest first, whether or not they are whole."""
    return sorted(int(found[1]) for name in target.names("states") if (found := _STATE.fullmatch(name)))


def taken_back(run: RunFolder, target: Target, step: int) -> bool:
    """True if a rollback of the run here has taken back the step of a state there since that was sent."""
    rolled_back = [event["time"] for event in run.events() if event["event"] == "rolled_back" and event["to"] < step]
    return bool(rolled_back) and float((_manifest(target, step) or {}).get("time") or 0.0) < rolled_back[-1]


def is_of_here(target: Target, step: int) -> bool:
    """True if this machine has sent the state there."""
    return (_manifest(target, step) or {}).get("host") == platform.node()


def fetch(target: Target, path: Path) -> tuple[int, list[Json]]:
    """Make `path` the run folder of the newest state that verifies; (its step, those passed over: {state, reason} each).

    Nothing is at `path` before all of it is. Raises Stop(1) where no state can be used, OSError where the place or the disk fails.
    """
    passed_over: list[Json] = []
    for step in reversed(states_at(target)):
        staging = path.with_name(f".{path.name}.fetched.{os.getpid()}")
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(mode=0o700, parents=True)
        try:
            manifest = _manifest(target, step)
            if manifest is None:
                raise ValueError("its list of files cannot be read")
            for name, facts in manifest["files"].items():
                _fetch_one(target, staging, name, facts)
        except (ValueError, FileNotFoundError) as error:
            passed_over.append({"state": step, "reason": str(error)})
            shutil.rmtree(staging, ignore_errors=True)
            continue
        except BaseException:
            shutil.rmtree(staging, ignore_errors=True)
            raise
        flush_tree(staging)
        staging.rename(path)
        fsync_folder(path.parent)
        return step, passed_over
    why = "; ".join(f"step {one['state']}: {one['reason']}" for one in passed_over) or "there is none"
    raise Stop(BLOCKED, f"no state of a run at {target.address} can be used ({why})", "look at the address, and at what wrote there last")


def _manifest(target: Target, step: int) -> Json | None:
    """Return a state's list of files, where it is one and names nothing outside of a run folder."""
    try:
        value: Any = orjson.loads(target.read(f"states/{checkpoint_name(step)}.json"))
        right = value["format"] == _FORMAT and value["step"] == step and all(map(_is_listed, value["files"].items()))
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError, FileNotFoundError):
        return None
    return value if right else None


def _is_listed(entry: tuple[Any, Any]) -> bool:
    name, facts = entry
    path = PurePosixPath(name)
    inside = not path.is_absolute() and ".." not in path.parts and bool(path.parts) and "\x00" not in name and "\\" not in name
    first = path.parts[0] if path.parts else ""
    known = name in (*_JOURNALS, *_WHOLE, *_LARGE) or (first in (*_FOLDERS, *_CHECKPOINTS) and len(path.parts) > 1)
    return inside and known and bool(_HASH.fullmatch(facts["sha256"])) and isinstance(facts["bytes"], int)


def _fetch_one(target: Target, staging: Path, name: str, facts: Json) -> None:
    """Copy a file and check it. Raises ValueError where it is not what its manifest says."""
    path = staging / name
    path.parent.mkdir(parents=True, exist_ok=True)
    target.get(f"blobs/{facts['sha256']}", path)
    if path.stat().st_size != facts["bytes"] or sha256(path) != facts["sha256"]:
        raise ValueError(f"{name} is not what its list says: {path.stat().st_size:,} bytes of {facts['bytes']:,}, or another content")
