"""The part of a config that says what is trained: an adapter of some kind, or weights of the model's own. Reads no file."""

from __future__ import annotations

import functools
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from holdfast.base_model.module_pattern import refused
from holdfast.config.adapter_kinds import FROM_WEIGHTS, KINDS, AdapterKind, AdapterType, kinds_with
from holdfast.config.section import Section

_SHARED = ("type", "start", "r", "alpha", "dropout", "targets", "virtual_tokens")  # keys that are taken, and not read, with any kind


class Adapter(Section):
    """What is trained: an adapter through PEFT, or weights of the model's own."""

    type: AdapterType = Field(
        "lora", description="kind of adapter; full: all weights of the model, layers: those that adapter.layers names"
    )
    start: str | None = Field(
        None, description="folder of an adapter to go on from (PEFT's layout, or a finished run); r, alpha and targets then follow it"
    )
    r: int = Field(8, ge=1, le=1024, description="rank")
    alpha: float = Field(16.0, gt=0, le=1_000_000, description="scaling numerator: updates are scaled by alpha / r")
    dropout: float = Field(0.0, ge=0.0, lt=1.0, description="dropout on the adapter's input")
    targets: str | list[str] = Field(
        "all-linear", description="all-linear, a list of names of modules, or a pattern that the whole name of a module has to match"
    )

    init: Literal["default", "gaussian", "orthogonal", "pissa", "olora"] = Field(
        "default", description="what a LoRA adapter begins with; pissa and olora: a part of the weights, for twice the rank in the file"
    )
    lr_ratio: float | None = Field(
        None, gt=0, le=1_000_000, description="LoRA+: the learning rate of the B matrices, as a multiple of train.lr"
    )
    target_r: int | None = Field(None, ge=1, le=1024, description="adalora: mean rank at the end; half of r when not given")
    virtual_tokens: int = Field(20, ge=1, le=4096, description="prompt: embeddings that are learned before every row")
    modules_to_save: list[str] = Field(
        default_factory=list, description="modules trained whole beside the adapter and saved with it, for example lm_head"
    )
    trainable_token_indices: list[Annotated[int, Field(ge=0, le=2**31 - 1)] | str] = Field(
        default_factory=list, description="tokens whose embeddings are trained, too: their texts or numbers, for example [<|im_start|>]"
    )
    target_parameters: list[str] = Field(
        default_factory=list, description="LoRA on weights that are no layers of their own, as those of experts: [mlp.experts.down_proj]"
    )
    layers: Annotated[int, Field(ge=1, le=1_000_000)] | str | list[str] | None = Field(
        None, description="layers: how many of the last ones, a list of names, or a pattern that a weight's whole name has to match"
    )

    @model_validator(mode="after")
    def _of_its_kind(self) -> Adapter:
        for name in self._own_keys():
            if name not in self.kind.keys:
                raise ValueError(f"{name} belongs to type {', '.join(kinds_with(name))}; this is type {self.type}")
        if "layers" in self.kind.keys and self.layers is None:
            raise ValueError("type layers needs layers: how many of the last ones, names, or a pattern")
        if isinstance(self.layers, str) and (why := refused(self.layers)):
            raise ValueError(why)
        if self.target_r is not None and self.target_r > self.r:
            raise ValueError(f"target_r is {self.target_r}, and r, the rank to begin with, is {self.r}")
        if self.target_parameters and (self.dropout or self.init != "default"):
            raise ValueError("target_parameters go without dropout and with init default: PEFT adds their product to the weight itself")
        if self.start and self.trainable_token_indices:
            raise ValueError("start goes on from an adapter without trainable_token_indices")
        if self.init == "orthogonal" and self.r % 2:
            raise ValueError(f"init orthogonal needs an even r, it is {self.r}")
        return self

    @property
    def kind(self) -> AdapterKind:
        """What is known of its type."""
        return KINDS[self.type]

    @property
    def file_rank(self) -> int:
        """The rank in its file: what it began with is a second half there."""
        return self.r * (2 if self.init in FROM_WEIGHTS else 1)

    def _own_keys(self) -> list[str]:
        """Return the given keys that only some kinds have."""
        return [name for name, default in _own_defaults(type(self)).items() if getattr(self, name) != default]

    @field_validator("targets")
    @classmethod
    def _pattern(cls, value: str | list[str]) -> str | list[str]:
        if isinstance(value, str) and (why := refused(value)):
            raise ValueError(why)
        return value


@functools.cache
def _own_defaults(section: type[Adapter]) -> dict[str, Any]:
    """Return the defaults of keys that only some kinds have."""
    fields = section.model_fields
    return {name: field.get_default(call_default_factory=True) for name, field in fields.items() if name not in _SHARED}
