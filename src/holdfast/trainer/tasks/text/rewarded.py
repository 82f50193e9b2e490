"""Load a finished scalar head the way anybody would, with transformers' class for it and PEFT, and see how it orders held-out pairs."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification

from holdfast.base.files import Json
from holdfast.base_model.folder import ModelFacts, read_model
from holdfast.base_model.packed import PackedWeights, packed_as
from holdfast.config.config import Config
from holdfast.config.settings import Settings
from holdfast.data.token_set.token_set import load_tokens, sequences, split
from holdfast.run.base_model import refuse_changed
from holdfast.run.folder import RunFolder
from holdfast.trainer.common.decoder import bring
from holdfast.trainer.common.device import prepare_torch
from holdfast.trainer.common.refuse import Refusal
from holdfast.trainer.model.frozen.offloaded_layers import OffloadedLayers, streams
from holdfast.trainer.model.frozen.quantised import held_weights, hold_quantised
from holdfast.trainer.model.layers.mixed import HALF_TYPES
from holdfast.trainer.model.load import DTYPES, HALVES, in_fewer_bits, read_widened
from holdfast.trainer.model.trained.saved import with_adapter
from holdfast.trainer.protocol.task import Asked
from holdfast.trainer.tasks.text.objective import Reward


def rewarded(run: RunFolder, config: Config, settings: Settings, asked: Asked) -> Json:
    """Build evaluation.json: loss of held-out pairs, how many are ordered rightly, by how much. The base has no such head."""
    refuse_changed(run, config.model)
    model = load_rewarder(config, settings, run)
    tokens = load_tokens(run.data_file)
    held_out = split(tokens, config.data, config.train.seed)[1].tolist()
    result: Json = {"loads": True, "rows": len(held_out), "eval_base": None, "eval_tuned": None, "exact_match": None, "samples": []}
    if not held_out:
        return result
    margins = []
    for row in held_out:
        better, worse = (_score(model, ids) for (ids, _), _ in sequences(*tokens.row(row)))
        margins.append(better - worse)
        asked(1)
    apart = torch.tensor(margins, dtype=torch.float64)
    shares = {"pair_accuracy": float((apart > 0).double().mean()), "margin": float(apart.mean())}
    says = f"{shares['pair_accuracy']:.1%} of {len(held_out):,} pairs in their order (by chance 50 %), mean margin {shares['margin']:.3g}"
    counting = torch.from_numpy(tokens.weights_of(held_out))
    return result | {
        "eval_tuned": float((Reward(config.preference, 1.0).smoothed(apart) * counting).sum() / counting.sum()),
        **shares,
        "metrics": shares,
        "says": says,
    }


def load_rewarder(config: Config, settings: Settings, run: RunFolder) -> Any:
    """Load the reward model by transformers and PEFT alone; as it is stored where the run computed in fewer bits.

    What the run held in 4 or 8 bits is held in the same ones, which its own start has kept. Raises Refusal where they are wrong.
    """
    device = prepare_torch(settings)
    exact = settings.dtype == "fp32" and settings.frozen in ("auto", "fp32", "half")
    facts = read_model(config.model)
    fewer = None if packed_as(facts.config) else in_fewer_bits(facts, settings)  # what comes packed stays so
    how = read_widened(facts)
    base: Any = AutoModelForSequenceClassification.from_pretrained(
        facts.folder,
        num_labels=1,
        dtype=torch.bfloat16 if how else torch.float32 if exact else "auto",
        local_files_only=True,
        trust_remote_code=False,
        use_safetensors=True,
        **how,
    )
    if how and exact:
        base = base.float()
    away = streams(config, device)
    if fewer:
        _hold(base, facts, fewer, settings, (device, torch.device("cpu") if away else device))
    base.score.float().register_forward_pre_hook(_widened)  # in 16 bits close answers would have the same score
    model = with_adapter(base, run.adapter)
    if away:
        OffloadedLayers(model, base, device).settle()
    elif fewer:
        bring(model, held_weights(base), device)
    else:
        model = model.to(device)
    return model


def _widened(_head: Any, inputs: tuple[Tensor]) -> tuple[Tensor]:
    """Give the head its input in fp32, as in training."""
    return (inputs[0].float(),)


def _hold(base: Any, facts: ModelFacts, form: PackedWeights, settings: Settings, places: tuple[torch.device, torch.device]) -> None:
    """Put the layers' weights in fewer bits, as the run's were. places: the device that computes, and where they are kept."""
    head, base.score = base.score, None  # it is trained, so it has all of its bits
    narrow = HALF_TYPES.get(settings.dtype) or HALVES.get(facts.stored or "")
    found = hold_quantised(base, facts.folder, form, DTYPES[settings.dtype], *places, narrow)
    base.score = head
    if found.fault:
        raise Refusal("launch_misconfigured", found.fault, "pip install -U bitsandbytes")


@torch.inference_mode()
def _score(model: Any, ids: npt.NDArray[np.int32]) -> float:
    """Score one sequence, alone: not every model has a token to pad with."""
    numbers = torch.from_numpy(ids.astype(np.int64))[None].to(next(model.parameters()).device)
    return float(model(input_ids=numbers).logits[0, 0])
