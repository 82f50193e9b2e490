"""The names under which PEFT finds an adapter's tensors again: it renames those of a file as transformers renames a checkpoint's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import peft
import torch
from torch import Tensor

from holdfast.base.units import listed
from holdfast.trainer.common.libraries import module_if_there
from holdfast.trainer.common.refuse import Refusal

RENAMES = module_if_there("peft.utils.transformers_weight_conversion")  # None in versions of PEFT that rename nothing
_PREFIX = "base_model.model."
_SHOWN = 3


def loadable_names(model: Any, saved: Mapping[str, Tensor]) -> dict[str, str]:
    """Return the name each tensor is saved under, by the name PEFT saves it with: that, or the checkpoint's where PEFT would lose it.

    Some of transformers' renamings of a checkpoint change its own names, too, and PEFT runs an adapter's through them as it loads.
    Raises Refusal for modules whose tensors PEFT finds under neither name.
    """
    as_saved = {name: name for name in saved}
    lost = _lost(model, as_saved)
    if not lost:
        return as_saved
    names = as_saved | _checkpoint_names(model, lost)
    if still := _lost(model, names):
        raise _unloadable(model, still)
    return names


def _checkpoint_names(model: Any, names: Iterable[str]) -> dict[str, str]:
    """Return the name that each of `names` has where transformers writes the model's checkpoint; nothing where it renames none."""
    try:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightRenaming
    except ModuleNotFoundError:
        return {}
    reversed_order = [one.reverse_transform() for one in get_model_conversion_mapping(model.get_base_model(), add_legacy=False)[::-1]]
    renamings = [one for one in reversed_order if isinstance(one, WeightRenaming)]
    found = {}
    for name in names:
        renamed = name.removeprefix(_PREFIX)
        for renaming in renamings:
            renamed, _ = renaming.rename_source_key(renamed)
        found[name] = _PREFIX + renamed
    return found


def _lost(model: Any, names: Mapping[str, str]) -> list[str]:
    """Return the keys of `names` that PEFT does not come to from the names beside them."""
    if RENAMES is None:
        return []
    blank = {file: torch.empty(1) for file in names.values()}
    config = model.peft_config[model.active_adapter]
    found = RENAMES.convert_peft_adapter_state_dict_for_transformers(model, config, blank, model.active_adapter)
    return [name for name in names if name not in found]


def _unloadable(model: Any, lost: Iterable[str]) -> Refusal:
    modules = [*dict.fromkeys(name.removeprefix(_PREFIX).partition(".lora_")[0] for name in lost)]
    ends = {name.rpartition(".")[2] for name in modules}
    kind = model.get_base_model().config.model_type
    text = f"PEFT {peft.__version__} does not find an adapter of {listed(modules, _SHOWN)} again in models of type {kind!r}:"
    text += " it renames the tensors as it loads them, and would go on with the base's weights"
    able = sorted({name.rpartition(".")[2] for name in model.targeted_module_names} - ends)
    return Refusal("launch_misconfigured", text, f"write adapter.targets: [{', '.join(able)}], then start afresh with --run DIR")
