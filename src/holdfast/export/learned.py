"""How much of what was learned an export has: the difference of base and base + adapter, sought in the export's logits. Pure.

A limit on the logits alone is passed by the base itself where little was learned, so what an export may differ by is a share of that.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from holdfast.base.files import Json

NOTHING = 1e-8  # NMSE of the base against base + adapter up to which two computations in fp32 may differ as much
HALF = 0.5  # of what was learned: what an export has less of is taken for another model
_BURIED = 4.0  # times what was learned: a difference beyond that hides it
_SURE = 2.0  # standard errors


def learned_of(reference: npt.NDArray[np.float32], base: npt.NDArray[np.float32], exported: npt.NDArray[np.float32]) -> Json | None:
    """Compare the base with base + adapter, and return the share of it that an export has; None where vocabularies differ.

    All are logits [places, tokens]. kept: 1 for base + adapter, 0 for the base, by least squares over all places; error: its standard
    error, leaving one place out at a time. seen: the difference of the export is not so large that it could hide what was learned.
    """
    if base.shape != reference.shape or base.shape != exported.shape:
        return None
    ours, bare, theirs = (one.astype(np.float64) - one.mean(axis=1, keepdims=True, dtype=np.float64) for one in (reference, base, exported))
    learned, found = ours - bare, theirs - bare
    size, common = (learned**2).sum(axis=1), (learned * found).sum(axis=1)
    total, apart = float(size.sum()), float(((ours - theirs) ** 2).sum())
    nmse = total / max(float((ours**2).sum()), 1e-30)
    if not np.isfinite([total, apart]).all() or nmse <= NOTHING:
        return {"nmse": nmse, "kept": None, "error": None, "seen": False}
    kept, error = float(common.sum() / total), _error(size, common)
    return {"nmse": nmse, "kept": kept, "error": error, "seen": apart <= _BURIED * total and _SURE * error < HALF}


def _error(size: npt.NDArray[np.float64], common: npt.NDArray[np.float64]) -> float:
    """Estimate the standard error of common / size over places by the jackknife; infinite for one place."""
    left = size.sum() - size
    if len(size) < 2 or not (left > 0).all():
        return float("inf")
    without = (common.sum() - common) / left
    return float(np.sqrt((len(size) - 1) * without.var()))


def lost(learned: Json | None) -> bool:
    """Return whether an export surely has less than half of what was learned."""
    return learned is not None and learned["seen"] and learned["kept"] + _SURE * learned["error"] < HALF
