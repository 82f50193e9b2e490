"""`holdfast bundle RUN`: pack what one needs to understand a run into one archive, without secrets and personal names."""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import orjson
import yaml

from holdfast.base.errors import BLOCKED, DONE, USAGE, WRONG_VALUES, Stop, wrong_value
from holdfast.base.files import Json, read_json
from holdfast.base.inert import say
from holdfast.base.safe_open import open_regular
from holdfast.base.versions import __version__
from holdfast.base_model.folder import name_for_others
from holdfast.book import cards_of
from holdfast.diagnosis.explain import answer
from holdfast.diagnosis.logs.file import read_log
from holdfast.diagnosis.logs.sift import sift
from holdfast.machine.read import installed, read_machine
from holdfast.privacy.person import person
from holdfast.privacy.scrub import Person, Scrubber
from holdfast.privacy.suspects import Suspect, suspects
from holdfast.report.bundle_parts import BundlePart, is_bundle_of, listing, read_parts, without_edges, write_archive
from holdfast.report.pages import writing
from holdfast.run.attempt import read_launch_spec
from holdfast.run.folder import RunFolder
from holdfast.supervision.diagnose_run import diagnose_run
from holdfast.supervision.runs import chosen, entry
from holdfast.supervision.standing import look

EXAMPLE = "holdfast bundle runs/quickstart --out quickstart-bundle.zip"
_PACKAGES: tuple[str, ...] = (
    "torch",
    "nvidia-",
    "triton",
    "pytorch-triton",
    "rocm",
    "amdsmi",
    "transformers",
    "tokenizers",
    "peft",
    "accelerate",
)
_PACKAGES += ("safetensors", "datasets", "trl", "deepspeed", "bitsandbytes", "flash-attn", "xformers", "unsloth", "axolotl", "numpy")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_folder", type=Path, metavar="RUN", help="a run folder: running, finished, broken or half prepared")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the archive to write (default: NAME-bundle.zip here)")
    parser.add_argument("--json", action="store_true", help="print the archive's list as JSON")


def run(arguments: argparse.Namespace) -> tuple[int, Json]:
    """Write the bundle of a run, which is only read: a running run goes on undisturbed."""
    folder = RunFolder(arguments.run_folder.resolve())
    found = list(read_parts(folder.path, _relevant)) or list(read_parts(chosen(folder.path).path, _relevant))
    out = (arguments.out or Path(f"{folder.path.name}-bundle.zip")).resolve()
    if out.suffix.lower() not in ("", ".zip"):
        raise Stop(USAGE, f"{out.name}: a bundle is a zip archive, not {out.suffix}", f"--out {out.name.partition('.')[0] or 'bundle'}.zip")
    raw = [*found, *_made(folder)]
    scrubber = Scrubber(_person(folder, raw, os.environ))
    scrubbed = scrubber.text
    parts = [BundlePart(scrubbed(one.name), one.what, without_edges(scrubbed(one.text)), scrubbed(one.note)) for one in raw]
    name = scrubber.text(f"{folder.path.name}-bundle")
    taken = {kind: count for kind, count in sorted(scrubber.taken.items()) if count}
    unsure = suspects((part.name, part.text) for part in parts)
    if os.path.lexists(out) and not is_bundle_of(out, name, parts):
        raise Stop(BLOCKED, f"{out} exists, and is no earlier bundle of this run", "give another --out, or remove it first")
    parts.insert(0, BundlePart("CONTENTS.md", "this list", _contents(name, parts, taken)))
    with writing(out, "choose another place with --out FILE"):
        size = write_archive(out, name, parts)
    files = [{"name": part.name, "bytes": len(part.text.encode()), "what": part.what, "note": part.note} for part in parts]
    if not arguments.json:
        say("\n".join(_told(out, size, files, taken, unsure)))
    listed = [{"file": one.file, "line": one.line, "word": one.word} for one in unsure]
    return DONE, {"bundle": str(out), "bytes": size, "files": files, "scrubbed": taken, "unsure": listed}


