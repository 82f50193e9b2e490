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
_PLAIN = ("default", "mrope", "linear")  # every frequency is a power of the base, divided by one factor
_BEYOND = ("llama3", "yarn")  # change the frequencies whose wavelength is longer than the context they were trained with
_TURN = 2 * math.pi


def unlike(written: Json, loaded: Json, frequencies: Iterable[Sequence[float]]) -> list[str]:
    """Return what the loaded model computes with otherwise than config.json says, in words; nothing where it is alike.

    written: config.json of the language model; loaded: the same as the loaded model has it; frequencies: `inv_freq` of each of its
    rotary embeddings, in any order (ERNIE 4.5 VL has those of height and width by turns). What config.json does not say, or has in a
    form not known here, is not judged.
    """
    found = [
        f"{key} is {written[key]!r}, it computes with {loaded[key]!r}"
        for key in _COMPUTES
        if written.get(key) is not None and loaded.get(key) is not None and not _equal(written[key], loaded[key])
    ]
    able = [known for one in frequencies if len(known := sorted(map(float, one), reverse=True)) > 2 and all(value > 0 for value in known)]
    return found + _unlike_ropes(_ropes(written), able)


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
    local = written.get("rope_local_base_freq")  # Gemma 3's second, of layers that see a window, as transformers 4 wrote it
    return [{"rope_theta": written.get("rope_theta"), **one} for one in by_layer or [told]] + ([{"rope_theta": local}] if local else [])


def _unlike_ropes(ropes: list[Json], frequencies: list[list[float]]) -> list[str]:
    """Return what of `ropes` no embedding of the model is; nothing where each of its embeddings is one of them, or that cannot be told."""
    known = [
        rope for rope in ropes if _kind(rope) in _PLAIN + _BEYOND and isinstance(base := rope.get("rope_theta"), int | float) and base > 0
    ]
    if len(known) < len(ropes) or all(any(_alike(rope, one) for rope in known) for one in frequencies):
        return []
    theirs = ", ".join(
        f"{_bases(one)[0]:,.0f}" + (f" with frequencies times {one[0]:.3g}" if abs(one[0] - 1) > _NEAR else "") for one in frequencies
    )
    return [
        f"the RoPE base is {rope['rope_theta']:,.0f}{_scaling(rope)}, it computes with {theirs}"
        for rope in known
        if not any(_alike(rope, one) for one in frequencies)
    ]


def _kind(rope: Json) -> object:
    return rope.get("rope_type", rope.get("type", "default"))


def _scaling(rope: Json) -> str:
    return "" if _kind(rope) in ("default", "mrope") else f" with {_kind(rope)} scaling"


def _alike(rope: Json, frequencies: list[float]) -> bool:
    """Return whether these may be the frequencies of `rope`; of those that are changed beyond a context, whether they are."""
    if _kind(rope) in _BEYOND:
        return not _unscaled(frequencies, rope)
    factor = rope.get("factor")
    first = 1 / factor if _kind(rope) == "linear" and isinstance(factor, int | float) and factor > 0 else 1.0
    near = any(math.isclose(one, rope["rope_theta"], rel_tol=_NEAR) for one in _bases(frequencies))
    return near and math.isclose(frequencies[0], first, rel_tol=_NEAR)


def _bases(frequencies: list[float]) -> list[float]:
    """Return the base whose powers the frequencies are, base ** (-2 i / dimensions), by the first two: of an even and an odd number."""
    step = frequencies[0] / frequencies[1]
    return [step ** len(frequencies), step ** (len(frequencies) - 0.5)]


def _unscaled(frequencies: list[float], rope: Json) -> bool:
    """Return whether frequencies are plain powers of a base, though some belong to positions beyond the context `rope` scales from."""
    powers = [_bases(frequencies)[0] ** (-at / len(frequencies)) for at in range(len(frequencies))]
    plain = all(math.isclose(one, power, rel_tol=_NEAR) for one, power in zip(frequencies, powers, strict=True))
    factor, context = rope.get("factor"), rope.get("original_max_position_embeddings")
    if not plain or not isinstance(factor, int | float) or factor <= 1 or not isinstance(context, int | float):
        return False
    return _longest(rope, len(frequencies)) > context


def _longest(rope: Json, dimensions: int) -> float:
    """Return the wavelength in tokens of the lowest frequency that `rope`'s base makes."""
    return float(_TURN * rope["rope_theta"] ** ((dimensions - 1) / dimensions))
