"""What a run starts with: attention, number formats, padding, libraries of products, what learns. Measured on the built model."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from holdfast.base.files import Json
from holdfast.base_model.types import has_towers
from holdfast.run.plan import learning
from holdfast.trainer.jobs.laboratory.rows import label_facts
from holdfast.trainer.model.trained.parts import parts_of
from holdfast.trainer.step.training_state import TrainingState


def start_facts(training: TrainingState, request: Json, folder: Path) -> Json:
    """Collect `start` as `holdfast check` prints it, and what the experiments need to know of the rows."""
    task, job = training.task, training.job
    trained = {id(tensor): name for name, tensor in training.artifact.tensors.items()}
    frozen = Counter(str(p.dtype).removeprefix("torch.") for p in task.model.parameters() if id(p) not in trained and not p.requires_grad)
    return {
        "start": {
            "attention": getattr(task, "attends", None),
            "dtype": {
                "frozen": frozen.most_common(1)[0][0] if frozen else None,
                "trained": _dtype(training),
                "computed": training.settings.dtype,
            },
            "pad": getattr(getattr(task, "tokens", None), "pad", None),
            "cudnn_attention": _cudnn() if training.device.type == "cuda" else None,
            "blas": _blas(training.device),
            "learns": _learns(training),
        },
        "facts": task.facts,
        "remarks": [kind for kind, _ in chain(task.look_first(job.run, job.config), task.remarks(fresh=True))],
        "settings": training.settings.as_json(),
        "steps": job.settings(1).steps,
        "trainable": sum(p.numel() for p in training.optimizer.parameters.values()),
        "rows": label_facts(training),
    }


def _dtype(training: TrainingState) -> str | None:
    kinds = {str(p.dtype).removeprefix("torch.") for p in training.optimizer.parameters.values()}
    return " and ".join(sorted(kinds)) or None


def _blas(device: torch.device) -> str:
    """Name the library that multiplies matrices here."""
    if device.type == "cuda":
        kind: Any = torch.backends.cuda.preferred_blas_library()
        return str(kind).rpartition(".")[2].lower()
    return "mkl" if torch.backends.mkl.is_available() else "openblas or eigen"  # type: ignore[no-untyped-call]


def _cudnn() -> bool:
    return bool(torch.backends.cuda.cudnn_sdp_enabled())  # type: ignore[no-untyped-call]


def _learns(training: TrainingState) -> Json:
    """Count trained parameters by part of the model, as in plan.json, and the share of the part's weights they change."""
    config = getattr(training.task.model, "config", None)
    parts = parts_of(training.task.model, training.optimizer.parameters, config is not None and has_towers(config.to_dict()))
    return {part: one.model_dump() for part, one in learning(*parts).items()}