def _relevant(log: Path) -> tuple[str, str]:
    """Return a log's ends and what stands around trouble, as `diagnose` reads it, and a note of what was left out."""
    with open_regular(log) as stream:
        lines = read_log(stream)
    kept = sift(lines)
    last = lines[-1].number if lines else 0
    note = f"{len(kept):,} of {last:,} lines: the ends, and what stands around trouble" if len(kept) < len(lines) else ""
    return "".join(f"{line.number}: {line.text}\n" if note else f"{line.text}\n" for line in kept), note


def _made(folder: RunFolder) -> Iterator[BundlePart]:
    """Yield what is found out now: the state, the diagnosis, this machine."""
    yield _judged("status.json", "state of the run now", lambda: entry(look(folder)))
    yield _judged("diagnosis.json", "what `holdfast diagnose` says of the run", lambda: _diagnosis(folder))
    yield _judged("machine-now.json", "this machine now, without asking torch", lambda: read_machine(folder.path, ask_torch=False))
    known = [f"{name}=={version}" for name, version in sorted(installed().items()) if name.startswith(_PACKAGES)]
    head = f"holdfast=={__version__}\npython=={platform.python_version()}\n"
    yield BundlePart("versions.txt", "versions of holdfast, Python and the packages that matter", head + "\n".join(known) + "\n")
    yield BundlePart("files.txt", "every file of the run with its size", listing(folder.path))


def _judged(name: str, what: str, ask: Callable[[], Json]) -> BundlePart:
    """Return one answer as JSON; of a folder that is too broken for it, why."""
    try:
        return BundlePart(name, what, orjson.dumps(ask(), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE).decode())
    except (OSError, yaml.YAMLError, *WRONG_VALUES) as error:
        return BundlePart(name, what, "", wrong_value("the folder", error))


def _diagnosis(folder: RunFolder) -> Json:
    cards = cards_of("failures")
    found, attempts = diagnose_run(folder, cards)
    return answer(found, cards) | {"attempts": attempts}


def _person(folder: RunFolder, parts: list[BundlePart], environment: Mapping[str, str]) -> Person:
    """Collect whose traces are to go: this user, this machine, and those the run's own files name, be they of another place."""
    holder = read_json(folder.supervisor_lock) or {}
    base = (read_json(folder.adapter / "adapter_config.json") or {}).get("base_model_name_or_path")
    paths = {base: name_for_others(base)} if isinstance(base, str) and name_for_others(base) != base else {}
    for number in folder.attempts():
        orders = read_launch_spec(folder.attempt(number))
        lock = orders.trainer_lock if orders else None
        if isinstance(lock, str):
            paths[str(Path(lock).parent)] = "RUN"
    paths |= {str(holder.get("folder") or Path.cwd()): "FOLDER", str(folder.path): "RUN"}
    return person((part.text for part in parts), environment, paths, [str(holder.get("host") or "")])


def _contents(name: str, parts: list[BundlePart], taken: dict[str, int]) -> str:
    lines = [f"# {name}", "", f"Made by `holdfast bundle` {__version__}. Nothing else is in this archive.", ""]
    lines += ["| file | bytes | what |", "|---|---|---|"]
    for part in parts:
        lines.append(f"| {part.name} | {len(part.text.encode()):,} | {part.what}{f' ({part.note})' if part.note else ''} |")
    words = ", ".join(f"{count} x {kind}" for kind, count in taken.items()) or "nothing"
    lines += ["", f"Taken out and replaced by a word in brackets, `RUN`, `FOLDER`, `~` or the base model's name: {words}.", ""]
    lines += ["Left out on purpose: weights, rows, rejected rows, and what models wrote in the proof.", ""]
    return "\n".join(lines)


def _told(out: Path, size: int, files: list[Json], taken: dict[str, int], unsure: list[Suspect]) -> list[str]:
    lines = [f"{entry['bytes']:>10,}  {entry['name']}{'  (' + entry['note'] + ')' if entry['note'] else ''}" for entry in files]
    words = ", ".join(f"{count} x {kind}" for kind, count in taken.items()) or "nothing"
    lines += ["", f"taken out: {words}"]
    if unsure:
        lines.append("! still in it, and perhaps secrets; look at them before you show it to anybody:")
        lines += [f"    {one.file}:{one.line}: {one.masked}" for one in unsure]
    lines += [f"{out}: {size:,} bytes, {len(files)} files; look into CONTENTS.md, then attach it to an issue"]
    return lines
