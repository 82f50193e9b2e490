"""Durable checkpoints: whole or absent, checked before they are used. safetensors and JSON only; nothing here needs torch."""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import orjson

from holdfast.base.files import Json, fsync_folder, read_json, sha256, write_bytes, write_json
from holdfast.config.config import Save
from holdfast.run.artifact import CONFIGS, WEIGHTS, Artifact
from holdfast.run.evaluations import best_of, read_evaluations
from holdfast.run.folder import RunFolder
from holdfast.run.snapshots.memory_file import Snapshot
from holdfast.run.snapshots.pieces import Image, ShardedState, stretches

STATE = "state.safetensors"
MANIFEST = "manifest.json"
BEST = "best.json"
HELD = "held.json"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose every byte was checked against its manifest."""

    folder: Path
    step: int
    meta: Json
    artifact_sha256: str
    kind: str = "adapter"
    partial: bool = False

    def mapped(self) -> Snapshot:
        """Return the same as `snapshot`, but left in its files, of which a rank that holds pieces reads some."""
        artifact, state = _mapped(self.folder / WEIGHTS[self.kind]), _mapped(self.folder / STATE)
        return Snapshot(self.step, 0, self.meta, artifact, state)

    def snapshot(self) -> Snapshot:
        return Snapshot(self.step, 0, self.meta, (self.folder / WEIGHTS[self.kind]).read_bytes(), (self.folder / STATE).read_bytes())


def checkpoint_name(step: int) -> str:
    return f"step-{step:08d}"


def _mapped(file: Path) -> bytes:
    with file.open("rb") as handle:
        return mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)  # type: ignore[return-value]  # read like bytes


def stage_checkpoint(run: RunFolder, snapshot: Snapshot | ShardedState, artifact: Artifact) -> Path:
    """Write a checkpoint's files under a temporary name, the manifest last, all flushed to disk. Raises OSError."""
    run.checkpoints.mkdir(exist_ok=True)
    folder = run.checkpoints / f".{checkpoint_name(snapshot.step)}.{os.getpid()}.tmp"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    config = orjson.dumps(artifact.config, option=orjson.OPT_INDENT_2)
    files: dict[str, Image] = {artifact.weights_name: snapshot.artifact, artifact.config_name: config, STATE: snapshot.state}
    digests = {}
    for name, data in files.items():
        digest = hashlib.sha256()
        with (folder / name).open("wb") as handle:
            for stretch in stretches(data):
                handle.write(stretch)
                digest.update(stretch)
            handle.flush()
            os.fsync(handle.fileno())
        digests[name] = digest.hexdigest()
    manifest = {
        "run": run.id(),
        "step": snapshot.step,
        "artifact": {"kind": artifact.kind, "partial": artifact.partial},
        "files": {name: {"bytes": len(data), "sha256": digests[name]} for name, data in files.items()},
        "meta": snapshot.meta,
    }
    write_bytes(folder / MANIFEST, orjson.dumps(manifest, option=orjson.OPT_INDENT_2))
    return folder


def publish_checkpoint(run: RunFolder, staged: Path, step: int) -> Path:
    """Rename a staged checkpoint to its name; one that stands there already is kept when it is whole, else replaced.

    The rows of its steps are on the disk before it is: without them it could not be gone on from after a power cut. Raises OSError.
    """
    run.flush_journals()
    final = run.checkpoints / checkpoint_name(step)
    if final.exists():
        if problem(final, run.id()) is None:
            shutil.rmtree(staged)
            return final
        aside = staged.with_suffix(".broken")
        final.rename(aside)
        staged.rename(final)
        shutil.rmtree(aside, ignore_errors=True)
    else:
        staged.rename(final)
    fsync_folder(run.checkpoints)
    return final


def save_checkpoint(run: RunFolder, snapshot: Snapshot | ShardedState, artifact: Artifact, keep: Save) -> Path:
    """Make a snapshot durable and remove checkpoints that need not be kept. Raises OSError; nothing half-made is left."""
    try:
        staged = stage_checkpoint(run, snapshot, artifact)
    except OSError:
        clear_staging(run)
        raise
    final = publish_checkpoint(run, staged, snapshot.step)
    prune(run, keep)
    return final


def clear_staging(run: RunFolder) -> None:
    """Remove what interrupted saves left. Only the holder of the writer's lock may call this."""
    with contextlib.suppress(FileNotFoundError):
        for entry in run.checkpoints.iterdir():
            if entry.name.startswith("."):
                shutil.rmtree(entry, ignore_errors=True)


