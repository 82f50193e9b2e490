"""Which causal language models the installed transformers has code for. Reads its source; imports nothing of it."""

from __future__ import annotations

import importlib.util
import re
from functools import cache
from pathlib import Path

_LIST = re.compile(r"^MODEL_FOR_CAUSAL_LM_MAPPING_NAMES\b.*?^\)", re.MULTILINE | re.DOTALL)


@cache
def causal_types() -> frozenset[str] | None:
    """The values of `model_type` in config.json; None where transformers is not installed or keeps its list elsewhere."""
    found = importlib.util.find_spec("transformers")
    file = Path(found.origin).parent / "models" / "auto" / "modeling_auto.py" if found and found.origin else None
    try:
        listed = _LIST.search(file.read_text(encoding="utf-8")) if file else None
    except OSError:
        return None
    return frozenset(re.findall(r'\("([^"]+)",', listed.group())) or None if listed else None
