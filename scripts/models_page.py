"""Write docs/reference/models.md from benchmarks/results/models.json, which benchmarks/models/matrix.py measures."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "reference" / "models.md"
RESULTS = ROOT / "benchmarks" / "results" / "models.json"
_HEAD = """# Models

Written by `scripts/models_page.py` from what `python benchmarks/models/matrix.py` saw, with transformers {version}: {counted}.

Each type of transformers' lists of causal and image-text-to-text models is made tiny from its own config class, with random weights.
It is trained three steps, killed in the second, resumed, and exported; then loaded by the class that its config.json names, by
AutoModelForCausalLM where that takes it, and by PEFT, and its adapter's names are held against what vLLM and SGLang look for.

* **right**: logits move wherever it is loaded, the merged model's as much as the adapter's; what a server ignores is in the card.
* **refused**: before row one, with the sentence beside it.
* **wrong**: the sentence says what is. **not made**: no tiny model of it was made here, so nothing is known.

| type | | what learns | logits move | merged differs | why, or what servers ignore |
|---|---|---|---|---|---|
"""
_ORDER = ("right", "refused", "wrong", "not made")


def written(results: dict[str, Any]) -> str:
    """The page. A type that was not gone through is not on it."""
    found = results["types"]
    counts = Counter(one["verdict"] for one in found.values())
    counted = ", ".join(f"{counts[verdict]} {verdict}" for verdict in _ORDER if counts[verdict])
    rows = "".join(_row(kind, found[kind]) for kind in sorted(found, key=lambda kind: (_ORDER.index(found[kind]["verdict"]), kind)))
    return _HEAD.format(version=results["transformers"], counted=f"of {len(found)} types gone through so far {counted}") + rows


def _row(kind: str, one: dict[str, Any]) -> str:
    learns = ", ".join(part if share in (1.0, None) else f"{part} ({share:.0%})" for part, share in one.get("learns", {}).items())
    moves, merged = (f"{one[name]:.2g}" if name in one else "" for name in ("moves", "merged_differs"))
    rounded = "the merged model is PEFT's own merge as bf16 holds it" if "merged_rounds" in one else ""
    why = "; ".join(text for text in (one.get("why"), rounded, *one.get("servers", ())) if text).replace("|", "\\|").replace("<", "&lt;")
    return f"| `{kind}` | {one['verdict']} | {learns} | {moves} | {merged} | {why} |\n"


if __name__ == "__main__":
    PAGE.write_text(written(json.loads(RESULTS.read_text(encoding="utf-8"))), encoding="utf-8")
