"""What a run leaves: an adapter to put on its base model, a model of its own, a network on tables. Names its files; reads none."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from holdfast.base.files import Json

TOKENIZER = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja"),
    *("vocab.json", "merges.txt", "tokenizer.model"),
)


@dataclass(frozen=True)
class ArtifactKind:
    """weights, config: names of its files; text: a tokenizer, a chat template and generation_config.json are published with it."""

    weights: str
    config: str
    text: bool


KINDS = {  # by name, which is that of its folder in the run, too
    "adapter": ArtifactKind("adapter_model.safetensors", "adapter_config.json", True),
    "model": ArtifactKind("model.safetensors", "config.json", True),
    "network": ArtifactKind("model.safetensors", "metadata.json", False),
}
WEIGHTS = {name: kind.weights for name, kind in KINDS.items()}
CONFIGS = {name: kind.config for name, kind in KINDS.items()}
ARTIFACT, ADAPTER_CONFIG = WEIGHTS["adapter"], CONFIGS["adapter"]
PROGRAM, ONNX = "model.pt2", "model.onnx"  # what a network is exported to, beside its weights


@dataclass(frozen=True)
class Artifact:
    """`kind` names its folder in the run and its files; `config`: the content of the one that says what the weights are.

    partial: the weights are those that were trained, and what is published has the base model's beside them.
    """

    kind: str
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
    """Return the artifact that a trainer's ready.json describes; before there was another kind it named an adapter's config alone."""
    facts = ready.get("artifact")
    return Artifact(**facts) if facts else Artifact("adapter", ready["adapter_config"])
