"""How a run holds the weights of a model that comes in few bits: as it comes, widened, or not at all. Reads no file."""

from __future__ import annotations

from holdfast.base.errors import BLOCKED, Stop
from holdfast.base.units import listed
from holdfast.base_model.folder import ModelFacts, comes_quantised
from holdfast.base_model.packed import packed_as, widened_from
from holdfast.base_model.parts import in_stacks, part_of
from holdfast.base_model.types import multiplies_stacks
from holdfast.config.config import Config
from holdfast.planning.memory.trained_size import packed_by_us, trained_sizes

_WHOLE = "take the model in 16 bits"


def as_it_comes(config: Config, model: ModelFacts) -> Config:
    """Return the config with train.frozen as in the model's files where their weights are packed and it asks for nothing else.

    Raises Stop(1) where such a model cannot be had as the config asks.
    """
    if told := comes_quantised(model):
        raise Stop(BLOCKED, *told)
    packed, train, wide = packed_as(model.config), config.train, widened_from(model.config)
    if wide and train.fsdp:
        text = f"{model.folder} comes in {wide}, and train.fsdp cuts layers as they lie in the files"
        raise Stop(BLOCKED, text, f"{_WHOLE}, or leave train.fsdp out")
    if packed is None:
        refuse_experts(config, model)
        return config
    comes, kind = f"{model.folder} comes in {packed.kind}, by bitsandbytes", config.adapter.type
    if config.adapter.kind.own_weights:
        raise Stop(BLOCKED, f"{comes}, and adapter.type {kind} trains the weights themselves", f"{_WHOLE}, or adapter.type: lora")
    if train.fsdp:
        raise Stop(BLOCKED, f"{comes}, and train.fsdp cuts frozen layers in 16 or 32 bits", f"{_WHOLE}, or leave train.fsdp out")
    if train.frozen in ("half", "fp32"):
        return config
    if train.frozen not in ("auto", packed.kind) or (train.double_quant and not packed.double):
        asked = f"train.frozen is {train.frozen}{' with double_quant' if train.double_quant else ''}"
        raise Stop(BLOCKED, f"{comes}, and {asked}: it would be rounded twice", f"leave train.frozen out, or {_WHOLE}")
    return config.model_copy(update={"train": train.model_copy(update={"frozen": packed.kind, "double_quant": packed.double})})


def refuse_experts(config: Config, model: ModelFacts) -> None:
    """Raise Stop(1) where weights are asked for in 4 or 8 bits, and a part of them is experts in stacks that cannot be held so."""
    stacked = in_stacks(model.shapes)
    if not (stacked and packed_by_us(config, model)):
        return
    asked, kind = f"train.frozen {config.train.frozen}", model.text.get("model_type") or model.config.get("model_type")
    if not multiplies_stacks(kind):
        text = f"{asked} holds linear layers in fewer bits, and {stacked / model.parameters():.0%} of the weights of {model.folder} are"
        text += f" experts in stacks, which transformers' code of {kind} multiplies in a way of its own: they would stay in 16 bits"
        raise Stop(BLOCKED, text, "leave train.frozen out; where that does not fit, train.offload: layers")
    if trained := [name for name in trained_sizes(config, model) if part_of(name) == "experts"]:
        text = (
            f"{asked} holds the experts of {model.folder} in stacks of fewer bits, and the adapter is to change them ({listed(trained, 3)})"
        )
        raise Stop(BLOCKED, text, "name layers beside them: adapter.targets: [q_proj, k_proj, v_proj, o_proj]; or leave train.frozen out")
