"""Merge an adapter by PEFT and write the model by transformers, in fp32 and under the names that transformers gives its files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from peft.utils import get_peft_model_state_dict
from safetensors import safe_open
from transformers import logging

from holdfast.base.errors import BLOCKED, DONE, Stop
from holdfast.base.files import read_json
from holdfast.base_model.folder import read_model
from holdfast.run.artifact import ARTIFACT
from holdfast.trainer.model.load import loader, read_widened
from holdfast.trainer.model.trained.loaded_names import loadable_names
from holdfast.trainer.model.trained.saved import load_whole


def merge(request: Path) -> int:
    """Write base + adapter of {model, adapter, out} to out/merged. Raises Stop(1) where PEFT leaves tensors of the adapter out."""
    asked = read_json(request) or {}
    logging.set_verbosity_error()
    facts = read_model(asked["model"])
    about: Any = {"dtype": torch.float32, "local_files_only": True, "trust_remote_code": False, "use_safetensors": True}
    base = loader(facts).from_pretrained(facts.folder, **about, **read_widened(facts))
    tuned = load_whole(base, asked["adapter"])
    with safe_open(Path(asked["adapter"]) / ARTIFACT, "pt") as file:
        lost = set(file.keys()) - {*loadable_names(tuned, get_peft_model_state_dict(tuned, save_embedding_layers=False)).values()}
    if lost:
        raise Stop(BLOCKED, f"PEFT finds no place for {sorted(lost)[0]}", "give the base model it was trained on with --base DIR")
    tuned.merge_and_unload(safe_merge=True).save_pretrained(Path(asked["out"]) / "merged")
    return DONE
