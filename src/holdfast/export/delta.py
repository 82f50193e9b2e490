"""What an adapter makes of each tensor of its base model: LoRA, rank-stabilised LoRA, DoRA, AdaLoRA, IA3, embeddings, whole modules.

After PEFT's own `merge_and_unload`, computed in fp32 and a stretch of rows at a time. Reads no base weights but those it is given.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from holdfast.base.errors import BLOCKED, Stop
from holdfast.base.files import Json
from holdfast.base.inert import inert
from holdfast.base.units import listed
from holdfast.base_model.module_pattern import refused
from holdfast.base_model.parts import of_experts
from holdfast.base_model.types import is_tower
from holdfast.config.adapter_kinds import KINDS
from holdfast.export.experts import is_of_experts, pieces
from holdfast.export.tensors import Floats, StoredTensor, tensors_of_file

_PREFIX = "base_model.model."
_MERGES = {kind.peft: kind.merge for kind in KINDS.values() if kind.merge}  # formulas by peft_type
_PARTS = {part: None for kind in KINDS.values() if kind.merge for part in kind.parts} | {"lora_embedding_A": None, "lora_embedding_B": None}
_PART = re.compile(rf"^(.+)\.({'|'.join(_PARTS)})(?:\.weight)?$")
_OTHER = (  # what changes more than weights, or weights in a way that is not computed here
    *("lora_bias", "use_qalora", "use_bdlora", "layer_replication"),
    *("alora_invocation_tokens", "arrow_config", "velora_config", "monteclora_config", "kasa_config"),
)
HEAD = "lm_head.weight"
_TOKENS = ".token_adapter.trainable_tokens_delta"  # behind the module's name; by that name or not, PEFT keeps the rows themselves
_SHOWN = 3


@dataclass(frozen=True)
class WeightChange:
    """What is done to one tensor. down [r, in], up [out, r]; flipped: the tensor is stored [in, out].

    whole: what the adapter has in place of the base's tensor; PEFT keeps embeddings beside their adapters, too.
    tokens: the numbers of rows [n] that the adapter has in place of the base's, and those rows [n, width].
    expert: of a stack of experts, down [experts, r, in] and up [experts, out, r] where the base's tensor is the stack.
    factor: what rows [out, 1] or columns [1, in], or the values of a bias, are multiplied by.
    """

    scale: float = 0.0
    down: Floats | None = None
    up: Floats | None = None
    magnitude: Floats | None = None
    flipped: bool = False
    whole: StoredTensor | None = None
    factor: Floats | None = None
    tokens: tuple[npt.NDArray[np.int64], Floats] | None = None
    expert: bool = False

    @property
    def beyond_lora(self) -> bool:
        """Whether it is more than a product added to a linear layer's weight."""
        return any(one is not None for one in (self.magnitude, self.whole, self.factor, self.tokens)) or self.flipped or self.expert

    def applied(self, base: Floats, first: int, last: int) -> Floats:
        """Return rows [first, last) of the changed tensor, computed from those of the base's."""
        if self.tokens is not None:
            numbers, rows = self.tokens
            inside = (numbers >= first) & (numbers < last)
            base = base.copy()
            base[numbers[inside] - first] = rows[inside]
            return base
        if self.whole is not None:
            base = self.whole.rows(first, last)
        if self.factor is not None:
            return base * (self.factor if len(self.factor) == 1 else self.factor[first:last])
        if self.down is None or self.up is None:
            return base
        if self.down.ndim == 3:
            product = self.up[first:last] @ self.down[first:last]
            return base + np.float32(self.scale) * (product.transpose(0, 2, 1) if self.flipped else product)
        if self.flipped:
            return base + np.float32(self.scale) * (self.down[:, first:last].T @ self.up.T)
        changed: Floats = base + np.float32(self.scale) * (self.up[first:last] @ self.down)
        if self.magnitude is not None:
            norm = np.sqrt((changed.astype(np.float64) ** 2).sum(axis=1)).astype(np.float32)
            changed = changed * (self.magnitude[first:last] / norm)[:, None]
        return changed


