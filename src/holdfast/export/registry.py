"""What was shipped: a journal of exports, verdicts and promotions, and the list it adds up to. Files alone; no server, no weights."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from holdfast.base.disk import make_folders
from holdfast.base.errors import BLOCKED, USAGE, Stop, damaged
from holdfast.base.file_errors import file_error
from holdfast.base.files import Json, append_line, cut_torn_line, read_lines
from holdfast.base.locks import hold

JOURNAL = "models.jsonl"
_OF_VERSION = ("name", "version", "run", "base", "adapter_sha256", "behaviour_sha256", "data_sha256")


def registry_file(environment: Mapping[str, str]) -> Path:
    """Return the path of the registry: HOLDFAST_MODELS, else runs/models.jsonl here."""
    own = environment.get("HOLDFAST_MODELS")
    return Path(own).expanduser().absolute() if own else Path.cwd() / "runs" / JOURNAL


class _Entry(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")
    name: str
    version: int


class _ArtifactEntry(_Entry):
    run: str | None
    base: str
    adapter_sha256: str
    behaviour_sha256: str | None = None
    data_sha256: str | None


class _ExportEntry(_ArtifactEntry):
    event: Literal["exported"]
    kind: str
    path: str
    files: list[Json]


class _VerdictEntry(_ArtifactEntry):
    event: Literal["verified"]
    against: str | None
    verdict: str
    general: str | None = None


class _PlaceEntry(_Entry):
    event: Literal["promoted", "rolled_back", "withdrawn"]


_ENTRY: TypeAdapter[_ExportEntry | _VerdictEntry | _PlaceEntry] = TypeAdapter(
    Annotated[_ExportEntry | _VerdictEntry | _PlaceEntry, Field(discriminator="event")]
)


@dataclass
class Version:
    """One adapter under one name.

    verdicts: the newest against each adapter it was compared with, None being the base; general: on general rows, where it was said.
    """

    facts: Json
    promoted: bool = False
    exports: list[Json] = field(default_factory=list)
    verdicts: dict[str | None, str] = field(default_factory=dict)
    general: dict[str | None, str | None] = field(default_factory=dict)

    def as_json(self) -> Json:
        against = None if None in self.verdicts else next(reversed(self.verdicts), None)
        verdict, general = self.verdicts.get(against), self.general.get(against)
        return self.facts | {"verdict": verdict, "general": general, "promoted": self.promoted, "exports": self.exports}


@dataclass
class Registry:
    """versions: by name and number; in_place: of each name, the promoted versions in their order, the last in force."""

    file: Path
    versions: dict[tuple[str, int], Version] = field(default_factory=dict)
    in_place: dict[str, list[int]] = field(default_factory=dict)

    @property
    def names(self) -> set[str]:
        return {name for name, _ in self.versions}

    def current(self, name: str) -> Version | None:
        numbers = self.in_place.get(name)
        return self.versions[name, numbers[-1]] if numbers else None

    def runs_in_place(self, name: str) -> set[str]:
        """Return the runs of the version in place, and of those that a rollback brings back."""
        return {run for number in self.in_place.get(name, ()) if (run := self.versions[name, number].facts["run"])}

    def listed(self) -> list[Json]:
        return [version.as_json() for _, version in sorted(self.versions.items())]


def read_registry(file: Path) -> Registry:
    """Read the list that a journal adds up to, empty without a journal. Raises DamagedFile where it has other entries than ours."""
    registry = Registry(file)
    for number, entry in enumerate(read_lines(file), 1):
        try:
            _ENTRY.validate_python(entry)
            _take(registry, entry)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            raise damaged(file, f"line {number}, {'.'.join(map(str, first['loc'])) or 'event'}: {first['msg']}") from None
        except LookupError:
            raise damaged(
                file, f"line {number}: {entry['name']} {entry['version']} is put in place or back, which the lines before do not allow"
            ) from None
    return registry


def _take(registry: Registry, entry: Json) -> None:
    """Add what an entry says. Raises LookupError where it puts a version in place that is not there."""
    name, number = entry["name"], entry["version"]
    if "adapter_sha256" in entry:
        registry.versions.setdefault((name, number), Version({key: entry.get(key) for key in _OF_VERSION}))
    version = registry.versions[name, number]
    version.facts["behaviour_sha256"] = entry.get("behaviour_sha256") or version.facts["behaviour_sha256"]
    if entry["event"] == "exported":
        version.exports.append({key: entry[key] for key in ("kind", "path", "files")})
    elif entry["event"] == "verified":
        version.verdicts.pop(entry["against"], None)
        version.verdicts[entry["against"]] = entry["verdict"]
        version.general[entry["against"]] = entry.get("general")
    else:
        _place(registry, name, number, entry["event"])


def _place(registry: Registry, name: str, number: int, event: str) -> None:
    """Put a version in place or back, or out of the list for ever. Raises LookupError where none is there to go back to."""
    before = registry.current(name)
    if before:
        before.promoted = False
    numbers = registry.in_place.setdefault(name, [])
    if event == "promoted":
        numbers.append(number)
    elif event == "rolled_back":
        if len(numbers) < 2:
            raise LookupError(name)
        numbers.pop()
    else:
        numbers[:] = [one for one in numbers if one != number]
        registry.versions[name, number].verdicts.clear()
    if now := registry.current(name):
        now.promoted = True


@contextmanager
def _held(file: Path) -> Iterator[Registry]:
    """Lock the registry against other writers within the context, and yield it."""
    make_folders(file.parent)
    with hold(file.with_name(f".{file.name}.lock"), wait=True):
        cut_torn_line(file)
        yield read_registry(file)


def remember(write: Callable[[], int], tell: Callable[[str], None]) -> None:
    """Write something down; where that cannot be done it is told, because what was done stands all the same."""
    try:
        write()
    except (OSError, Stop) as error:
        tell(f"! not written to the list of models: {(file_error(error) if isinstance(error, OSError) else None) or error}")


def record_export(file: Path, name: str, hashes: Json, answer: Json) -> int:
    """Write an export down; return the version it is of."""
    return _record(file, name, hashes, {"event": "exported", "kind": answer["kind"], "path": answer["out"], "files": answer["files"]})


def record_verdict(file: Path, name: str, hashes: Json, against: str | None, verdict: str, general: str | None = None) -> int:
    """Write a verdict down; against: `name_of` the adapter it was compared with, None for the base; general: that on general rows."""
    return _record(file, name, hashes, {"event": "verified", "against": against, "verdict": verdict, "general": general})


def _record(file: Path, name: str, hashes: Json, entry: Json) -> int:
    with _held(file) as registry:
        numbers = {number: version for (one, number), version in registry.versions.items() if one == name}
        known = [number for number, version in numbers.items() if _is_of(version.facts, hashes)]
        number = known[0] if known else max(numbers, default=0) + 1
        facts = {key: hashes.get(key) for key in ("run", "base", "adapter_sha256", "behaviour_sha256", "data_sha256")}
        append_line(file, {"time": round(time.time(), 3), "name": name, "version": number, **facts, **entry}, durable=True)
    return number


def name_of(facts: Json) -> str:
    """Return the hash a version is known by: of its weights, its settings and its base; of entries from before that, of its weights."""
    return str(facts.get("behaviour_sha256") or facts["adapter_sha256"])


def is_named(facts: Json, name: str | None) -> bool:
    """Return whether a hash names this version, as it is written now or was before."""
    return name is not None and name in (facts.get("behaviour_sha256"), facts["adapter_sha256"])


def _is_of(version: Json, hashes: Json) -> bool:
    """Return whether hashes are of a listed version; one whose entries know the weights alone has to be of the same run."""
    if version.get("behaviour_sha256") and hashes.get("behaviour_sha256"):
        return bool(version["behaviour_sha256"] == hashes["behaviour_sha256"])
    return bool(version["adapter_sha256"] == hashes["adapter_sha256"] and version["run"] == hashes.get("run"))


def promote(file: Path, name: str, number: int, reason: str | None) -> Registry:
    """Put a version in place; return the list as it is then, which need not be read again.

    Raises Stop(1) where no verdict says that it is better than what is there, unless a reason is given.
    """
    with _held(file) as registry:
        version = _version(registry, name, number)
        before = registry.current(name)
        if before is version:
            raise Stop(BLOCKED, f"{name} {number} is in place already", "holdfast models lists what is")
        if not reason:
            _gate(name, number, version, before)
        entry: Json = {"event": "promoted", "name": name, "version": number, "reason": reason}
        append_line(file, {"time": round(time.time(), 3), **entry}, durable=True)
        _take(registry, entry)
        return registry


def _gate(name: str, number: int, version: Version, before: Version | None) -> None:
    against = next((one for one in reversed(version.verdicts) if before and is_named(before.facts, one)), "") if before else None
    verdict, general = version.verdicts.get(against), version.general.get(against)
    other = f"{name} {before.facts['version']}" if before else "its base"
    if verdict == "better" and general == "worse":
        text = f"{name} {number} is better than {other} on the rows of its task, and worse on general rows"
        raise Stop(BLOCKED, text, "train it with general rows beside (data.mix); or promote it with --force REASON")
    if verdict == "better":
        return
    said = f"verify says {verdict.replace('_', ' ')}" if verdict else "no verify was asked"
    place = shlex.quote(before.facts["run"] or "ADAPTER") if before else None
    command = f"holdfast verify {shlex.quote(version.facts['run'] or 'ADAPTER')}" + (f" --against {place}" if place else "")
    raise Stop(BLOCKED, f"{name} {number} was not found better than {other}: {said}", f"{command}; or promote it with --force REASON")


def rollback(file: Path, name: str) -> Registry:
    """Put the version back in place that was there before; return the list as it is then. Raises Stop(1) where there was none."""
    with _held(file) as registry:
        numbers = registry.in_place.get(name)
        if not numbers:
            raise Stop(BLOCKED, f"no version of {name} is in place", f"holdfast models promote {name} VERSION")
        if len(numbers) < 2:
            raise Stop(BLOCKED, f"{name} {numbers[-1]} is the first that was put in place: there is none before it", "promote another one")
        entry: Json = {"event": "rolled_back", "name": name, "version": numbers[-1]}
        append_line(file, {"time": round(time.time(), 3), **entry}, durable=True)
        _take(registry, entry)
        return registry


def withdraw(file: Path, name: str, runs: list[str]) -> None:
    """Take the versions of runs out of what is in place and of what a rollback brings back; no verdict promotes them again."""
    with _held(file) as registry:
        for number in [number for (one, number), version in registry.versions.items() if one == name and version.facts["run"] in runs]:
            entry: Json = {"event": "withdrawn", "name": name, "version": number}
            append_line(file, {"time": round(time.time(), 3), **entry}, durable=True)
            _take(registry, entry)


def _version(registry: Registry, name: str, number: int) -> Version:
    found = registry.versions.get((name, number))
    if found:
        return found
    names = sorted(registry.names)
    numbers = [str(one) for other, one in sorted(registry.versions) if other == name]
    told = f"it has {', '.join(numbers)}" if numbers else f"there are {', '.join(names)}" if names else f"{registry.file} lists nothing yet"
    raise Stop(USAGE, f"there is no {name} {number}: {told}", "holdfast models lists what was exported or verified")
