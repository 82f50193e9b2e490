"""What a run leaves: an adapter to put on its base model, a model of its own, a network on tables. Names its files; reads none."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

from holdfast.base.files import Json

Kind = Literal["adapter", "model", "network"]
WEIGHTS: dict[Kind, str] = {"adapter": "adapter_model.safetensors", "model": "model.safetensors", "network": "model.safetensors"}
CONFIGS: dict[Kind, str] = {"adapter": "adapter_config.json", "model": "config.json", "network": "metadata.json"}
PROGRAM, ONNX = "model.pt2", "model.onnx"  # what a network is exported to, beside its weights


@dataclass(frozen=True)
class Artifact:
    """`kind` names its folder in the run and its files; `config`: the content of the one that says what the weights are.

    partial: the weights are those that were trained, and what is published has the base model's beside them.
    """

    kind: Kind
    config: Json
    partial: bool = False

    @property
    def weights_name(self) -> str:
        return WEIGHTS[self.kind]

    @property
    def config_name(self) -> str:
        return CONFIGS[self.kind]

    def as_json(self) -> Json:
        return asdict(self)


def artifact_of(ready: Json) -> Artifact:
    """The artifact that a trainer's ready.json describes; before there was another kind it named an adapter's config alone."""
    facts = ready.get("artifact")
    return Artifact(**facts) if facts else Artifact("adapter", ready["adapter_config"])
