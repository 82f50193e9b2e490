"""What `holdfast tune` proved, kept by the shape of a run and the machine it was proven on; and what train.ladder makes of it.

A proof is used where machine, driver and torch are those it was made with. A rung that had an incident here is left out from then on.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from pathlib import Path
from typing import Any

import orjson
from pydantic import BaseModel, Field, ValidationError

from holdfast.base.cache import cache_folder
from holdfast.base.files import Json, read_json, write_json
from holdfast.base.tasks import kind_of
from holdfast.base_model.folder import read_description
from holdfast.config.config import Config
from holdfast.config.settings import PartialSettings, Settings, checked
from holdfast.machine.machine_file import training_devices
from holdfast.run.timeline import Entry

OFF: PartialSettings = {"attention": "eager", "packing": False, "liger": False, "fused": False, "varlen": False}
_DAYS = 180


class ProvenRung(BaseModel, frozen=True, extra="ignore"):
    """A rung that was kept, and incidents of runs with it since."""

    id: str
    settings: dict[str, Any] = Field(default_factory=dict)
    env: dict[str, str | None] = Field(default_factory=dict)
    against: int = Field(0, ge=0)


class Proof(BaseModel, frozen=True, extra="ignore"):
    """What was proven. machine: the facts it holds for, by name."""

    machine: dict[str, str]
    rungs: tuple[ProvenRung, ...]
    reference: dict[str, Any]
    tokens_per_second: float | None = None
    time: float


def fingerprint(machine: Json) -> dict[str, str]:
    """Return the facts of a machine that a proof depends on, as text by name."""
    torch = machine.get("torch") or {}
    parts = {
        "devices": [[gpu.get("vendor"), gpu.get("arch"), gpu.get("name"), gpu.get("memory_bytes")] for gpu in training_devices(machine)],
        "memory": machine.get("memory_bytes"),
        "torch": [torch.get("version"), torch.get("hip"), torch.get("cuda")],
        "driver": [(machine.get("rocm") or {}).get("driver"), (machine.get("cuda") or {}).get("driver")],
        "cores": os.cpu_count() if not training_devices(machine) else None,
    }
    return {name: orjson.dumps(value).decode() for name, value in parts.items()}


def shape_of(config: Config) -> str:
    """Return a key that is equal for runs a proof holds for: of model, adapter, lengths, what is trained and how."""
    try:
        facts: Any = read_description(config.model).config if config.model else None
    except Exception:  # noqa: BLE001  (a model that cannot be read is told of elsewhere)
        facts = None
    train = config.train.model_dump(mode="json", include={"max_tokens", "frozen", "precision", "optimizer", "objective", "weights"})
    parts = [facts, config.adapter.model_dump(mode="json", exclude={"start", "alpha"}), train]
    return hashlib.sha256(orjson.dumps(parts, option=orjson.OPT_SORT_KEYS)).hexdigest()[:20]


def proof_file(config: Config) -> Path | None:
    folder = cache_folder(os.environ)
    return None if folder is None else folder / "ladder" / f"{shape_of(config)}.json"


def keep_proof(config: Config, proof: Proof) -> Path | None:
    """Write a proof down; None where there is no place for it."""
    file = proof_file(config)
    if file is None:
        return None
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, proof.model_dump(mode="json"))
    except OSError:
        return None
    return file


def read_proof(config: Config, machine: Json) -> tuple[Proof | None, str]:
    """Return the proof that holds here, or None and why there is none, with the next command."""
    file = proof_file(config)
    if file is None or not file.exists():
        return None, "nothing was proven for this shape of run on this machine; holdfast tune CONFIG does"
    try:
        proof = Proof.model_validate(read_json(file))
        for rung in proof.rungs:
            checked(rung.settings)
    except (ValidationError, ValueError):
        return None, f"the proof in {file} is damaged; holdfast tune CONFIG makes it anew"
    here = fingerprint(machine)
    if differing := [f"{name} {proof.machine.get(name)} -> {here[name]}" for name in here if proof.machine.get(name) != here[name]]:
        return None, f"the proof was made with {'; '.join(differing)}; holdfast tune CONFIG makes it anew"
    if time.time() - proof.time > _DAYS * 86400:
        return None, f"the proof is older than {_DAYS} days; holdfast tune CONFIG makes it anew"
    return proof, ""


def ladder_entry(config: Config, machine: Json, settings: Settings) -> tuple[Entry | None, str]:
    """Return the timeline entry that train.ladder adds to a new run, or None, and the sentence to print about it."""
    if config.train.ladder == "safe" or not kind_of(config).base_model:
        return None, ""
    if config.train.ladder == "off":
        return Entry(1, dict(OFF), "train.ladder off: plain kernels"), "train.ladder off: plain kernels alone"
    proof, why = read_proof(config, machine)
    if proof is None:
        return None, f"train.ladder proven: {why}; going on as with safe"
    good = [rung for rung in proof.rungs if not rung.against]
    left_out = [f"{rung.id} ({rung.against} against it)" for rung in proof.rungs if rung.against]
    chosen: PartialSettings = dict(proof.reference)
    for rung in good:
        chosen |= rung.settings
    chosen["env"] = settings.env | {name: value for rung in good for name, value in rung.env.items()}
    if config.train.precision != "auto":
        chosen.pop("dtype", None)
    told = f"train.ladder proven: {', '.join(rung.id for rung in good) or 'the reference, plain kernels in fp32'}"
    return Entry(1, chosen, told), told + (f"; left out here: {', '.join(left_out)}" if left_out else "")


def count_against(config: Config, machine: Json, changed: set[str]) -> list[str]:
    """Count an incident whose remedy changed these settings or variables against the rungs that set them; return their names."""
    proof, _ = read_proof(config, machine)
    if proof is None:
        return []
    guilty = [rung.id for rung in proof.rungs if changed & {*rung.settings, *rung.env}]
    rungs = [rung.model_copy(update={"against": rung.against + (rung.id in guilty)}) for rung in proof.rungs]
    with contextlib.suppress(OSError):
        keep_proof(config, proof.model_copy(update={"rungs": tuple(rungs)}))
    return guilty
