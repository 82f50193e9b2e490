"""Load the base model, put the adapter on it, choose gradient checkpointing (layers computed again in backward). Trains nothing."""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from accelerate import init_empty_weights  # type: ignore[import-untyped]
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import logging
from transformers.modeling_layers import GradientCheckpointingLayer

from holdfast.base.errors import NO_THREADS
from holdfast.base_model.as_loaded import unlike
from holdfast.base_model.folder import ModelFacts, comes_quantised, read_model
from holdfast.base_model.packed import PackedWeights, packed_as, widened_from
from holdfast.base_model.types import CAUSAL, is_tower, loads_as
from holdfast.config.choices.frozen_formats import FORMATS
from holdfast.config.config import Config
from holdfast.config.settings import Settings
from holdfast.run.types import OWN_DROPOUT
from holdfast.trainer.common.decoder import bring, text_decoder
from holdfast.trainer.common.on_card import on_card
from holdfast.trainer.common.oom import is_out_of_memory
from holdfast.trainer.common.refuse import Refusal
from holdfast.trainer.model.frozen.halves import keep_narrow
from holdfast.trainer.model.frozen.quantised import held_weights, hold_quantised
from holdfast.trainer.model.frozen.unpack import unpack
from holdfast.trainer.model.layers.mixed import HALF_TYPES, mix_precision

HALVES = {"BF16": torch.bfloat16, "F16": torch.float16}  # as safetensors names them
DTYPES = {"fp32": torch.float32} | HALF_TYPES
_ATTENTION_DROPOUTS = ("attention_dropout", "attn_pdrop", "attention_probs_dropout_prob")
_ASKS_FOR_KINDS = {"molmo2": "mm_token_type_ids"}  # by model_type, what it will not train without: the kind of each token
_DROPS, _JITTERS = "drop", "jitter"  # in the names of numbers by which a model's own code draws


def load_base(config: Config, settings: Settings, device: torch.device, mapped: bool = False) -> tuple[nn.Module, list[str]]:
    """Load the frozen base model; return it, and notes on what was changed in its configuration.

    What is held in 4 or 8 bits is read, quantised and placed layer by layer, so that no device holds the model in 16 bits.

    mapped: in main memory, its weights left in their files as far as their types are those asked for.
    """
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")  # between PEFT and transformers, not ours to act on
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    facts = read_model(config.model)
    _refuse_quantised(facts)
    packed, wide, fewer = packed_as(facts.config), widened_from(facts.config), in_fewer_bits(facts, settings)
    home = torch.device("cpu") if mapped else device
    place = torch.device("cpu") if fewer and not packed else home
    half = HALF_TYPES.get(settings.dtype)
    dtype = half if half and facts.stored in HALVES else torch.float32
    halves = None if half else HALVES.get(facts.stored or "")
    loaded = halves if halves and (mapped or on_card(device)) and settings.frozen != "fp32" else dtype
    if fewer and not packed:
        loaded = HALVES.get(facts.stored or "", torch.float32)  # as it lies in the files, which are mapped
    notes = []
    if wide:
        loaded = torch.bfloat16  # the one model that its weights stand for, however it is held and computed with
        notes.append(f"weights that come in {wide} -> bf16, as they are loaded")
    model, left, about = _read(facts, loaded, settings.attention, place, device)
    notes += about
    if not hasattr(model, "prepare_inputs_for_generation"):
        text = f"{type(model).__name__} of transformers {transformers.__version__} does not write one token after the other"
        raise Refusal("launch_misconfigured", text, "give a causal language model")
    given = unpack(model, packed, loaded, widen=fewer is None) if packed else None
    if name := _ASKS_FOR_KINDS.get(model.config.model_type):
        model.register_forward_pre_hook(partial(_of_text_alone, name), with_kwargs=True)
    if left:
        named = _some(left)
        notes.append(f"{len(left)} tensors of the weights have no place in the model that config.json describes and are left out: {named}")
    if fewer:
        narrow = half or halves  # what a matrix would have been rounded to
        model.held = hold_quantised(model, facts.folder, fewer, DTYPES[settings.dtype], device, home, narrow, given)
    if half:
        if fewer and not wide and loaded != dtype:
            widen_constants(model, facts, dtype)
        exact = config.adapter.kind.own_weights and facts.stored not in HALVES  # what is trained must not be rounded
        mix_precision(model, device.type, half, halve=settings.frozen != "fp32" and not exact)
    elif halves:
        if loaded != dtype:
            widen_constants(model, facts)
        if settings.frozen != "fp32":
            keep_narrow(model, halves, dtype)
        elif wide:
            model = model.float()
    elif settings.frozen == "half":
        keep_narrow(model, torch.bfloat16, dtype)
    model.config.use_cache = False
    if fewer:
        bring(model, held_weights(model), home)
    else:
        model = model.to(home)
    notes += without_attention_dropout(model)
    return model, notes if settings.own_dropout else notes + without_own_dropout(model)


