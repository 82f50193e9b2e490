"""What a config.json must say of a model before it is planned: a type that there is code for, sizes that can be. Reads no weights."""

from __future__ import annotations

from pathlib import Path

from holdfast.base.errors import BLOCKED, Stop
from holdfast.base.files import Json
from holdfast.base_model.folder import ModelFacts
from holdfast.base_model.forms import MAY_BE_LEFT_OUT, SIZES, refuse_size
from holdfast.base_model.types import loads_as, names_encoder_decoder

_MOST_PARAMETERS = 10**13  # of all layers' attention and MLP, as such sizes come to at least


def refuse_nonsense(model: ModelFacts) -> None:
    """Raise Stop(1) where config.json leaves a size open, which transformers would fill in with another model's, or says what cannot be."""
    file, kind, said = model.folder / "config.json", model.config.get("model_type"), model.text
    if loads_as(model.config) is None:
        text = f"{file}: model_type {kind!r} is no causal language model of the installed transformers"
        raise Stop(BLOCKED, text, "take config.json from the model's own download; for a new one: pip install --upgrade transformers")
    if names_encoder_decoder(model.config):
        named = model.config["architectures"][0]
        text = f"{file} names {named}, an encoder with a decoder: the decoder alone would be trained, without its input"
        raise Stop(BLOCKED, text, "take a decoder-only model, as Qwen, Llama, Gemma and SmolLM are")
    for names, bounds in SIZES.items():
        given = {name: said[name] for name in names if name in said}
        if not given:
            text = f"{file} does not say {names[0]}, so the model's size is unknown"
            raise Stop(BLOCKED, text, "take config.json from the model's own download")
        for name, value in given.items():
            refuse_size(file, name, value, bounds)
    _refuse_together(file, said)
    for name, bounds in MAY_BE_LEFT_OUT.items():
        if (value := said.get(name)) is not None and not isinstance(value, list):  # some say it layer by layer
            refuse_size(file, name, value, bounds)


def _refuse_together(file: Path, config: Json) -> None:
    """Refuse sizes that are possible one by one, and not together."""
    hidden, layers = (next(config[name] for name in names if name in config) for names in list(SIZES)[:2])
    if (least := 6 * hidden * hidden * layers) > _MOST_PARAMETERS:
        text = f"{file}: {layers:,} layers of {hidden:,} are more than {least // 10**12:,} trillion parameters: that is no model of today"
        raise Stop(BLOCKED, text, "take config.json from the model's own download")