def checkpoint_steps(run: RunFolder) -> list[int]:
    """Return the steps of all checkpoint folders, oldest first, whether or not they are whole."""
    if not run.checkpoints.is_dir():
        return []
    return sorted(int(entry.name[5:]) for entry in run.checkpoints.iterdir() if entry.name.startswith("step-") and entry.name[5:].isdigit())


def prune(run: RunFolder, keep: Save) -> None:
    """Remove checkpoints, all but the newest, those kept for good, the best by held-out loss (named by best.json) and one that is held."""
    steps = checkpoint_steps(run)
    held = held_step(run, steps)
    best = best_of(row for row in read_evaluations(run) if row["step"] in steps)
    for step in steps[: -keep.keep]:
        for_good = keep.keep_every is not None and step % keep.keep_every == 0
        if not for_good and step != held and (best is None or step != best["step"]):
            shutil.rmtree(run.checkpoints / checkpoint_name(step), ignore_errors=True)
    if best is not None:
        name = {"checkpoint": checkpoint_name(best["step"]), "step": best["step"], "loss": best["loss"]}
        if read_json(run.checkpoints / BEST) != name:
            write_json(run.checkpoints / BEST, name)


def hold_until(run: RunFolder, step: int | None) -> None:
    """Have the newest checkpoint of `step` or before it kept while a run's course is in doubt; None: no longer."""
    file = run.checkpoints / HELD
    if step is None:
        file.unlink(missing_ok=True)
    elif read_json(file) != {"step": step}:
        run.checkpoints.mkdir(exist_ok=True)
        write_json(file, {"step": step}, durable=False)


def held_step(run: RunFolder, steps: list[int]) -> int | None:
    """Return the step of the checkpoint that is held; None where none is."""
    held = read_json(run.checkpoints / HELD)
    return max((step for step in steps if step <= held["step"]), default=None) if held else None


def problem(folder: Path, run_id: str) -> str | None:
    """Return what is wrong with a checkpoint, or None when every byte is as its manifest says."""
    manifest = read_json(folder / MANIFEST)
    if manifest is None:
        return "its manifest is missing or unreadable"
    if manifest.get("run") != run_id:
        return "it belongs to another run"
    if manifest.get("step") != int(folder.name[5:]):
        return f"its manifest is of step {manifest.get('step')}"
    files = manifest.get("files")
    kind, _ = _kind_of(manifest)
    if not isinstance(files, dict) or kind not in WEIGHTS or {WEIGHTS[kind], CONFIGS[kind], STATE} - set(files):
        return "its manifest does not list every file"
    for name, facts in files.items():
        try:
            size = (folder / name).stat().st_size
            if size != facts["bytes"]:
                return f"{name} has {size} bytes, its manifest says {facts['bytes']}"
            if sha256(folder / name) != facts["sha256"]:
                return f"{name} does not match its SHA-256"
        except OSError as error:
            return f"{name} cannot be read ({error.strerror})"
    return None


def _kind_of(manifest: Json) -> tuple[str, bool]:
    """Return what a checkpoint holds of the artifact; a manifest from before there was another kind means an adapter."""
    facts: Json = manifest.get("artifact") or {"kind": "adapter"}
    return facts["kind"], bool(facts.get("partial"))


def newest_valid(run: RunFolder) -> tuple[Checkpoint | None, list[Json]]:
    """Return the newest checkpoint that verifies, and those passed over on the way: {checkpoint, reason} each."""
    return next_valid(run, checkpoint_steps(run))


def next_valid(run: RunFolder, steps: list[int]) -> tuple[Checkpoint | None, list[Json]]:
    """Return the same as `newest_valid`, among the checkpoints of the given steps (ascending)."""
    passed_over: list[Json] = []
    run_id = run.id()
    for step in reversed(steps):
        folder = run.checkpoints / checkpoint_name(step)
        reason = problem(folder, run_id)
        if reason is None:
            return unverified(run, step), passed_over
        passed_over.append({"checkpoint": folder.name, "reason": reason})
    return None, passed_over


def unverified(run: RunFolder, step: int) -> Checkpoint:
    """Return the checkpoint of a step that is known to have verified."""
    folder = run.checkpoints / checkpoint_name(step)
    manifest = read_json(folder / MANIFEST) or {}
    kind, partial = _kind_of(manifest)
    return Checkpoint(folder, step, manifest["meta"], manifest["files"][WEIGHTS[kind]]["sha256"], kind, partial)
