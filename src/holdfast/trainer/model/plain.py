"""Load a model folder as anybody would, by plain transformers and PEFT, to measure it. Trains nothing.

Weights stored in 16 bits stay so and are widened one product at a time, those in 4 and 8 at once: all is computed in fp32, because two
models are compared.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, logging

from holdfast.base_model.folder import read_model
from holdfast.base_model.packed import packed_as
from holdfast.trainer.model.frozen.halves import keep_narrow
from holdfast.trainer.model.frozen.unpack import unpack
from holdfast.trainer.model.load import HALVES, read_widened, widen_constants
from holdfast.trainer.model.trained.saved import with_adapter


def load_plain(folder: str, adapter: str | None, device: torch.device) -> Any:
    """The model in `folder`, with a PEFT adapter on it where one is named. Raises what transformers and PEFT raise."""
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    facts = read_model(folder)
    packed = packed_as(facts.config)
    halves = None if packed else HALVES.get(facts.stored or "")
    model, found = AutoModelForCausalLM.from_pretrained(
        facts.folder,
        dtype=halves or torch.float32,
        local_files_only=True,
        trust_remote_code=False,
        use_safetensors=True,
        output_loading_info=True,
        **read_widened(facts),
    )
    if found["missing_keys"]:
        raise ValueError(f"{facts.folder} lacks {', '.join(sorted(found['missing_keys'])[:3])}")
    if packed:
        unpack(model, packed, torch.float32)
        widen_constants(model)
        model = model.float()  # what was never packed is loaded in the type of bitsandbytes' arithmetic
    elif halves:
        widen_constants(model)
        keep_narrow(model, halves, torch.float32)
    model = model.to(device).eval()
    return model if adapter is None else with_adapter(model, Path(adapter).resolve())