class UnplacedPart(Stop):
    """A part of the adapter that none of the base's tensors, by their names and shapes in its files, is changed by."""


Changes = tuple[WeightChange, WeightChange | None]  # of a module's weight and of its bias


@dataclass(frozen=True)
class Delta:
    """The change of each tensor by its name in the base's files. untied: the output layer gets weights of its own."""

    changes: dict[str, WeightChange] = field(default_factory=dict)
    untied: bool = False


def read_delta(file: Path, config: Json, base: Mapping[str, tuple[int, ...]], tied: str | None) -> Delta:
    """Compute what the adapter in `file` changes in a base model with tensors of these names and shapes.

    tied: the name of the embedding that is the output layer, too; None where that has its own weights or there is none.
    Raises Stop(1) where the adapter is of a kind that is no change of single weights, or has a part the base has no place for.
    """
    _refuse_other(file, config)
    formula = FORMULAS[_MERGES[config["peft_type"]]]
    parts: dict[str, dict[str, StoredTensor]] = {}
    whole: dict[str, StoredTensor] = {}
    tokens: dict[str, StoredTensor] = {}
    for name, held in tensors_of_file(file).items():
        if name.endswith(_TOKENS):
            tokens[name.removeprefix(_PREFIX).removesuffix(_TOKENS)] = held
            continue
        match = _PART.match(name.removeprefix(_PREFIX))
        if match:
            parts.setdefault(match[1], {})[match[2]] = held
        else:
            whole[name.removeprefix(_PREFIX).replace(".modules_to_save", "").replace(".base_layer", "")] = held
    names = set(base)
    places = _places(names)
    changes: dict[str, WeightChange] = {}
    lost = []
    for module, found in parts.items():
        if config.get("target_parameters") and is_of_experts(module):
            of_module = _of_experts(module, found, config, base)
            changes |= of_module
            lost += [] if of_module else [module]
            continue
        place = _place(f"{module}.weight", names, places, tied)
        if place is None:
            lost.append(module)
            continue
        if place in changes:
            text = f"{file} changes {place} of the base model more than once, the last time at {module}: layers that are one weight there"
            raise Stop(BLOCKED, text, "export it --to adapter")
        shape = base[tied if tied and place == HEAD and HEAD not in base else place]
        changes[place], of_bias = formula(module, found, config, shape)
        bias = place.removesuffix("weight") + "bias"
        if bias in base and of_bias is not None:
            changes[bias] = of_bias
    for name, held in whole.items():
        place = _place(name, names, places, tied)
        if place is None:
            lost.append(name)
        else:
            _refuse_other_shape(name, held, base[tied if tied and place == HEAD and HEAD not in base else place])
            changes[place] = replace(changes.get(place, WeightChange()), whole=held)
    for module, held in tokens.items():
        place = _place(f"{module}.weight", names, places, tied)
        if place is None:
            lost.append(module)
        elif place in changes or (place == tied and HEAD in changes):
            raise Stop(BLOCKED, f"{file} trains single tokens of {module}, and more of it", "export it --to adapter")
        else:
            changes[place] = _tokens(module, held, config, base[place])
    if lost:
        text = f"{file} has parts that the base model has no tensor for: {listed(sorted(lost), _SHOWN)}"
        raise UnplacedPart(BLOCKED, text, "export it --to adapter, or give the base model it was trained on with --base DIR")
    untied = tied is not None and (HEAD in changes or (tied in changes and changes[tied].tokens is None))  # PEFT ties single tokens, too
    return Delta(changes, untied)


def _refuse_other(file: Path, config: Json) -> None:
    kind = config.get("peft_type")
    beyond = [name for name in _OTHER if config.get(name) not in (None, False, {}, [])]
    if not of_experts(config.get("target_parameters")):
        beyond.append("target_parameters")
    if kind not in _MERGES or beyond:
        what = ", ".join(beyond) if kind in _MERGES else f"peft_type {kind}"
        hint = "export it --to adapter" + ("; PEFT's merge_and_unload merges that" if kind in _MERGES else "")
        raise Stop(BLOCKED, f"the adapter {file.parent} cannot be merged into single weights here ({what})", hint)


