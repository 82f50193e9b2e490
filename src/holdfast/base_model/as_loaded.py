"""Does a loaded model compute with what config.json says? Another version of transformers reads other keys, and takes defaults in silence.

Pure: of config.json, of what the loaded model says of itself, and of the frequencies its positions are turned by.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from holdfast.base.files import Json

_COMPUTES = (  # keys of config.json that a model computes with, which shapes of weights do not tell, in the form of every version
    *("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps", "norm_epsilon", "hidden_act", "activation_function"),
    *("hidden_activation", "num_attention_heads", "num_key_value_heads", "query_pre_attn_scalar", "attn_logit_softcapping"),
    *("final_logit_softcapping", "attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling"),
    *("num_experts_per_tok", "norm_topk_prob", "routed_scaling_factor", "tie_word_embeddings"),
)
_NEAR = 0.01  # of a base or factor: one read from frequencies in fp32 is nearer
_BEYOND = ("llama3", "yarn")  # change the frequencies whose wavelength is longer than the context they were trained with
_TURN = 2 * math.pi


def unlike(written: Json, loaded: Json, frequencies: Iterable[Sequence[float]]) -> list[str]:
    """Return what the loaded model computes with otherwise than config.json says, in words; nothing where it is alike.

    written: config.json of the language model; loaded: the same as the loaded model has it; frequencies: `inv_freq` of each of its
    rotary embeddings, the highest first. What config.json does not say, or has in a form not known here, is not judged.
    """
    found = [
        f"{key} is {written[key]!r}, it computes with {loaded[key]!r}"
        for key in _COMPUTES
        if written.get(key) is not None and loaded.get(key) is not None and not _equal(written[key], loaded[key])
    ]
    known = [[*map(float, one)] for one in frequencies]
    return found + [told for told in (_unlike_rope(rope, known) for rope in _ropes(written)) if told]


def _equal(one: object, other: object) -> bool:
    if isinstance(one, int | float) and isinstance(other, int | float):
        return math.isclose(one, other, rel_tol=1e-6)
    return type(one) is not type(other) or one == other


def _ropes(written: Json) -> list[Json]:
    """Return each rotary embedding as config.json has it, in the form of any version: its base, its type, its factor."""
    told = written.get("rope_parameters") or written.get("rope_scaling") or {}
    if not isinstance(told, dict):
        return []
    by_layer = [one for one in told.values() if isinstance(one, dict)]
    return [{"rope_theta": written.get("rope_theta"), **one} for one in by_layer or [told]]


def _unlike_rope(rope: Json, frequencies: list[list[float]]) -> str | None:
    """Return how the model's positions differ from what `rope` says; None where one of its embeddings is alike, or it cannot be told."""
    base, kind, factor = rope.get("rope_theta"), rope.get("rope_type", rope.get("type", "default")), rope.get("factor")
    able = [one for one in frequencies if len(one) > 2 and all(value > 0 for value in one)]
    if not able or not isinstance(base, int | float) or base <= 0:
        return None
    if kind in ("default", "mrope", "linear"):
        first = 1 / factor if kind == "linear" and isinstance(factor, int | float) and factor > 0 else 1.0
        if any(math.isclose(one[0], first, rel_tol=_NEAR) and math.isclose(_base(one), base, rel_tol=_NEAR) for one in able):
            return None
    elif kind in _BEYOND:
        if not all(_unscaled(one, rope) for one in able):
            return None
    else:
        return None
    scaled = "" if kind in ("default", "mrope") else f" with {kind} scaling"
    theirs = ", ".join(f"{_base(one):,.0f}" + (f" with frequencies times {one[0]:.3g}" if abs(one[0] - 1) > _NEAR else "") for one in able)
    return f"the RoPE base is {base:,.0f}{scaled}, it computes with {theirs}" + (" without scaling" if kind in _BEYOND else "")


def _base(frequencies: list[float]) -> float:
    """Return the base whose powers the frequencies are, by the first two: base ** (-2 i / dimensions)."""
    return float((frequencies[0] / frequencies[1]) ** len(frequencies))


def _unscaled(frequencies: list[float], rope: Json) -> bool:
    """Return whether frequencies are plain powers of a base, though some belong to positions beyond the context `rope` scales from."""
    plain = all(math.isclose(value, _base(frequencies) ** (-at / len(frequencies)), rel_tol=_NEAR) for at, value in enumerate(frequencies))
    factor, context = rope.get("factor"), rope.get("original_max_position_embeddings")
    if not plain or not isinstance(factor, int | float) or factor <= 1 or not isinstance(context, int | float):
        return False
    return _longest(rope, len(frequencies)) > context


def _longest(rope: Json, dimensions: int) -> float:
    """Return the wavelength in tokens of the lowest frequency that `rope`'s base makes."""
    return float(_TURN * rope["rope_theta"] ** ((dimensions - 1) / dimensions))
