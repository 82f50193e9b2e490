"""Load the finished adapter the way anybody would, with plain transformers and PEFT, and measure its held-out loss against the base."""

from __future__ import annotations

from pathlib import Path

import torch
from peft import PeftModel
from torch import nn

from holdfast.core.files import Json, write_json
from holdfast.core.run import RunFolder
from holdfast.core.table import split_rows
from holdfast.core.timeline import read_timeline, settings_at
from holdfast.rows.tokenset import TokenSet, load_tokens
from holdfast.trainer.model import load_base, prepare_torch
from holdfast.trainer.tasks.sft import label_loss, micro_batches


def evaluate(path: Path) -> int:
    """Write evaluation.json: held-out loss per label token of the base and of the tuned model; None without held-out rows."""
    run = RunFolder(path)
    config = run.config()
    timeline = read_timeline(run.timeline_file)
    settings = settings_at(timeline, timeline[-1]["from_step"])
    device = prepare_torch(config, settings)
    base, _ = load_base(config, settings, device)
    model = PeftModel.from_pretrained(base, str(run.adapter)).eval()
    tokens = load_tokens(run.data_file)
    _, held_out = split_rows(len(tokens), config.data.held_out, config.train.seed)
    result: Json = {"loads": True, "rows": len(held_out), "eval_base": None, "eval_tuned": None}
    if held_out:
        result["eval_tuned"] = mean_loss(model, tokens, held_out, settings["micro_batch_tokens"], device)
        with model.disable_adapter():
            result["eval_base"] = mean_loss(model, tokens, held_out, settings["micro_batch_tokens"], device)
    write_json(run.evaluation_file, result)
    return 0


def mean_loss(model: nn.Module, tokens: TokenSet, rows: list[int], budget: int, device: torch.device) -> float:
    """Cross-entropy per label token over `rows`, in nats."""
    total, labels = 0.0, 0
    with torch.inference_mode():
        for batch in micro_batches(tokens, rows, budget, device):
            total += float(label_loss(model, batch).double())
            labels += batch.labels
    return total / labels