def _refuse_other_shape(name: str, held: StoredTensor, shape: tuple[int, ...]) -> None:
    if held.stored.shape != shape:
        raise _misfit(name, held.stored.shape, shape)


def _misfit(name: str, found: tuple[int, ...], shape: tuple[int, ...]) -> Stop:
    text = f"{name} of the adapter is made for {list(found)}, the base model has {list(shape)}"
    return UnplacedPart(BLOCKED, text, "give the base model it was trained on with --base DIR")


def _incomplete(module: str, found: dict[str, StoredTensor]) -> Stop:
    return Stop(BLOCKED, f"{module} has only {' and '.join(sorted(found))} in the adapter", "save the adapter again")


def _product(module: str, found: dict[str, StoredTensor], config: Json, shape: tuple[int, ...]) -> Changes:
    """Return the changes of LoRA's kinds at a weight of such a shape. Raises Stop(1)."""
    embedding = "lora_embedding_A" in found
    sides = [found.get(f"lora_{'embedding_' if embedding else ''}{side}") for side in "AB"]
    if sides[0] is None or sides[1] is None:
        raise _incomplete(module, found)
    down, up = sides[0].rows(), sides[1].rows()
    if not (np.isfinite(down).all() and np.isfinite(up).all()):
        raise Stop(BLOCKED, f"the adapter has NaN or Inf at {module}", "take an earlier state of it")
    made_for = (len(up), down.shape[1])
    if len(down) != up.shape[1] or shape not in (made_for, made_for[::-1]):
        raise _misfit(module, made_for, shape)
    flipped = embedding or shape != made_for or (made_for[0] == made_for[1] and bool(config.get("fan_in_fan_out")))
    alpha = _alpha(module, config, len(down))
    scale = alpha / (math.sqrt(len(down)) if config.get("use_rslora") else len(down))
    if "lora_E" in found:
        down, scale = down * found["lora_E"].rows(), alpha / (len(down) + 1e-5)
    magnitude = found["lora_magnitude_vector"].rows().reshape(-1) if "lora_magnitude_vector" in found else None
    if flipped and magnitude is not None:
        raise Stop(BLOCKED, f"{module}: DoRA on a weight that is stored transposed is not merged here", "export it --to adapter")
    return WeightChange(scale, down, up, magnitude, flipped), None


def _tokens(module: str, held: StoredTensor, config: Json, shape: tuple[int, ...]) -> WeightChange:
    """Return the change of the rows of single tokens in an embedding of such a shape. Raises Stop(1)."""
    given = config.get("trainable_token_indices")
    given = given.get(module.rpartition(".")[2]) if isinstance(given, dict) else given
    if not isinstance(given, list) or not all(type(number) is int and 0 <= number < shape[0] for number in given):
        raise Stop(BLOCKED, f"trainable_token_indices of the adapter names no rows of {module}", "save the adapter again")
    rows = held.rows()
    if rows.shape != (len(given), *shape[1:]):
        raise _misfit(module, rows.shape, (len(given), *shape[1:]))
    if not np.isfinite(rows).all():
        raise Stop(BLOCKED, f"the adapter has NaN or Inf at {module}", "take an earlier state of it")
    return WeightChange(tokens=(np.array(given, np.int64), rows))


def _of_experts(module: str, found: dict[str, StoredTensor], config: Json, base: Mapping[str, tuple[int, ...]]) -> dict[str, WeightChange]:
    """Return the changes of LoRA on a stack of experts by tensor of the base; empty where none fits. Raises Stop(1)."""
    if {*found} != {"lora_A", "lora_B"}:
        raise _incomplete(module, found)
    down, up = found["lora_A"].rows(), found["lora_B"].rows()
    if not (np.isfinite(down).all() and np.isfinite(up).all()):
        raise Stop(BLOCKED, f"the adapter has NaN or Inf at {module}", "take an earlier state of it")

    def scale_of(name: str, rank: int) -> float:
        return _alpha(name, config, rank) / (math.sqrt(rank) if config.get("use_rslora") else rank)

    some = pieces(module, down, up, base, scale_of)
    return {one.name: WeightChange(one.scale, one.down, one.up, flipped=one.flipped, expert=True) for one in some}


