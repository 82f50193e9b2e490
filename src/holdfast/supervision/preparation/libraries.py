"""The libraries, holdfast and the CPU a run goes on with, told where they are others than before: they may compute other bits."""

from __future__ import annotations

from holdfast.base.files import Json, read_json, write_json
from holdfast.base.units import listed
from holdfast.base.versions import __version__
from holdfast.machine.differences import libraries
from holdfast.machine.place import Place
from holdfast.machine.read import read_packages
from holdfast.machine.system import read_cpu, steering
from holdfast.machine.torch_build import read_torch
from holdfast.report.audience import Audience
from holdfast.run.folder import RunFolder


def tell_of_libraries(run: RunFolder, audience: Audience) -> None:
    """Tell once which libraries, or which CPU, are others than the run had so far, and put it on record: its next trainer proves them.

    From then on the run's machine file has the new ones.
    """
    machine = read_json(run.machine_file)
    if machine is None:
        return
    own = {"holdfast": __version__, "env": steering(Place())}
    now = read_torch(ask=False) | {"packages": read_packages(), "cpu": read_cpu(Place())} | own
    before, after = libraries(machine), libraries(now)
    changed = [name for name in before if name in after and after[name] != before[name]]
    if not changed:
        return
    facts = {which: {name: of[name] for name in changed} for which, of in (("before", before), ("now", after))}
    earlier = [event["before"] for event in run.events() if event["event"] == "libraries_changed" and isinstance(event.get("before"), dict)]
    began: dict[str, str] = {}
    for versions in [*earlier, before]:
        began = versions | began
    run.event("libraries_changed", step=run.committed(), **facts)
    first, then = (listed([f"{name} {of[name]}" for name in changed]) for of in (began, after))
    audience.tell(f"{run.path} began with {first}, goes on with {then}: bits may differ; fast paths are tried again before the next step")
    merged = {part: _object(machine.get(part)) | _object(now[part]) for part in ("torch", "packages", "cpu")}
    write_json(run.machine_file, machine | merged | own)


def _object(part: object) -> Json:
    return part if isinstance(part, dict) else {}
