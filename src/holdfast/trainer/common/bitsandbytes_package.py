"""bitsandbytes, where it is installed: imported by those runs alone that ask for it."""

from __future__ import annotations

import importlib
from typing import Any

from holdfast.base.versions import install
from holdfast.trainer.common.refuse import Refusal


def bitsandbytes(wanted_by: str) -> Any:
    """Import and return the package. Raises Refusal, which names `wanted_by`, where it is missing or cannot be loaded."""
    try:
        return importlib.import_module("bitsandbytes")
    except ImportError as error:
        text = f"{wanted_by} needs bitsandbytes, which cannot be imported here: {error}"
        raise Refusal("package_conflict", text, f"{install('quantised')}; then rerun the same command to resume") from None
