"""A LoRA adapter to start from, as PEFT lays it out: read and checked without torch. Changes nothing and loads nothing into a model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.base.errors import BLOCKED, USAGE, Stop
from holdfast.base.files import Json, read_json, sha256
from holdfast.base.units import counted
from holdfast.base_model.folder import ModelFacts, broken_tensor, stored_tensors
from holdfast.base_model.module_pattern import refused
from holdfast.base_model.tensor_header import TensorEntry
from holdfast.config.adapter import Adapter
from holdfast.config.adapter_kinds import FROM_WEIGHTS, KINDS, AdapterKind
from holdfast.run.artifact import ADAPTER_CONFIG, ARTIFACT

_LORA = re.compile(r"^base_model\.model\.(.+)\.lora_(?:embedding_)?[AB](?:\.|$)")
_CHOOSE_LAYERS = ("layers_to_transform", "layers_pattern", "exclude_modules", "target_parameters", "layer_replication")
_NAME = re.compile(r"^base_model\.model\.(.+)\.lora_([AB])\.weight$")
_PLAIN_ONLY = (  # what our adapter has not: an adapter that uses one of these would be another function here; modules are compared
    *("bias", "lora_bias", "target_parameters", "rank_pattern", "alpha_pattern", "layers_to_transform"),
    *("trainable_token_indices", "layer_replication", "alora_invocation_tokens", "use_qalora", "use_bdlora", "arrow_config"),
)
_BEGUN_FROM_THE_BASE = ("pissa", "olora", "corda", "loftq")  # init_lora_weights with which PEFT changes the base's weights, at each load
_OF_EXPERTS = ("target_parameters", "rank_pattern", "alpha_pattern")  # the last two PEFT writes for experts that are stacked
_EXPONENTS = {"BF16": ("<u2", 0x7F80), "F16": ("<u2", 0x7C00), "F32": ("<u4", 0x7F800000), "F64": ("<u8", 0x7FF0000000000000)}
IS_REFERENCE = "is_reference"  # of the plan's facts: preferences are held against this adapter; older runs held them against the bare base
_MAGNITUDE = "lora_magnitude_vector"
_SHOWN = 5


@dataclass(frozen=True)
class StartAdapter:
    """An adapter's folder, its adapter_config.json and the tensors in its file."""

    folder: Path
    config: Json
    tensors: dict[str, TensorEntry]

    @property
    def file(self) -> Path:
        return self.folder / ARTIFACT

    @property
    def targets(self) -> str | list[str]:
        found = self.config.get("target_modules")
        return found if isinstance(found, str) else sorted(found or [])

    @property
    def experts(self) -> Json | None:
        """What it says of stacked experts, which the trainer holds against what PEFT makes of adapter.targets; None without any."""
        return {name: self.config.get(name) or {} for name in _OF_EXPERTS} if self.config.get("target_parameters") else None

    def facts(self) -> Json:
        """Return what plan.json says of it."""
        kind = kind_of(self.config)
        facts: Json = {"path": str(self.folder), "sha256": sha256(self.file), "type": kind and kind.name, "targets": self.targets}
        if saved := self.config.get("modules_to_save"):
            facts["modules_to_save"] = saved
        if self.experts:
            facts["experts"] = self.experts
        for name, theirs in kind.stored.items() if kind else ():
            facts[name] = float(self.config[theirs]) if name == "alpha" else self.config[theirs]
        return facts


