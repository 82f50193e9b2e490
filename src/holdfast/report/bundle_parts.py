"""Read what of a run folder can be shown to others, in bounded pieces, and pack texts into an archive. Judges and scrubs nothing.

Tensors, rows and texts a model made are no part of it.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from holdfast.base.files import replacing
from holdfast.base.safe_open import LARGEST_JSON, open_regular, read_small

LONGEST = 1 << 18  # bytes of one file; of a longer one its beginning and its end
_EDGE, _CUT = 1 << 14, "\0[...]\0"  # characters beside a cut, which stay until they are scrubbed; what stands for it
JOURNAL_HEAD, JOURNAL_TAIL = 20, 300  # rows
FIRST, NEWEST = 2, 12  # attempts, trials, checkpoints
_DAY = (1980, 1, 1, 0, 0, 0)
_OWN_NAME = "run.json"
_FILES = (  # pattern, how it is read, what it is
    ("config.yaml", "text", "the run's config, as resolved"),
    (_OWN_NAME, "text", "the run's own name"),
    ("machine.json", "text", "the machine when the run began"),
    ("plan.json", "text", "memory, steps and settings as planned"),
    ("timeline.jsonl", "rows", "which settings hold from which step on"),
    ("summary.json", "text", "how the run ended, in numbers"),
    ("data.json", "text", "what the check of the rows found, in numbers"),
    ("steps.jsonl", "rows", "the first and the last committed steps"),
    ("events.jsonl", "rows", "decisions and odd things, the first and the last"),
    ("readings.jsonl", "rows", "what the machine did, the first and the last readings"),
    ("evaluations.jsonl", "rows", "held-out losses"),
    ("quarantine.jsonl", "rows", "rows that are left out: file, line, reason"),
    ("supervisor.lock", "text", "who supervises the run, or did so last"),
    ("supervisor.log", "log", "what the supervisor said"),
    ("standby.json", "text", "what the standby was to start"),
    ("standby.log", "log", "what the standby said"),
    ("evaluation.log", "log", "what the proof said"),
    ("attempts/*/launch.json", "text", "command, variables and settings of a start"),
    ("attempts/*/*.json", "text", "how a start went and ended; its wreck and the diagnosis"),
    ("attempts/*/*.log", "log", "what the trainer printed: the relevant parts"),
    ("trials/*/*.json", "text", "a replay: request and outcome"),
    ("trials/*/*.log", "log", "what a replay printed: the relevant parts"),
    ("checkpoints/best.json", "text", "which state is the best"),
    ("checkpoints/*/manifest.json", "text", "files, sizes and hashes of a checkpoint"),
    ("adapter/adapter_config.json", "text", "the finished adapter's form"),
)


@dataclass(frozen=True)
class BundlePart:
    """One file of the archive. `note`: what of it is left out, or why it could not be read."""

    name: str
    what: str
    text: str
    note: str = ""


def read_parts(run: Path, relevant: Callable[[Path], tuple[str, str]]) -> Iterator[BundlePart]:
    """Yield the parts there are of the run, each file once. `relevant`: text and note of a log. Opens only regular files in the folder."""
    seen: set[Path] = set()
    found, unread = _walked(run)
    for pattern, how, what in _FILES:
        alike = [file for file in found if (at := file.relative_to(run)).match(pattern) and len(at.parts) == pattern.count("/") + 1]
        for file in _few(alike, run):
            if file in seen or file.is_symlink() or not file.is_file() or not file.resolve().is_relative_to(run.resolve()):
                continue
            seen.add(file)
            name = str(file.relative_to(run)).encode(errors="backslashreplace").decode()
            try:
                text, note = relevant(file) if how == "log" else _cut(read_small(file, LARGEST_JSON), how)
            except OSError as error:
                text, note = "", f"cannot be read: {error.strerror}"
            yield BundlePart(name, what, text, note)
    for name, why in unread.items():
        yield BundlePart(name.encode(errors="backslashreplace").decode(), "a folder", "", f"cannot be read: {why}")


def listing(run: Path) -> str:
    """List every file of the run with its size; only the names of what is not packed."""
    lines = []
    found, unread = _walked(run)
    for path in found:
        kind = "link" if path.is_symlink() else "" if path.is_file() else "folder" if path.is_dir() else "other"
        size = path.stat().st_size if not kind else 0
        lines.append(f"{kind or f'{size:,}':>16}  {path.relative_to(run)}")
    lines += [f"{'?':>16}  {name} cannot be read: {why}" for name, why in unread.items()]
    return ("\n".join(lines) + "\n").encode(errors="backslashreplace").decode()


def _walked(run: Path) -> tuple[list[Path], dict[str, str]]:
    """Return what is below a run, and why a folder in it could not be read, by its name. Follows no links."""
    unread: dict[str, str] = {}

    def note(error: OSError) -> None:
        if Path(error.filename) != run:
            unread[str(Path(error.filename).relative_to(run))] = error.strerror or str(error)

    return sorted(Path(folder, name) for folder, *inside in os.walk(run, onerror=note) for names in inside for name in names), unread


def write_archive(file: Path, folder: str, parts: list[BundlePart]) -> int:
    """Pack the parts below one folder, whole or not at all; return the archive's bytes. The same parts make the same archive."""
    with replacing(file) as handle, zipfile.ZipFile(handle, "w", zipfile.ZIP_DEFLATED) as archive:
        for part in parts:
            entry = zipfile.ZipInfo(f"{folder}/{part.name}", _DAY)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            archive.writestr(entry, part.text)
    return file.stat().st_size


