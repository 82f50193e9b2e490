"""Whether config.json and the index of weights have the forms that those who read them take for granted, and sizes that can be."""

from __future__ import annotations

import contextlib
import json
import math
from pathlib import Path
from typing import Any

from holdfast.base.errors import BLOCKED, Stop
from holdfast.base.files import Json, read_json, read_python_json, write_bytes, write_json

_MOST_ENTRIES = 50_000  # of a config.json, whatever stands in what; names of labels make some 20,000
_MOST_LAYERS = 1000
LAYERS = ("num_hidden_layers", "n_layer", "num_layers")
SIBLINGS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))  # linear layers of a module that are given the same tensor
SIZES = {  # of config.json: what a model's size follows from, and what it can sensibly be
    ("hidden_size", "n_embd", "d_model"): (1, 1 << 17),
    LAYERS: (1, _MOST_LAYERS),
    ("num_attention_heads", "n_head", "num_heads"): (1, 4096),
    ("vocab_size",): (2, 1 << 24),
}
MAY_BE_LEFT_OUT = dict.fromkeys(("intermediate_size", "num_key_value_heads", "head_dim"), (1, 1 << 20))
_EXPERTS = dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), (0, 1 << 14))
_BOUNDS = {name: bounds for names, bounds in SIZES.items() for name in names} | MAY_BE_LEFT_OUT | _EXPERTS
_LARGEST = 1 << 53
_HINT = "take it from the model's own download"
_FLOAT = "__float__"  # how transformers 5 writes infinity; 4 wrote it bare, as Nemotron 3 Nano and Codestral Mamba have it
_FLOATS = {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}


def read_config(file: Path) -> Json | None:
    """Read a config.json; None where there is none, or it is no JSON object. Infinity and NaN are {"__float__": name} in it."""
    config = read_json(file)
    if config is None:
        with contextlib.suppress(ValueError):  # a number of too many digits
            config = read_python_json(file)
            return {name: _tagged(value) for name, value in config.items()} if config else None
    return config


def with_floats(value: Any) -> Any:
    """Return a value of `read_config` with its infinities as numbers, as the classes of transformers' configs take them."""
    if isinstance(value, dict):
        name = value.get(_FLOAT) if len(value) == 1 else None
        return _FLOATS[name] if isinstance(name, str) and name in _FLOATS else {key: with_floats(one) for key, one in value.items()}
    return [with_floats(one) for one in value] if isinstance(value, list) else value


def write_config(file: Path, config: Json, source: Path) -> None:
    """Write a config.json with its infinities as `source`, another one, has them, because what reads that one reads this one as well."""
    if read_json(source) is None:
        write_bytes(file, json.dumps(with_floats(config), indent=2, ensure_ascii=False).encode() + b"\n")
    else:
        write_json(file, config)


def _tagged(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return {_FLOAT: "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"}
    if isinstance(value, dict):
        return {key: _tagged(one) for key, one in value.items()}
    return [_tagged(one) for one in value] if isinstance(value, list) else value


def refuse_odd_config(file: Path, config: Json) -> None:
    """Raise Stop(1) for a config.json of more entries than any has, of numbers beyond all sizes, or whose names are none.

    Sizes are looked at in all of its sections (text, vision, audio), because a model is built of each before it is planned.
    """
    waiting: list[Any] = [config]
    count = 0
    while waiting:
        value = waiting.pop()
        if type(value) is int and abs(value) > _LARGEST:
            raise Stop(BLOCKED, f"{file} holds a number of {len(str(value))} digits, which is no size", _HINT)
        if isinstance(value, dict | list):
            waiting += value.values() if isinstance(value, dict) else value
            count += len(value)
        for name in value.keys() & _BOUNDS.keys() if isinstance(value, dict) else ():
            if isinstance(value[name], int | float) and value[name] > _BOUNDS[name][1]:
                refuse_size(file, name, value[name], _BOUNDS[name])
        if count > _MOST_ENTRIES:
            raise Stop(BLOCKED, f"{file} holds more than {_MOST_ENTRIES:,} entries, which no model's does", _HINT)
    for said in (config, config.get("text_config")):
        if isinstance(said, dict):
            _refuse_odd_names(file, said)


def _refuse_odd_names(file: Path, said: Json) -> None:
    kind = said.get("model_type")
    if kind is not None and not isinstance(kind, str):
        raise Stop(BLOCKED, f"{file}: model_type is {_kind(kind)}, where a name belongs", _HINT)
    for key in ("architectures", "layer_types"):
        names = said.get(key)
        if names is None:
            continue
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise Stop(BLOCKED, f"{file}: {key} is {_kind(names)}, where a list of names belongs", _HINT)
        if len(names) > _MOST_LAYERS:
            raise Stop(BLOCKED, f"{file}: {key} has {len(names):,} names, more than {_MOST_LAYERS:,}", _HINT)


def _kind(value: Any) -> str:
    return "a list of other things" if isinstance(value, list) else f"a {type(value).__name__}"


def names_in_index(file: Path, index: Json) -> list[str]:
    """List the files that an index of weights names, in order. Raises Stop(1) where it names none, or one that is no file beside it."""
    found = index.get("weight_map")
    if not isinstance(found, dict) or not found:
        raise Stop(BLOCKED, f"{file} names no weights: weight_map is {_kind(found) if found else 'empty or missing'}", _HINT)
    odd = [name for name in found.values() if not isinstance(name, str) or not name or len(name) > 255 or _leads_away(name)]
    if odd:
        raise Stop(BLOCKED, f"{file} names {str(odd[0])[:80]!r}, which is no file of its folder", _HINT)
    return sorted(set(found.values()))


def _leads_away(name: str) -> bool:
    return "\0" in name or name.startswith("/") or ".." in name.split("/")


def refuse_size(file: Path, name: str, value: object, bounds: tuple[int, int]) -> None:
    """Raise Stop(1) where a value is no whole number within `bounds`, both of them meant."""
    low, high = bounds
    if type(value) is not int or not low <= value <= high:
        raise Stop(BLOCKED, f"{file}: {name} = {value!r} is not a model size", f"a whole number from {low} to {high:,} is meant")
