"""Load a model folder as anybody would, by plain transformers and PEFT, to measure it. Trains nothing.

Weights stay in 16, 8 or 4 bits and are widened one product at a time: all is computed in fp32, because two models are compared. They stay
in their files until they go to the card, one after the other.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import logging

from holdfast.base_model.folder import ModelFacts, read_model
from holdfast.base_model.packed import packed_as
from holdfast.trainer.common.oom import is_out_of_memory
from holdfast.trainer.common.refuse import Refusal
from holdfast.trainer.model.frozen.halves import keep_narrow, widen_rest
from holdfast.trainer.model.frozen.quantised import hold_quantised
from holdfast.trainer.model.frozen.unpack import unpack
from holdfast.trainer.model.layers.mixed import HALF_TYPES
from holdfast.trainer.model.load import DTYPES, HALVES, loader, read_widened, unlike_config, widen_constants
from holdfast.trainer.model.place import HeldForm, ModelPlace, put
from holdfast.trainer.model.trained.saved import with_adapter


def load_plain(
    folder: str,
    adapter: str | None,
    device: torch.device,
    layers_away: bool = False,
    held: HeldForm | None = None,
    others: Mapping[str, str] | None = None,
) -> Any:
    """Load the model in `folder`, with the PEFT adapter `adapter` on it, if any. Raises what transformers and PEFT raise.

    others: further adapters, by PEFT's name of each; the first one is active.
    layers_away: they stay in main memory and come to the card for their part of a pass. held: linear layers have those fewer bits, which
    are read from what the run kept of them. Raises DoesNotFit, Refusal.
    Where a model's own code does not compute with weights in 16 bits beside values in fp32, all of it is widened.
    """
    place = ModelPlace(device, layers_away, held)
    model, narrow = _load(folder, adapter, place, others)
    if narrow and not _computes(model, device):
        del model
        model, _ = _load(folder, adapter, place, others, wide=True)
    return model


def _computes(model: Any, device: torch.device) -> bool:
    """Return whether the model computes with two tokens. Raises where memory ran out."""
    try:
        with torch.inference_mode():
            model(input_ids=torch.tensor([[0, 1]], device=device), use_cache=False)
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        return False
    return True


def _load(folder: str, adapter: str | None, place: ModelPlace, others: Mapping[str, str] | None, wide: bool = False) -> tuple[Any, bool]:
    """Load the model with the adapter; return it, and whether weights of its own stay in 16 bits."""
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    facts, cpu = read_model(folder), torch.device("cpu")
    packed = packed_as(facts.config)
    halves = None if packed or wide else HALVES.get(facts.stored or "")
    model, found = loader(facts).from_pretrained(
        facts.folder,
        dtype=halves or torch.float32,
        local_files_only=True,
        trust_remote_code=False,
        use_safetensors=True,
        output_loading_info=True,
        **read_widened(facts),
        **({"device_map": {"": "cpu"}} if packed else {}),  # else bitsandbytes' layers are loaded onto the card
    )
    if found["missing_keys"]:
        raise ValueError(f"{facts.folder} lacks {', '.join(sorted(found['missing_keys'])[:3])}")
    if told := unlike_config(model, facts):
        raise ValueError("; ".join(told))
    if packed:
        given = unpack(model, packed, torch.float32, widen=False)
        hold_quantised(model, facts.folder, packed, torch.float32, place.device, cpu, given=given)
        widen_constants(model, facts)
        widen_rest(model)  # what was never packed is loaded in the type of bitsandbytes' arithmetic
    else:
        if place.held:
            _hold(model, facts, place.held, place.device)
        if halves:
            widen_constants(model, facts)
            keep_narrow(model, halves, torch.float32)
    whole = model.eval() if adapter is None else with_adapter(model, Path(adapter).resolve(), others)
    return put(whole, model, place), halves is not None


def _hold(model: Any, facts: ModelFacts, held: HeldForm, device: torch.device) -> None:
    """Put linear layers in fewer bits onto the device, one after the other, to the bits of the run. Raises Refusal where they are wrong."""
    narrow = HALF_TYPES.get(held.dtype) or HALVES.get(facts.stored or "")
    found = hold_quantised(model, facts.folder, held.weights, DTYPES[held.dtype], device, device, narrow)
    if found.fault:
        raise Refusal("launch_misconfigured", found.fault, "pip install -U bitsandbytes")