def _factor(module: str, found: dict[str, StoredTensor], config: Json, shape: tuple[int, ...]) -> Changes:
    """Return the changes of IA3 at a weight of such a shape: a factor of an output scales its bias, too. Raises Stop(1)."""
    if "ia3_l" not in found:
        raise _incomplete(module, found)
    factor = found["ia3_l"].rows()
    of_bias = WeightChange(factor=factor.reshape(-1)) if factor.shape[1] == 1 else None
    if not np.isfinite(factor).all():
        raise Stop(BLOCKED, f"the adapter has NaN or Inf at {module}", "take an earlier state of it")
    if config.get("fan_in_fan_out"):
        factor = factor.T
    if len(shape) != 2 or factor.shape not in ((shape[0], 1), (1, shape[1])):
        raise _misfit(module, factor.shape, shape)
    return WeightChange(factor=factor), of_bias


FORMULAS: Mapping[str, Callable[[str, dict[str, StoredTensor], Json, tuple[int, ...]], Changes]] = {"product": _product, "factor": _factor}


def _alpha(module: str, config: Json, otherwise: int) -> float:
    """Return the alpha of a module as PEFT's get_pattern_key does: of the first key of alpha_pattern that matches the end of its name.

    Raises Stop(1).
    """
    given, hint = config.get("alpha_pattern") or {}, "take adapter_config.json from where the adapter came from"
    if not isinstance(given, dict):
        raise Stop(BLOCKED, "alpha_pattern of the adapter is no list of names with numbers", hint)
    for key in given:
        if why := refused(key):
            raise Stop(BLOCKED, f"alpha_pattern of the adapter names {inert(key)[:60]!r}: {why}", hint)
    found = next((value for key, value in given.items() if re.match(rf"(.*\.)?({key})$", module)), config.get("lora_alpha", otherwise))
    if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found):
        raise Stop(BLOCKED, f"lora_alpha of the adapter at {module} is no number", hint)
    return float(found)


def _places(names: set[str]) -> dict[str, list[str]]:
    """Map each end of a name to the tensors it is an end of, sorted by name."""
    places: dict[str, list[str]] = {}
    for name in sorted(names):
        for end in _ends(name):
            places.setdefault(end, []).append(name)
    return places


def _place(name: str, names: set[str], places: dict[str, list[str]], tied: str | None) -> str | None:
    """Find the one tensor of the base that a module's weight is; files leave out, or rename, the first parts of some names.

    The longest end that both have decides, and where it leaves several, the one with the same tower or language model in its name,
    then the one with most of the parts before that end: model.layers.0 is model.language_model.layers.0 and not mtp.layers.0.
    Raises Stop(1) where several are left: the wrong one would be changed.
    """
    if name in names:
        return name
    if name.rpartition(".")[0].rpartition(".")[2] == "lm_head" and tied is not None:
        return HEAD
    found = next((places[end] for end in _ends(name) if end.count(".") >= 2 and end in places), [])
    if len(found) > 1:
        found = [one for one in found if is_tower(one) == is_tower(name)]
    if len(found) > 1:
        shared = {one: len({*name.split(".")[:-1]} & {*one.split(".")[:-1]}) for one in found}
        found = [one for one in found if shared[one] == max(shared.values())]
    if len(found) > 1:
        text = f"{name} of the adapter may be any of {listed(found, _SHOWN)} of the base model"
        raise UnplacedPart(BLOCKED, text, "export it --to adapter, or give the base model it was trained on with --base DIR")
    return found[0] if found else None


def _ends(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[at:]) for at in range(len(parts))]