def read_start(path: Path) -> StartAdapter:
    """Read the adapter in `path`: a PEFT folder, or a run folder whose adapter is meant. Raises Stop when it is missing or damaged."""
    folder = path if (path / ADAPTER_CONFIG).exists() or not (path / "adapter").is_dir() else path / "adapter"
    config = read_json(folder / ADAPTER_CONFIG)
    if config is None or not (folder / ARTIFACT).is_file():
        raise Stop(USAGE, _not_an_adapter(folder, config), "give a folder that PEFT saved, or a finished run")
    beside = _OF_EXPERTS if config.get("target_parameters") else ()
    unplain = [
        f"{name}: {config[name]!r}" for name in _PLAIN_ONLY if name not in beside and config.get(name) not in (None, False, {}, [], "none")
    ]
    kind = kind_of(config)
    if kind is None or unplain:
        flags = [f"{one.flag}: True" for one in KINDS.values() if one.flag and config.get(one.flag)]
        told = ", ".join(unplain if kind else [f"peft_type: {config.get('peft_type')!r}", *flags])
        able = ", ".join(kind.name for kind in KINDS.values() if kind.peft)
        raise Stop(BLOCKED, f"{folder} is not an adapter that can be trained further ({told})", f"kinds that can: {able}")
    if (begun := str(config.get("init_lora_weights"))).lower().startswith(_BEGUN_FROM_THE_BASE):
        text = f"{folder} was trained with init_lora_weights {begun[:40]!r}, for which PEFT changes the base's weights as it loads it"
        hint = "save it with path_initial_model_for_weight_conversion of PEFT's save_pretrained, which makes a plain LoRA adapter of it"
        raise Stop(BLOCKED, f"{text}: on the base as it is, its matrices are another function", hint)
    saved = config.get("modules_to_save")
    if saved is not None and not (isinstance(saved, list) and all(isinstance(name, str) for name in saved)):
        raise Stop(BLOCKED, f"{folder}/{ADAPTER_CONFIG}: modules_to_save is no list of names", "download the adapter again")
    if any(not isinstance(config.get(theirs), int if name != "alpha" else int | float) for name, theirs in kind.stored.items()):
        raise Stop(BLOCKED, f"{folder}/{ADAPTER_CONFIG} names no {' and '.join(kind.stored.values())}", "download the adapter again")
    _check_targets(folder, config.get("target_modules") or [])
    tensors = stored_tensors(folder / ARTIFACT)
    if not tensors:
        raise _incomplete(folder, f"{ADAPTER_CONFIG} names target_modules {short_targets(config.get('target_modules') or [])}", "nothing")
    return StartAdapter(folder, config, tensors)


def refuse_incomplete(folder: Path, config: Json, model: ModelFacts) -> None:
    """Raise Stop(1) where an adapter's file lacks weights of modules that its config names: PEFT would take the base's in silence.

    Of modules alike but for their numbers either all have weights or none; none is a fault where no other module of that name has any,
    since an adapter that was trained on the text half of a model has nothing for its towers.
    """
    tensors, targets = stored_tensors(folder / ARTIFACT), config.get("target_modules") or []
    named = f"{ADAPTER_CONFIG} names target_modules {short_targets(targets)}"
    if not tensors:
        raise _incomplete(folder, named, "nothing")
    if config.get("peft_type") != "LORA" or any(config.get(name) for name in _CHOOSE_LAYERS) or not isinstance(targets, str | list):
        return
    covered = {found[1] for name in tensors if (found := _LORA.match(name))}
    if not covered:
        return
    _check_targets(folder, targets)
    families, names = {_family(module) for module in covered}, {module.rpartition(".")[2] for module in covered}
    missing = [
        module
        for module in _uncovered(covered, targets, model)
        if any(_family(end) in families for end in _ends(module)) or module.rpartition(".")[2] not in names
    ]
    if missing:
        listed = ", ".join(missing[:_SHOWN]) + (f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else "")
        raise _incomplete(folder, named, f"weights for {counted(len(covered), 'module')}, none for {listed}")


def _family(module: str) -> str:
    """Return a module's name without the numbers of its layers."""
    return re.sub(r"\d+", "*", module)


def _incomplete(folder: Path, named: str, holds: str) -> Stop:
    """Make the Stop for an adapter that is not whole, with what is known of how that comes about."""
    kept = next((found for place in (folder, folder.parent) for found in sorted(place.glob("global_step*"))), None)
    hint = "DeepSpeed's ZeRO-3 leaves such a file unless stage3_gather_16bit_weights_on_model_save is true; save the adapter again"
    if kept:
        hint += f", or gather it from {kept} with zero_to_fp32.py"
    return Stop(BLOCKED, f"{folder} is not a whole adapter: {named}, {ARTIFACT} holds {holds}", hint)


def _check_targets(folder: Path | str, targets: object) -> None:
    """Raise Stop(1) where targets are neither names nor a pattern that can be held against names."""
    if isinstance(targets, str):
        why = refused(targets)
    else:
        named = isinstance(targets, list) and all(isinstance(name, str) for name in targets)
        why = None if named else "neither a text nor a list of texts"
    if why:
        raise Stop(BLOCKED, f"{folder}: target_modules is {why}", "name the modules one by one, or write a simpler pattern")


