"""A saved adapter on its base model, as PEFT loads it: all of it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from peft import PeftModel

from holdfast.base.errors import BLOCKED, Stop
from holdfast.trainer.common.libraries import without_bitsandbytes
from holdfast.trainer.model.trained.tokens import use_lean_tokens

_LEFT_OUT = "Found missing adapter keys"  # PEFT's warning, which goes on with the base's weights there


def load_whole(base: Any, folder: Path | str, others: Mapping[str, str] | None = None) -> Any:
    """Return `base` with the adapter in `folder`, which is active, and others by PEFT's name of each.

    Raises Stop where PEFT leaves modules of one out, and what PEFT raises.
    """
    with warnings.catch_warnings(), without_bitsandbytes():
        warnings.filterwarnings("error", message=f".*{_LEFT_OUT}")
        try:
            model = PeftModel.from_pretrained(base, str(folder))
            for name, other in (others or {}).items():
                model.load_adapter(other, adapter_name=name, torch_device="cpu")
            return model
        except UserWarning as warning:
            text = f"{folder}: PEFT does not find all of this adapter in its file and would take the base's weights instead"
            raise Stop(
                BLOCKED, f"{text}: {str(warning)[:300]}", "give the base model it was trained on, or train with other adapter.targets"
            ) from None


def with_adapter(base: Any, folder: Path | str, others: Mapping[str, str] | None = None) -> Any:
    """Return `base` with the adapter in `folder`, and others by name, for inference. Raises as load_whole.

    The matrices of `base` may be kept narrow (frozen.py): PEFT's own products with trained rows of a table do not know that.
    """
    tuned = load_whole(base, folder, others).eval()
    use_lean_tokens(tuned)
    return tuned
