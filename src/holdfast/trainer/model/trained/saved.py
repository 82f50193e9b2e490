"""A saved adapter on its base model, as PEFT loads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from peft import PeftModel

from holdfast.trainer.libraries import without_bitsandbytes
from holdfast.trainer.model.trained.tokens import use_lean_tokens


def with_adapter(base: Any, folder: Path | str) -> Any:
    """`base` with the adapter in `folder`, for inference. Raises what PEFT raises.

    The matrices of `base` may be kept narrow (frozen.py): PEFT's own products with trained rows of a table do not know that.
    """
    with without_bitsandbytes():
        tuned = PeftModel.from_pretrained(base, str(folder)).eval()
    use_lean_tokens(tuned)
    return tuned
