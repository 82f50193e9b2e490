"""The kinds of `adapter.type`, one record each: keys, size, file, merge, who serves it, what it goes with. Reads no file, needs no torch.

What of a kind needs torch is its entry in trainer/model/trained/peft_kinds.py; a formula of merging that is new, one in export/delta.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

AdapterType = Literal["lora", "rslora", "dora", "adalora", "prompt", "ia3", "full", "layers"]
FROM_WEIGHTS = ("pissa", "olora")  # of adapter.init: begin with a part of the weights, for twice the rank in the file
_MATRICES = ("r", "alpha", "dropout", "targets")
_LORA = (*_MATRICES, "init", "lr_ratio", "modules_to_save", "trainable_token_indices")
_SCALED = {"r": "r", "alpha": "lora_alpha"}
_IA3 = ("k_proj", "v_proj", "down_proj", "c_attn", "key", "value", "query_key_value", "dense_4h_to_h", "fc2", "fc_out", "c_proj")
_FROM_INPUT = ("down_proj", "dense_4h_to_h", "fc2", "fc_out", "c_proj")  # whose inputs IA3 scales


@dataclass(frozen=True)
class Matrix:
    """A weight of the base model [rows, columns], by the last part of its module's name."""

    name: str
    rows: int
    columns: int


@dataclass(frozen=True)
class AdapterKind:
    """What holdfast knows of one kind.

    words: for a title, with {fields} of the config's `adapter`. title: its name in a sentence. about: for the docs.
    keys: of `adapter` that it reads; those that not all kinds share are refused with others.

    peft, flag: peft_type in adapter_config.json and what is true there beside it; no peft: weights of the model's own. stored: what keys
    of ours are called there. parts: its tensors of a module in the file. count: numbers trained at a matrix, by rank. sits_on: names of
    modules that all-linear means; none: all linear layers.

    merge: formula in export/delta.py that puts it into the base's weights; empty: there is none. served: vLLM and llama.cpp take it.
    fsdp: what ranks cut, frozen layers beside it or all that is trained; empty: it needs whole weights.

    frozen: a part of the model is not trained. scalar_head: one can be trained beside it. prefix: embeddings before each row.
    prunes: takes weights away as it goes. keeps_products: for backward, so many of each matrix.
    lr: the peak rate that is usual; None: as the size of the model has it.
    """

    name: AdapterType
    words: str
    title: str
    about: str
    keys: tuple[str, ...]
    peft: str = ""
    flag: str = ""
    stored: Mapping[str, str] = field(default_factory=dict)
    parts: tuple[str, ...] = ()
    count: Callable[[int, Matrix], int] | None = None
    sits_on: tuple[str, ...] = ()
    merge: Literal["product", "factor", ""] = ""
    served: bool = False
    fsdp: Literal["frozen", "trained", ""] = ""
    frozen: bool = True
    scalar_head: bool = True
    prefix: bool = False
    prunes: bool = False
    keeps_products: int = 0
    lr: float | None = None

    @property
    def own_weights(self) -> bool:
        """Whether it is no adapter: a model is what such a run leaves, and there is no base to hold it against."""
        return not self.peft


_LORA_KIND = AdapterKind(
    "lora",
    words="LoRA r={r}",
    title="LoRA",
    about="two small matrices beside each layer",
    keys=(*_LORA, "target_parameters"),
    peft="LORA",
    stored=_SCALED,
    parts=("lora_A", "lora_B"),
    count=lambda r, matrix: r * (matrix.rows + matrix.columns),
    merge="product",
    served=True,
    fsdp="frozen",
)
_ALL = (
    _LORA_KIND,
    replace(
        _LORA_KIND, name="rslora", words="rsLoRA r={r}", title="rsLoRA", about="the same, scaled by the root of the rank", flag="use_rslora"
    ),
    AdapterKind(
        "dora",
        words="DoRA r={r}",
        title="DoRA",
        about="LoRA with a trained magnitude",
        keys=_LORA,
        peft="LORA",
        flag="use_dora",
        stored=_SCALED,
        parts=("lora_A", "lora_B", "lora_magnitude_vector"),
        count=lambda r, matrix: r * (matrix.rows + matrix.columns) + matrix.rows,
        merge="product",
        keeps_products=2,
    ),
    AdapterKind(
        "adalora",
        words="AdaLoRA r={r}",
        title="AdaLoRA",
        about="a rank that falls from `r` to `target_r` where it matters least",
        keys=(*_MATRICES, "target_r", "modules_to_save"),
        peft="ADALORA",
        stored={"r": "init_r", "alpha": "lora_alpha"},
        parts=("lora_A", "lora_B", "lora_E"),
        count=lambda r, matrix: r * (matrix.rows + matrix.columns) + r,  # and singular values
        merge="product",
        prunes=True,
        keeps_products=1,
    ),
    AdapterKind(
        "prompt",
        lr=3e-2,
        words="{virtual_tokens} learned prompt tokens",
        title="prompt tuning",
        about="`virtual_tokens` embeddings before every row (rows are then padded, not packed)",
        keys=("virtual_tokens",),
        peft="PROMPT_TUNING",
        stored={"virtual_tokens": "num_virtual_tokens"},
        scalar_head=False,
        prefix=True,
    ),
    AdapterKind(
        "ia3",
        lr=3e-3,
        words="IA3",
        title="IA3",
        about="one factor per feature; wants a higher `train.lr`",
        keys=("targets", "modules_to_save"),
        peft="IA3",
        parts=("ia3_l",),
        count=lambda _, matrix: matrix.columns if matrix.name in _FROM_INPUT else matrix.rows,
        sits_on=_IA3,
        merge="factor",
    ),
    AdapterKind(
        "full",
        words="all weights",
        title="full fine-tune",
        about="all weights of the model",
        keys=(),
        fsdp="trained",
        frozen=False,
        scalar_head=False,
    ),
    AdapterKind(
        "layers",
        words="{layers}",
        title="layers",
        about="weights of the model: the last N layers, names, or a pattern",
        keys=("layers",),
        scalar_head=False,
    ),
)
KINDS: Mapping[str, AdapterKind] = {kind.name: kind for kind in _ALL}


def kinds_with(key: str) -> tuple[str, ...]:
    """Return the kinds that read a key of `adapter`."""
    return tuple(kind.name for kind in _ALL if key in kind.keys)
