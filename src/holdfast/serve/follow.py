"""Serve the version that is in place under a name of `holdfast models`, and the next one as soon as it is put there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from holdfast.base.errors import BLOCKED, Stop
from holdfast.export.registry import Version, name_of, read_registry
from holdfast.export.subject import Subject, read_subject
from holdfast.serve.experts import stamp_of
from holdfast.serve.served import GatewayState, ServedModel

Make = Callable[[Subject, str], ServedModel]


def subject_of(version: Version, base: str | None = None) -> Subject:
    """Return the adapter of a version. Raises Stop where its run is unknown, gone, or holds another adapter now."""
    facts = version.facts
    shown = f"{facts['name']} {facts['version']}"
    if not facts["run"]:
        raise Stop(BLOCKED, f"of {shown} no run is known, it was verified as a folder", "give that folder instead of the name")
    subject = read_subject(Path(facts["run"]), base)
    if subject.hashes()["adapter_sha256"] != facts["adapter_sha256"]:
        raise Stop(BLOCKED, f"{facts['run']} holds another adapter than {shown}", "holdfast verify it, and promote that version")
    return subject


def in_place(file: Path, name: str) -> Version:
    """Return the promoted version. Raises Stop(1) where none is."""
    found = read_registry(file).current(name)
    if found is None:
        raise Stop(BLOCKED, f"no version of {name} is in place", f"holdfast models promote {name} VERSION; holdfast models lists them")
    return found


class VersionFollower:
    """Look whether another version was put in place, and have it answer. What cannot be loaded is told once, and the old one stays.

    base: where the base model is, of every version, if not where its run says.
    """

    def __init__(
        self, file: Path, name: str, version: Version, state: GatewayState, make: Make, say: Callable[[str], None], base: str | None = None
    ) -> None:
        self._file, self._name, self._state, self._make, self._say, self._base = file, name, state, make, say, base
        self._serving, self._seen = name_of(version.facts), (0, 0, 0)
        self._run = _run_of(version)

    def look(self) -> None:
        """Serve what is in place now, if that is another one."""
        try:
            stat = self._file.stat()
            seen = (stat.st_size, stat.st_mtime_ns, stamp_of(self._run))
            if seen == self._seen:
                return
            self._seen = seen
            self._change(read_registry(self._file).current(self._name))
        except (Stop, OSError) as error:
            self._say(f"! {self._state.served.name} goes on: {error}")

    def _change(self, version: Version | None) -> None:
        if version is None:
            self._serving, self._state.refused = "", f"no version of {self._name} is in place; base answers"
            self._say(f"! {self._state.refused}")
        elif name_of(version.facts) == self._serving and self._state.served.stamp == stamp_of(_run_of(version)):
            self._state.refused = ""
        else:
            new = self._make(subject_of(version, self._base), shown(version))
            self._state.replace(new)
            self._serving, self._run = name_of(version.facts), _run_of(version)
            self._say(f"{new.name} answers from now on")


def _run_of(version: Version) -> Path | None:
    run = version.facts["run"]
    return Path(run) if run else None


def shown(version: Version) -> str:
    return f"{version.facts['name']} {version.facts['version']}"