def is_bundle_of(file: Path, folder: str, parts: list[BundlePart]) -> bool:
    """True if a file is an earlier archive of the run that `parts` are of: of its folder, and of its own name where it has one."""
    asked = {part.name: part.text for part in parts if part.name == _OWN_NAME}
    try:
        with open_regular(file) as handle, zipfile.ZipFile(handle) as archive:
            sizes = {entry.filename: entry.file_size for entry in archive.infolist()}
            if f"{folder}/CONTENTS.md" not in sizes:
                return False
            name = f"{folder}/{_OWN_NAME}"
            if not asked or sizes.get(name, LONGEST + 1) > LONGEST:
                return not asked and name not in sizes
            return archive.read(name) in (asked[_OWN_NAME].encode(), b"")  # none: its disk failed when it was made
    except (OSError, ValueError, RuntimeError, NotImplementedError, zipfile.BadZipFile, zlib.error):
        return False


def _few(files: list[Path], run: Path) -> list[Path]:
    """Keep the files of the first and the newest of numbered folders, and those in none."""
    folders = sorted({file.parent for file in files if file.parent.parent != run})
    kept = set(folders[:FIRST] + folders[-NEWEST:])
    return [file for file in files if file.parent in kept or file.parent.parent == run or file.parent == run]


def _cut(data: bytes, how: str) -> tuple[str, str]:
    """Return a file's text, and what of it is left out."""
    text = data.decode(errors="replace").replace("\0", "")
    if how == "rows":
        lines = text.splitlines(keepends=True)
        if len(lines) > JOURNAL_HEAD + JOURNAL_TAIL:
            text = "".join(lines[:JOURNAL_HEAD] + lines[-JOURNAL_TAIL:])
            return _shortened(text, f"rows {JOURNAL_HEAD + 1:,} to {len(lines) - JOURNAL_TAIL:,} of {len(lines):,} are left out")
    return _shortened(text, "")


def _shortened(text: str, note: str) -> tuple[str, str]:
    if len(text) <= LONGEST + 2 * _EDGE:
        return text, note
    half = LONGEST // 2 + _EDGE
    left = f"{len(text) - LONGEST:,} characters in the middle are left out"
    return f"{text[:half]}{_CUT}{text[-half:]}", f"{note}; {left}" if note else left


def without_edges(text: str) -> str:
    """Return a part's text without what stands beside its cut, once it is scrubbed: half a secret looks like none."""
    begin, cut, end = text.partition(_CUT)
    return f"{begin[:-_EDGE]}\n[...]\n{end[_EDGE:]}" if cut else text