def kind_of(config: Json) -> AdapterKind | None:
    """Return the kind of an adapter of PEFT's; None for those that are not trained here, among them two kinds at once."""
    alike = [kind for kind in KINDS.values() if kind.peft and kind.peft == config.get("peft_type")]
    given = [kind.flag for kind in alike if kind.flag and config.get(kind.flag)]
    return next((kind for kind in alike if [kind.flag] == (given or [""])), None)


def _not_an_adapter(folder: Path, config: Json | None) -> str:
    lacking = [name for name in (ADAPTER_CONFIG, ARTIFACT) if not (folder / name).exists()]
    if config is None and not lacking:
        return f"{folder}/{ADAPTER_CONFIG} is not a JSON object"
    old = " (it has adapter_model.bin, which is a pickle and is not read)" if (folder / "adapter_model.bin").exists() else ""
    unfinished = f"; the run is not finished, its states are in {folder}/checkpoints" if (folder / "run.json").exists() else ""
    return f"{folder} holds no adapter: {' and '.join(lacking)} missing{old}{unfinished}"


def settled(adapter: Adapter, facts: Json) -> Adapter:
    """Fill in r, alpha and targets of the starting adapter where the user left them out. Raises Stop(2) where they differ.

    Of an adapter on experts the targets are the config's: the file has what PEFT made of them.
    Whether a starting adapter really is on all modules that the targets name, only the base model can tell: `check_start`.
    """
    _check_targets(facts["path"], facts["targets"])
    differing: list[str] = []
    taken: dict[str, Any] = {}
    if adapter.kind.own_weights:
        raise Stop(
            USAGE, f"adapter.start names an adapter, and type {adapter.type} has none", "to train a model further, name it under model"
        )
    if adapter.init in FROM_WEIGHTS:
        raise Stop(
            USAGE, f"adapter.init: {adapter.init} begins an adapter anew, and adapter.start goes on from one", "leave one of them out"
        )
    for name in ("type", "r", "alpha", "targets", "virtual_tokens", "modules_to_save"):
        if name not in facts or (name == "targets" and "experts" in facts):
            continue
        wanted, found = getattr(adapter, name), facts[name]
        if name not in adapter.model_fields_set:
            taken[name] = found
        elif not (_same_targets(wanted, found) if name == "targets" else wanted == found):
            shown = found if name != "targets" else short_targets(found)
            differing.append(f"  adapter.{name}: {wanted!r} in the config, {shown!r} in the adapter")
    if differing:
        listed = "\n".join(differing)
        raise Stop(
            USAGE, f"{facts['path']} is another adapter than the config describes:\n{listed}", "leave these keys out: they follow it"
        )
    return adapter.model_copy(update=taken)


def short_targets(targets: str | list[str]) -> str | list[str]:
    """Shorten targets to what people write: PEFT names every single module, all of them end alike in each layer."""
    return targets if isinstance(targets, str) else sorted({name.rpartition(".")[2] for name in targets})


def _same_targets(wanted: str | list[str], found: str | list[str]) -> bool:
    """True if the user's targets may be those of an adapter, which lists them in full."""
    if isinstance(wanted, str) or isinstance(found, str):
        return wanted in ("all-linear", found)
    ends = {end for name in found for end in _ends(name)}
    return all(target in ends for target in wanted) and all(_ends(name) & set(wanted) for name in found)


def _ends(name: str) -> set[str]:
    """Return a module's name and its last parts. Files leave out the first parts of some ("transformer.h.0" is "h.0"), targets most."""
    parts = name.split(".")
    return {".".join(parts[at:]) for at in range(len(parts))}


def check_start(start: StartAdapter, adapter: Adapter, model: ModelFacts) -> None:
    """Raise Stop(1) with every difference when the adapter does not fit the base model, or holds values that are not finite."""
    plain = adapter.kind.peft == "LORA" and not adapter.modules_to_save and not start.experts
    plain = plain and "text_config" not in model.config  # its files have other names
    problems = _misfits(start, adapter, model) if plain else []  # the trainer compares the others with what it has made
    if problems:
        more = [f"  and {len(problems) - _SHOWN} more"] if len(problems) > _SHOWN else []
        listed = "\n".join([*problems[:_SHOWN], *more])
        base = start.config.get("base_model_name_or_path")
        count = counted(len(problems), "difference")
        text = f"{start.folder} does not fit {model.folder} ({count}); it was trained on {base}:\n{listed}"
        raise Stop(BLOCKED, text, "start from an adapter of this base model, or name its base under model")
    refuse_not_finite(start.file, start.tensors)


