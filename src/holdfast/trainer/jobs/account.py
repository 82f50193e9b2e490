"""Trace steps of shapes and say what each needs: a JSON object a line is asked, one is answered. Loads no weights, computes nothing."""

from __future__ import annotations

import contextlib
import resource
import sys
import time
from pathlib import Path

import orjson
import torch
import transformers
from accelerate import init_empty_weights  # type: ignore[import-untyped]
from torch.nn.attention import SDPBackend, sdpa_kernel

from holdfast.base.files import Json
from holdfast.base_model.folder import ModelFacts
from holdfast.base_model.forms import with_floats
from holdfast.config.config import Config
from holdfast.config.settings import Settings
from holdfast.trainer.common.refuse import Refusal
from holdfast.trainer.model.load import loader, unlike_config
from holdfast.trainer.traced.curve import curve
from holdfast.trainer.traced.peak import peak_of, start_of
from holdfast.trainer.traced.replay import CardAllocator, Heap, MappedHeap, held
from holdfast.trainer.traced.step import StepTrace, trace

_CARD_UNIT = 512  # bytes; what torch's allocator rounds up to
_OTHERS = (ArithmeticError, AttributeError, LookupError, NotImplementedError, OSError, RuntimeError, TypeError, ValueError)


def account() -> int:
    """Answer {config, model: {folder, config, stored}, ...}: with `shapes` the weights' shapes, with `unlike` what the model computes
    otherwise than its config.json says, else what a step needs."""
    said, sys.stdout = sys.stdout, sys.stderr  # what libraries print is no answer
    process = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # interpreter and libraries: all that a trainer imports, too
    for line in sys.stdin.buffer:
        asked = orjson.loads(line)
        about = asked["model"]
        model = ModelFacts(Path(about["folder"]), about["config"], {}, 0, about["stored"])
        if asked.get("unlike"):
            answer = _unlike(model)
        else:
            answer = _shapes(model) if asked.get("shapes") else told(Config.model_validate(asked["config"]), model, asked)
        said.buffer.write(orjson.dumps(answer | {"process": process}, option=orjson.OPT_APPEND_NEWLINE))
        said.flush()
    return 0


def _shapes(model: ModelFacts) -> Json:
    try:
        with torch.device("meta"):
            made = loader(model).from_config(transformers.AutoConfig.for_model(**with_floats(model.config)))
    except _OTHERS as error:
        return _failed(error)
    return {"shapes": {name: list(parameter.shape) for name, parameter in made.named_parameters()}}


def _unlike(model: ModelFacts) -> Json:
    try:
        with init_empty_weights(include_buffers=False):
            known = transformers.AutoConfig.from_pretrained(model.folder, local_files_only=True, trust_remote_code=False)
            made = loader(model).from_config(known, trust_remote_code=False)
        return {"unlike": unlike_config(made, model)}
    except _OTHERS as error:
        return _failed(error)


def told(config: Config, model: ModelFacts, case: Json) -> Json:
    """Compute what one case needs, or why that is not known: {refused, hint} by the trainer, {failed} by others' code."""
    began = time.perf_counter()
    settings = Settings.model_validate(case["settings"])
    if case.get("layers"):
        model = ModelFacts(model.folder, _cut(model.config, case["layers"]), {}, 0, model.stored)
    unfused = sdpa_kernel(SDPBackend.MATH) if case.get("plain_attention") else contextlib.nullcontext()
    try:
        with unfused:
            traced = _trace_step(model, config, settings, case)
    except Refusal as refusal:
        return {"refused": str(refusal), "hint": refusal.hint}
    except _OTHERS as error:
        return _failed(error)
    card = settings.device == "cuda"
    peak, begin = peak_of(traced, _CARD_UNIT if card else 1), start_of(traced.log)
    return {
        "bytes": peak.bytes,
        "peak": peak.total,
        "phase": peak.phase,
        "places": peak.places,
        "largest": peak.largest,
        "building": peak.building,
        "held": held(traced.log, begin, CardAllocator() if card else Heap()),
        "mapped": None if card else held(traced.log, begin, MappedHeap()),
        "params": {"total": traced.total, "trainable": traced.trainable},
        "learns": traced.parts.learns,
        "weights_by_part": traced.parts.weights,
        "reached_by_part": traced.parts.reached,
        "layers": traced.layers,
        "flops": 2 * traced.log.multiplications,
        "seconds": round(time.perf_counter() - began, 3),
    } | ({"curve": curve(traced)} if case.get("curve") else {})


def _trace_step(model: ModelFacts, config: Config, settings: Settings, case: Json) -> StepTrace:
    """Trace a step; padded where samples of this architecture cannot share a row, as a run finds by trying."""
    try:
        return trace(model, config, settings, case["lengths"], case["labels"], case.get("cut", False))
    except NotImplementedError:
        if not settings.packing:
            raise
    return trace(model, config, settings.model_copy(update={"packing": False}), case["lengths"], case["labels"], case.get("cut", False))


def _failed(error: Exception) -> Json:
    return {"failed": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}


def _cut(config: Json, layers: int) -> Json:
    """Return the config of the same model with fewer layers."""
    if isinstance(inner := config.get("text_config"), dict):
        return config | {"text_config": _cut(inner, layers)}
    kinds = {name: config[name][:layers] for name in ("layer_types", "layers_block_type") if isinstance(config.get(name), list)}
    return config | ({} if "layers_block_type" in kinds else {"num_hidden_layers": layers}) | kinds