def in_fewer_bits(facts: ModelFacts, settings: Settings) -> PackedWeights | None:
    """Return the format of a run's frozen matrices where that is 4 or 8 bits, else None."""
    packed = packed_as(facts.config)
    if packed and settings.frozen in ("auto", packed.kind):
        return packed
    return PackedWeights(settings.frozen, settings.double_quant) if FORMATS[settings.frozen].width else None  # type: ignore[arg-type]


def _read(
    facts: ModelFacts, loaded: torch.dtype, attention: str, place: torch.device, device: torch.device
) -> tuple[Any, list[str], list[str]]:
    """Read the model as its files have it: (model, names of unused tensors, notes). Raises Refusal where there is none."""
    try:
        return *_from_folder(facts, loaded, attention, place), []
    except ValueError as error:
        if "does not support an attention implementation" not in str(error):
            raise _no_language_model(facts, error) from error
        note = f"this architecture has no {attention} attention in transformers: its eager attention is the reference"
        return *_from_folder(facts, loaded, "eager", place), [note]
    except Exception as error:
        if (
            isinstance(error, OSError | MemoryError | Refusal)
            or device.type != "cpu"
            or is_out_of_memory(error)
            or NO_THREADS in str(error)
        ):
            raise
        text = f"{facts.folder} cannot be loaded by transformers {transformers.__version__}: {type(error).__name__}: {error}"
        raise Refusal("checkpoint_unreadable", _short(text), _ONE_DOWNLOAD) from error


def _of_text_alone(name: str, _: nn.Module, args: Any, given: dict[str, Any]) -> Any:
    """Tell a model that asks which tokens are images' that none is."""
    shown = given["input_ids"] if "input_ids" in given else given["inputs_embeds"]
    return args, {name: shown.new_zeros(shown.shape[:2], dtype=torch.long)} | given


def loader(facts: ModelFacts) -> Any:
    """Return transformers' class that loads this model; for an unknown type the one whose error says so."""
    return getattr(transformers, loads_as(facts.config) or CAUSAL)


def read_widened(facts: ModelFacts) -> dict[str, Any]:
    """Return the arguments that make from_pretrained dequantise FP8 and MXFP4 weights on any device."""
    kinds = {"fp8": transformers.FineGrainedFP8Config, "mxfp4": transformers.Mxfp4Config}
    wide = widened_from(facts.config)
    return {"quantization_config": kinds[wide](dequantize=True)} if wide else {}


def _from_folder(facts: ModelFacts, dtype: torch.dtype, attention: str, device: torch.device) -> tuple[Any, list[str]]:
    """Load the model in `dtype`; return it and the names of unused tensors.

    On a GPU tensor by tensor, so that the host never holds all of it. Raises Refusal where the weights are not those of the model in
    config.json: transformers would draw what is missing at random.
    """
    folder, there = facts.folder, {"device_map": {"": device}} if on_card(device) else {}
    model, found = loader(facts).from_pretrained(
        folder,
        dtype=dtype,
        attn_implementation=attention,
        local_files_only=True,
        trust_remote_code=False,
        use_safetensors=True,
        output_loading_info=True,
        ignore_mismatched_sizes=True,
        **read_widened(facts),
        **there,
    )
    if found["mismatched_keys"]:
        differing = [f"{name} is {list(stored)}, not {list(wanted)}" for name, stored, wanted in sorted(found["mismatched_keys"])]
        raise _other_weights(folder, "are of other shapes than config.json describes", differing)
    if found["missing_keys"]:
        lost = _some(sorted(found["unexpected_keys"]))
        why = "lack tensors of the model that config.json describes"
        more = f", and have others without a place in it: {lost}" if lost else ""
        wanted, there_are = ({one.rpartition("model.")[2] for one in found[f"{side}_keys"]} for side in ("missing", "unexpected"))
        renamed = wanted & there_are and wanted - there_are <= {"lm_head.weight"}  # which may be the embedding; ShieldGemma 2
        raise _other_weights(folder, why, sorted(found["missing_keys"]), more, _RENAMED if renamed else _ONE_DOWNLOAD)
    if told := unlike_config(model, facts):
        raise Refusal("package_conflict", *told)
    return model, sorted(found["unexpected_keys"])


def unlike_config(model: Any, facts: ModelFacts) -> tuple[str, str] | None:
    """Return (what is wrong, what to do) where the loaded model computes with something else than config.json says; None where not.

    Folders of transformers 5 have `rope_parameters`, which 4 does not read: it takes the base 10,000 instead and says nothing.
    """
    inner = model.config.get_text_config()
    written = facts.config.get("text_config") if inner is not model.config else None
    written = dict(written if isinstance(written, dict) else facts.config)
    if inner is not model.config:
        written.pop("tie_word_embeddings", None)  # the whole model's decides
    turned = [one for name, one in model.named_buffers() if name.endswith("inv_freq") and "original" not in name and not is_tower(name)]
    known = [one.tolist() for one in turned if one.dim() == 1 and type(one) is torch.Tensor]  # no stand-in without values
    found = unlike(written, inner.to_dict(), known)
    if not found:
        return None
    text = f"transformers {transformers.__version__} loads {facts.folder} as another model than its config.json says: {'; '.join(found)}"
    return (
        text,
        "pip install --upgrade transformers (an older one misreads folders of a newer); then rerun the same command to resume",
    )


