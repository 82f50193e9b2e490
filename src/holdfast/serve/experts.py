"""The experts of a version, in a folder beside its run: several adapters over one base, and the router that chooses among them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast.base.errors import BLOCKED, Stop
from holdfast.base.files import Json, read_json, sha256
from holdfast.export.subject import Subject, read_subject
from holdfast.serve.router import NONE, Router, router_of

FILE, ROUTER, MERGED = "experts.json", "router.safetensors", "merged"
ROUTED = "routed"  # the model whose answers are those of the expert that the router chooses
MERGED_NAME = f"({MERGED})"  # of the one that all were merged into, behind those that the router chooses from


@dataclass(frozen=True)
class RoutedExperts:
    """names: of the domains; adapters: of each; router: which of them answers a prompt."""

    names: tuple[str, ...]
    adapters: tuple[Subject, ...]
    router: Router

    def choose(self, ids: Sequence[int]) -> str | None:
        """Return the name of the expert that answers a prompt; None: the adapter for all."""
        number = self.router.choose(ids)
        return None if number == NONE else self.names[number]

    def without_merged(self) -> RoutedExperts:
        kept = [pair for pair in zip(self.names, self.adapters, strict=True) if pair[0] != MERGED_NAME]
        return replace(self, names=tuple(name for name, _ in kept), adapters=tuple(one for _, one in kept))


def expert_model(name: str) -> str:
    """Return the name under which a domain's expert is asked for itself."""
    return f"expert:{name}"


def experts_folder(run: Path) -> Path:
    """Return where the experts of the version are that a run made."""
    return run.parent / "experts"


def stamp_of(run: Path | None) -> int:
    """Return what changes when a run's experts do; 0 where there are none."""
    try:
        return (experts_folder(run) / FILE).stat().st_mtime_ns if run else 0
    except OSError:
        return 0


def read_experts(subject: Subject, base: str | None = None) -> RoutedExperts | None:
    """Return the experts of a run's adapter; None where there are none. Raises Stop where they are damaged, or of another adapter."""
    if subject.run is None or not stamp_of(subject.run.path):
        return None
    folder = experts_folder(subject.run.path)
    told: Json = read_json(folder / FILE) or {}
    if not told.get("experts"):
        return None
    again = "holdfast learn makes them again; without that folder, the adapter for all answers"
    if told["adapter_sha256"] != subject.hashes()["adapter_sha256"]:
        raise Stop(BLOCKED, f"{folder} holds the experts of another adapter", again)
    if sha256(folder / ROUTER) != told["router_sha256"]:
        raise Stop(BLOCKED, f"{folder / ROUTER} is not what {FILE} names", again)
    adapters = tuple(read_subject(folder / one["run"], base) for one in told["experts"])
    names = tuple(one["name"] for one in told["experts"])
    if (told.get("merged") or {}).get("shown"):
        names, adapters = (*names, MERGED_NAME), (*adapters, read_subject(folder / MERGED, base or str(subject.facts.folder)))
    return RoutedExperts(names, adapters, router_of((folder / ROUTER).read_bytes()))