def refuse_not_finite(file: Path, tensors: Mapping[str, TensorEntry]) -> None:
    """Raise Stop(1) with the tensors of an adapter's file that hold NaN or Inf."""
    broken = [found for name, tensor in tensors.items() if (found := _nonfinite(file, name, tensor))]
    if broken:
        listed = "\n".join(f"  {line}" for line in broken[:_SHOWN])
        text = f"{file}: NaN or Inf in {len(broken)} of {len(tensors)} tensors:\n{listed}"
        raise Stop(BLOCKED, text, "take an earlier state of that adapter")


def _misfits(start: StartAdapter, adapter: Adapter, model: ModelFacts) -> list[str]:
    sides: dict[str, dict[str, tuple[int, ...]]] = {}
    problems = []
    magnitudes = _MAGNITUDE in adapter.kind.parts
    scaled = {name.partition("base_model.model.")[2].removesuffix(f".{_MAGNITUDE}") for name in start.tensors if name.endswith(_MAGNITUDE)}
    for name, tensor in start.tensors.items():
        if magnitudes and name.endswith(_MAGNITUDE):
            continue
        match = _NAME.match(name)
        if match is None or len(tensor.shape) != 2:
            problems.append(f"  {name} of shape {list(tensor.shape)} does not belong to a LoRA adapter on linear layers")
        else:
            sides.setdefault(match[1], {})[match[2]] = tensor.shape
    r = start.config["r"]
    for module, parts in sides.items():
        shape = _base_shape(module, model)
        if set(parts) != {"A", "B"}:
            problems.append(f"  {module} has only lora_{''.join(parts)}")
        elif shape is None:
            problems.append(f"  {module} is not in the base model")
        elif (parts["A"][0], parts["B"][1]) != (r, r):
            problems.append(f"  {module} has rank {parts['A'][0]} and {parts['B'][1]}, adapter_config.json says r = {r}")
        elif (parts["B"][0], parts["A"][1]) not in (shape, shape[::-1]):
            problems.append(f"  {module} is made for {parts['B'][0]} x {parts['A'][1]}, the base model has {' x '.join(map(str, shape))}")
    if magnitudes:
        problems += [f"  {module} has no lora_magnitude_vector, a part of DoRA" for module in sorted(set(sides) - scaled)]
    missing = _uncovered(set(sides), adapter.targets, model)
    return problems + [f"  {module} of the base model has no part in the adapter" for module in missing]


def _base_shape(module: str, model: ModelFacts) -> tuple[int, ...] | None:
    """Return the shape of a module's weight; that of an output layer tied to the embedding is in no file."""
    found = next((model.shapes[name] for end in _ends(module) if (name := f"{end}.weight") in model.shapes), None)
    if found is None and module.rpartition(".")[2] == "lm_head":
        found = next((shape for name, shape in model.shapes.items() if name.endswith(("embed_tokens.weight", "wte.weight"))), None)
    return found


def _uncovered(covered: set[str], targets: str | list[str], model: ModelFacts) -> list[str]:
    """Return the modules of the base model that the targets name and the adapter has no weights for."""
    modules = [name.removesuffix(".weight") for name, shape in model.shapes.items() if name.endswith(".weight") and len(shape) == 2]
    if targets == "all-linear":
        named = list(model.linear())
    elif isinstance(targets, str):
        named = [module for module in modules if re.fullmatch(targets, module)]
    else:
        ends = {end for target in targets for end in _ends(target) if end == target or "." in end}
        named = [module for module in modules if module in ends or _ends(module) & set(targets)]
    present = {end for name in covered for end in _ends(name)}
    return sorted(module for module in named if module not in present)


def _nonfinite(file: Path, name: str, tensor: TensorEntry) -> str | None:
    """Return what is not finite in a tensor of a file, or None: a float is not finite when every bit of its exponent is set."""
    if tensor.dtype not in _EXPONENTS:
        raise Stop(BLOCKED, f"{file}: {name} is of type {tensor.dtype}", "an adapter in fp32, fp16 or bf16 is needed")
    kind, exponent = _EXPONENTS[tensor.dtype]
    words: Any = np.memmap(file, np.uint8, "r")[tensor.begin : tensor.end].view(kind)
    bad = np.flatnonzero((words & exponent) == exponent)
    if not len(bad):
        return None
    return broken_tensor(name, len(bad), tensor.shape, tuple(int(at) for at in np.unravel_index(bad[0], tensor.shape)))