_ONE_DOWNLOAD = "take config.json and weights from one download of the model; then rerun the same command to resume"
_RENAMED = "transformers looks for these weights under other names than they have: give a causal language model, or another transformers"
_NAMED = 3  # tensors


def _other_weights(folder: Path, what: str, tensors: list[str], more: str = "", hint: str = _ONE_DOWNLOAD) -> Refusal:
    return Refusal("checkpoint_model_mismatch", f"the weights of {folder} {what}: {_some(tensors)}{more}", hint)


def _some(tensors: list[str]) -> str:
    more = f" and {len(tensors) - _NAMED} more" if len(tensors) > _NAMED else ""
    return f"{'; '.join(tensors[:_NAMED])}{more}"


def widen_constants(model: Any, facts: ModelFacts, dtype: torch.dtype = torch.float32) -> None:
    """Give a model that was loaded in another type the numbers its code computes for itself (frequencies, scales) as `dtype` has them."""
    with init_empty_weights(include_buffers=False):
        wide = loader(facts).from_config(
            model.config, dtype=dtype, attn_implementation=model.config._attn_implementation, trust_remote_code=False
        )
    constants, saved = dict(wide.named_buffers()), set(model.state_dict())
    for name, buffer in model.named_buffers():
        if buffer.is_floating_point():
            buffer.data = buffer.to(constants[name].dtype) if name in saved else constants[name].to(buffer.device)


def _no_language_model(facts: ModelFacts, error: ValueError) -> Refusal:
    """Explain why transformers takes a folder for no language model, or is older than the model."""
    newer = "does not recognize this architecture" in str(error)
    kind, version = facts.config.get("model_type"), transformers.__version__
    text = f"{facts.folder} holds a model of type {kind!r}, " + (
        f"which transformers {version} does not know" if newer else f"which transformers {version} cannot load as a language model: {error}"
    )
    hint = "pip install --upgrade transformers; then rerun the same command to resume" if newer else "give a causal language model"
    return Refusal("package_conflict" if newer else "launch_misconfigured", _short(text), hint)


def _refuse_quantised(facts: ModelFacts) -> None:
    if told := comes_quantised(facts):
        raise Refusal("launch_misconfigured", *told)


def _short(text: str, limit: int = 220) -> str:
    text = " ".join(text.split())
    return text if len(text) <= limit else text[:limit] + " ..."


def without_attention_dropout(model: Any) -> list[str]:
    """Switch dropout on attention weights off; a note for each setting that was not 0."""
    notes = []
    for name in _ATTENTION_DROPOUTS:
        if getattr(model.config, name, 0.0):
            notes.append(f"{name} {getattr(model.config, name)} -> 0.0: dropped attention weights would need eager attention everywhere")
            setattr(model.config, name, 0.0)
    for module in model.modules():
        of_shares = ("dropout",) if hasattr(module, "query") and hasattr(module, "key") else ()  # as BERT's kind calls it
        for name in ("attention_dropout", "attn_dropout", *of_shares):
            value = getattr(module, name, None)
            if isinstance(value, float):
                setattr(module, name, 0.0)
            elif isinstance(value, nn.Dropout):
                value.p = 0.0
    return notes


def without_own_dropout(model: Any) -> list[str]:
    """Switch off what a model's own code drops without a module for it; a note for each setting that was not 0.

    Such masks come from torch's generator: another micro-batch, rank or replay has others. Those of nn.Dropout are a hash, and stay.
    """
    found: dict[str, float] = {}
    for module, name, value in _own_draws(model, _DROPS):
        found.setdefault(name, value)
        setattr(module, name, 0.0)
    read = {id(one): one for module in model.modules() if (one := getattr(module, "config", None)) is not None}
    for config in read.values():  # some layers read it there as they compute
        for name in found:
            if isinstance(getattr(config, name, None), float):
                setattr(config, name, 0.0)
    return [f"{name} {value} -> 0.0: {OWN_DROPOUT}, otherwise in every layout of a step" for name, value in found.items()]


def _own_draws(model: nn.Module, *words: str) -> list[tuple[nn.Module, str, float]]:
    """Return (module, name, value) of the numbers above 0 that a model's modules keep under names with one of `words`."""
    return [
        (module, name, value)
        for module in model.modules()
        for name, value in vars(module).items()
        if isinstance(value, float) and value > 0 and any(word in name for word in words)
    ]


def checkpoint_layers(model: nn.Module, layers: int) -> int:
    """Let the first `layers` decoder layers keep their inputs alone and compute the rest again in backward; return how many are able to."""
    drawn = bool(_own_draws(model, _DROPS, _JITTERS))  # else nothing is: dropout is a hash, and a model's own attention dropout is off
    able = [module for module in text_decoder(model).modules() if isinstance(module, GradientCheckpointingLayer)]
    for at, module in enumerate(able):
        module.gradient_checkpointing = at < layers
        module._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False, preserve_rng_state=drawn)
    return len(able)
