"""The run's configuration: one YAML file, checked whole, frozen after loading. Reads files; starts nothing."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from holdfast.core.config.faults import Fault
from holdfast.core.config.module_pattern import refused
from holdfast.core.config.settings import Attention, Frozen
from holdfast.core.config.table import Network, Section, Table
from holdfast.core.units import parse_bytes

Weight = Annotated[float, Field(gt=0)]
LORA_KINDS = ("lora", "rslora", "dora")
OWN_WEIGHTS = ("full", "layers")  # no adapter: a model is what such a run leaves
_OF_KINDS: dict[str, tuple[str, ...]] = {
    "layers": ("layers",),
    "lr_ratio": LORA_KINDS,
    "init": LORA_KINDS,
    "target_r": ("adalora",),
    "modules_to_save": (*LORA_KINDS, "adalora", "ia3"),
}


class Data(Section):
    """Where the rows come from."""

    files: Annotated[list[str], Field(min_length=1)] = Field(
        description="JSON Lines, JSON, CSV, Parquet, Arrow or text files, also compressed, read in this order"
    )
    format: Literal["auto", "alpaca", "prompt-completion", "chat", "question-answer", "text"] = Field(
        "auto", description="layout of a row; auto looks at the fields of each row"
    )
    fields: dict[str, str] = Field(
        default_factory=dict, description="names of fields where they differ: {instruction: the file's name for it, output: ...}"
    )
    too_long: Literal["cut", "reject", "split"] = Field(
        "cut", description="a row of more than train.max_tokens is cut, rejected, or split at turns and sentences"
    )
    train_on: Literal["assistant", "last", "all"] = Field(
        "assistant", description="what of a row is learned: every answer, the last one alone, or all tokens, the prompt's too"
    )
    redact: bool = Field(False, description="take secrets and e-mail addresses out of the texts")
    held_out: float = Field(0.05, ge=0.0, le=0.5, description="share of the rows kept for evaluation, drawn by seed")
    held_out_files: list[str] = Field(default_factory=list, description="files with the rows for evaluation, instead of a share")
    rows_per_epoch: int | None = Field(
        None, ge=1, description="rows an epoch draws, another part of the same mix each time; all of them when not given"
    )
    weights: dict[str, Weight] = Field(
        default_factory=dict, description="how often a file's rows are drawn, relative to their number: {file: weight}; 1 when not given"
    )

    @model_validator(mode="after")
    def _split_answers(self) -> Data:
        if self.too_long == "split" and self.train_on != "assistant":
            raise ValueError(f"too_long split learns every answer once: it goes with train_on assistant, not {self.train_on}")
        return self

    @field_validator("files", "held_out_files", mode="before")
    @classmethod
    def _one_file_is_a_list(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @field_validator("weights")
    @classmethod
    def _weights_of_known_files(cls, value: dict[str, float], others: ValidationInfo) -> dict[str, float]:
        files = others.data.get("files")
        unknown = [name for name in value if files is not None and name not in files]
        if unknown:
            raise ValueError(f"{', '.join(unknown)}: not among data.files ({', '.join(files or [])}); write names as they stand there")
        return value


class Adapter(Section):
    """What is trained: an adapter through PEFT, or weights of the model's own."""

    type: Literal["lora", "rslora", "dora", "adalora", "prompt", "ia3", "full", "layers"] = Field(
        "lora", description="kind of adapter; full: all weights of the model, layers: those that adapter.layers names"
    )
    start: str | None = Field(
        None, description="folder of an adapter to go on from (PEFT's layout, or a finished run); r, alpha and targets then follow it"
    )
    r: int = Field(8, ge=1, le=1024, description="rank")
    alpha: float = Field(16.0, gt=0, description="scaling numerator: updates are scaled by alpha / r")
    dropout: float = Field(0.0, ge=0.0, lt=1.0, description="dropout on the adapter's input")
    targets: str | list[str] = Field(
        "all-linear", description="all-linear, a list of names of modules, or a pattern that the whole name of a module has to match"
    )

    init: Literal["default", "gaussian", "orthogonal", "pissa", "olora"] = Field(
        "default", description="what a LoRA adapter begins with; pissa and olora: a part of the weights, for twice the rank in the file"
    )
    lr_ratio: float | None = Field(None, gt=0, description="LoRA+: the learning rate of the B matrices, as a multiple of train.lr")
    target_r: int | None = Field(None, ge=1, description="adalora: mean rank at the end; half of r when not given")
    virtual_tokens: int = Field(20, ge=1, le=4096, description="prompt: embeddings that are learned before every row")
    modules_to_save: list[str] = Field(
        default_factory=list, description="modules trained whole beside the adapter and saved with it, for example lm_head"
    )
    layers: Annotated[int, Field(ge=1)] | str | list[str] | None = Field(
        None, description="layers: how many of the last ones, a list of names, or a pattern that a weight's whole name has to match"
    )

    @model_validator(mode="after")
    def _of_its_kind(self) -> Adapter:
        given = {
            "layers": self.layers is not None,
            "lr_ratio": self.lr_ratio is not None,
            "init": self.init != "default",
            "target_r": self.target_r is not None,
            "modules_to_save": bool(self.modules_to_save),
        }
        for name, kinds in _OF_KINDS.items():
            if given[name] and self.type not in kinds:
                raise ValueError(f"{name} belongs to type {', '.join(kinds)}; this is type {self.type}")
        if self.type == "layers" and self.layers is None:
            raise ValueError("type layers needs layers: how many of the last ones, names, or a pattern")
        if isinstance(self.layers, str) and (why := refused(self.layers)):
            raise ValueError(why)
        if self.target_r is not None and self.target_r > self.r:
            raise ValueError(f"target_r is {self.target_r}, and r, the rank to begin with, is {self.r}")
        if self.init == "orthogonal" and self.r % 2:
            raise ValueError(f"init orthogonal needs an even r, it is {self.r}")
        return self

    @field_validator("targets")
    @classmethod
    def _pattern(cls, value: str | list[str]) -> str | list[str]:
        if isinstance(value, str) and (why := refused(value)):
            raise ValueError(why)
        return value


class Preference(Section):
    """How answers are held against each other, where train.objective is not sft; by default as is usual for it."""

    beta: float | None = Field(None, gt=0, description="how far the model may go from the reference: 0.1; simpo: scale of the margin, 2")
    loss: Literal["sigmoid", "ipo", "hinge"] = Field("sigmoid", description="dpo: what becomes of a pair's margin")
    label_smoothing: float = Field(0.0, ge=0, lt=0.5, description="dpo, simpo: share of the pairs that may be the wrong way round")
    length_normalised: bool = Field(False, description="dpo: margins per token")
    sft_weight: float = Field(0.0, ge=0, description="dpo, simpo: share of the better answer's own loss per token that is added")
    margin: float = Field(0.5, ge=0, description="simpo: by how much the better answer is to be ahead (gamma)")
    desirable_weight: float = Field(1.0, gt=0, description="kto: weight of answers marked good")
    undesirable_weight: float = Field(1.0, gt=0, description="kto: weight of answers marked bad")


class Train(Section):
    """How it is trained."""

    objective: Literal["sft", "dpo", "orpo", "simpo", "kto"] = Field(
        "sft", description="what is learned: answers (sft), which of two answers is better (dpo, orpo, simpo), which answers are good (kto)"
    )

    epochs: float | None = Field(None, gt=0, le=1_000_000, description="passes over the training rows; 1 when steps is not given either")
    steps: int | None = Field(None, ge=1, le=1_000_000_000, description="optimizer steps, instead of epochs")
    optimizer: Literal["adamw", "adamw8bit", "paged", "adafactor", "lion", "muon", "sgd"] = Field(
        "adamw",
        description="adamw8bit and paged (the same in memory that may move to the host): bitsandbytes; muon: matrices, the rest by adamw",
    )
    effective_batch: int = Field(32, ge=1, description="samples per optimizer step")
    lr: float = Field(2e-4, gt=0, description="peak learning rate")
    schedule: Literal["cosine", "linear", "constant"] = Field("cosine", description="how the learning rate falls after the warm-up, to 0")
    warmup: float = Field(0.03, ge=0, description="below 1: share of all steps; from 1 on: steps")
    weight_decay: float = Field(0.0, ge=0, description="decoupled decay: a step takes lr times this share off each weight")
    beta1: float = Field(0.9, ge=0, lt=1, description="share of the mean gradient that a step keeps; sgd: momentum")
    beta2: float = Field(0.999, ge=0, lt=1, description="share of the mean squared gradient that a step keeps; lion: of its moment")
    epsilon: float = Field(1e-8, gt=0, description="added to the root of AdamW's mean squared gradient before dividing by it")
    max_grad_norm: float = Field(1.0, gt=0, description="gradients are scaled down to this norm")
    precision: Literal["auto", "fp32", "bf16"] = Field(
        "auto",
        description="of the frozen matrices and their products; auto: bf16 where the device is fast at it, but not for tiny models",
    )
    frozen: Frozen = Field(
        "auto",
        description="how weights that are not trained are held; auto: as in their file; half: in 16 bits; nf4, fp4, int8: by bitsandbytes",
    )
    double_quant: bool = Field(False, description="nf4, fp4: the scales of blocks are quantised, too")
    attention: Attention = Field("sdpa", description="sdpa: torch's fused attention; eager: plain products, slow, a reference")
    max_tokens: int = Field(512, ge=8, description="longest row in tokens; the answer of a longer one is cut")
    liger: bool | None = Field(
        None,
        description="Liger's Triton kernels for norms, activations and rotary positions, once proven to give the model's own results; "
        "by default on a GPU where liger-kernel is installed",
    )
    packing: bool = Field(True, description="several samples share a row without padding, each attending to itself alone")
    micro_batch_tokens: int | None = Field(None, ge=1, description="tokens per forward pass; the plan chooses when not given")
    checkpointed_layers: int | None = Field(
        None, ge=0, description="decoder layers computed again in backward to save memory; the plan chooses when not given"
    )
    memory_limit: Annotated[int, BeforeValidator(parse_bytes)] | None = Field(
        None,
        ge=1,
        description="most memory the trainer may take, for example 8GiB; by default 95 % of it where running out freezes a machine",
    )
    seed: int = Field(0, ge=0, lt=2**31, description="of the adapter's first weights, the order of the rows, dropout and what is held out")
    deterministic: bool | None = Field(
        None, description="only kernels that give the same bits every time; by default on the CPU and in trials"
    )
    threads: int | None = Field(
        None, ge=1, description="CPU threads of each rank; all cores this process may use, shared by the ranks, when not given"
    )
    ranks: Literal["auto"] | Annotated[int, Field(ge=1, le=1024)] = Field(
        1, description="processes that train together, one a device; auto: one for each GPU of the first one's kind"
    )
    ranks_min: int = Field(1, ge=1, description="fewest ranks to go on with where devices are lost")
    shards: Literal["off"] | Annotated[int, Field(ge=2, le=1024)] | None = Field(
        None,
        description="parts of a step (2, 4, 8 ...), added in one order, so that any number of ranks gives the same bits; "
        "8 where there are several ranks, else off",
    )

    @model_validator(mode="after")
    def _one_length(self) -> Train:
        if self.epochs is not None and self.steps is not None:
            raise ValueError("give epochs or steps, not both")
        return self

    @field_validator("shards", mode="before")
    @classmethod
    def _off(cls, value: Any) -> Any:
        return "off" if value is False else value  # YAML takes a plain off for false

    @model_validator(mode="after")
    def _ranks_fit_shards(self) -> Train:
        shards, ranks = self.shards, self.ranks
        if isinstance(shards, int) and shards & (shards - 1):
            raise ValueError(f"shards is {shards}, which is no power of two: {1 << shards.bit_length() - 1} or {1 << shards.bit_length()}")
        if isinstance(ranks, int) and self.ranks_min > ranks:
            raise ValueError(f"ranks_min is {self.ranks_min}, ranks {ranks}: it cannot be more")
        if shards == "off" or ranks == "auto" or ranks == 1:
            return self
        if ranks & (ranks - 1):
            below = 1 << ranks.bit_length() - 1
            raise ValueError(f"ranks is {ranks}, which is no power of two: {below} or {2 * below} with shards, any number with shards: off")
        if shards is not None and ranks > shards:
            raise ValueError(f"ranks is {ranks} and shards {shards}: a rank without a part has nothing to do; {ranks} shards, or more")
        return self


class Save(Section):
    """What is kept on the way."""

    every: int | None = Field(
        None,
        ge=1,
        description="steps between durable checkpoints; chosen from measured times and failures when not given",
    )
    min_every: int = Field(1, ge=1, description="fewest steps between durable checkpoints when the interval is chosen")
    max_every: int = Field(100, ge=1, description="most steps between durable checkpoints when the interval is chosen")
    keep: int = Field(3, ge=1, description="newest checkpoints kept")
    keep_every: int | None = Field(None, ge=1, description="checkpoints of steps that are multiples of this are made and kept for good")
    snapshot_dir: str | None = Field(None, description="folder of the memory snapshot; /dev/shm when there is room, else the run folder")
    flush_snapshots: bool = Field(
        False,
        description="put each snapshot on disk (snapshot_dir, else the run folder): a power cut then costs one step",
    )

    @model_validator(mode="after")
    def _bounds(self) -> Save:
        if self.min_every > self.max_every:
            raise ValueError(f"min_every is {self.min_every}, max_every {self.max_every}: no interval lies between them")
        return self


class Evaluate(Section):
    """What is measured on the held-out rows: their loss on the way, and base against tuned when the run is done."""

    every: int | None = Field(None, ge=1, description="steps between evaluations on the way, the last step is one too; none when not given")
    rows: int | None = Field(None, ge=1, description="held-out rows of an evaluation on the way, drawn by seed; all when not given")
    patience: int | None = Field(
        None, ge=1, description="evaluations in a row without improvement after which the run ends early; never when not given"
    )
    min_delta: float = Field(0.0, ge=0, description="the held-out loss has to fall by more than this to count as improved")
    keep_best: bool = Field(True, description="with every: the run's adapter is the one of the lowest held-out loss, else the last one")
    generate: int = Field(8, ge=0, description="held-out prompts that base and tuned model answer; 0: none")
    max_new_tokens: int = Field(64, ge=1, description="longest answer")

    @model_validator(mode="after")
    def _on_the_way(self) -> Evaluate:
        without = [name for name in ("rows", "patience") if getattr(self, name) is not None and self.every is None]
        if without:
            raise ValueError(f"{' and '.join(without)} {'need' if len(without) > 1 else 'needs'} every, the steps between evaluations")
        return self


class Run(Section):
    name: str | None = Field(None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="folder under runs/; by default the file's name")
    standby: bool | None = Field(
        None, description="a second trainer, ready to take over after a death; by default in longer runs where memory allows"
    )
    trials: int = Field(60, ge=0, description="most experiments with a step that keeps failing; 0: none")
    hang_s: float = Field(
        60.0, gt=0, description="seconds of silence, at least, before a trainer counts as hanging; more where steps are long"
    )
    device_s: float = Field(300.0, ge=0, description="seconds to look for a GPU that is gone before the run is given up")
    allow_cpu: bool = Field(False, description="where nothing else was seen to help, continue on the CPU rather than give up")
    rollback: bool = Field(
        True, description="go back to before a rise of the loss that lasts, without the rows that did it or at half the learning rate"
    )
    track: list[Literal["tensorboard", "wandb", "mlflow", "trackio"]] = Field(
        default_factory=list, description="trackers that get every step, each through its own package"
    )


_OF_TABLES = {"lr": 1e-3, "effective_batch": 256}  # where a config says nothing
_OF_TEXT = ("model", "adapter")


class Config(Section):
    """A holdfast run."""

    task: Literal["sft", "tabular"] = Field("sft", description="sft: a language model learns answers; tabular: a network learns a column")
    model: str = Field(description="a folder in Hugging Face layout, a hub name (name or name@REVISION), or tiny (ships with holdfast)")
    data: Data
    adapter: Adapter = Adapter()
    table: Table | None = Field(None, description="with task tabular: what the columns are")
    network: Network = Network()
    train: Train = Train()
    preference: Preference = Preference()
    save: Save = Save()
    evaluate: Evaluate = Evaluate()
    run: Run = Run()

    @model_validator(mode="after")
    def _objective_fits(self) -> Config:
        wanted, kind = self.train.objective, self.adapter.type
        if self.train.frozen in ("nf4", "fp4", "int8") and kind in OWN_WEIGHTS:
            raise ValueError(f"adapter.type {kind} trains the weights themselves, which train.frozen {self.train.frozen} would hold frozen")
        if self.train.double_quant and self.train.frozen not in ("nf4", "fp4"):
            raise ValueError(f"train.double_quant belongs to train.frozen nf4 and fp4; this is {self.train.frozen}")
        optimizer = self.train.optimizer
        if self.adapter.lr_ratio is not None and optimizer in ("adamw8bit", "paged"):
            raise ValueError(f"adapter.lr_ratio needs rates for single matrices, and {optimizer} has one for all; take adamw")
        if self.adapter.init in ("pissa", "olora") and (optimizer == "muon" or self.train.weight_decay):
            moved = "train.optimizer muon moves" if optimizer == "muon" else "train.weight_decay shrinks"
            raise ValueError(f"adapter.init {self.adapter.init} keeps half of its weights as they began, and {moved} them")
        if wanted in ("dpo", "kto") and kind in OWN_WEIGHTS:
            text = f"train.objective {wanted} holds the model against the one without its adapter, and adapter.type {kind} has none"
            raise ValueError(f"{text}; take orpo or simpo, which need no reference, or an adapter")
        if wanted != "sft" and self.data.train_on != "assistant":
            raise ValueError(f"data.train_on {self.data.train_on} is for train.objective sft; {wanted} looks at the last answer")
        return self

    faults: list[Fault] = Field(default_factory=list, description="faults to inject, to rehearse a recovery")

    @model_validator(mode="before")
    @classmethod
    def _of_one_task(cls, tree: Any) -> Any:
        """Refuse what belongs to the other task, and give a network on tables the defaults of its kind."""
        if not isinstance(tree, dict):
            return tree
        if tree.get("task", "sft") != "tabular":
            if strange := [name for name in ("table", "network") if tree.get(name) and not _as_by_default(tree, name)]:
                raise ValueError(f"{' and '.join(strange)}: for networks on tables; add task: tabular, or leave them out")
            return tree
        if strange := [name for name in _OF_TEXT if tree.get(name) and not _as_by_default(tree, name)]:
            raise ValueError(f"{' and '.join(strange)}: for language models; task: tabular has network and table instead")
        if tree.get("table") is None:
            raise ValueError("table: missing; task: tabular needs to know the column to learn, as in table: {target: price}")
        train = tree.get("train") or {}
        if not isinstance(train, dict):
            return tree
        length = {} if train.get("steps") or train.get("epochs") else {"epochs": 10}
        return tree | {"model": "", "train": _OF_TABLES | train | length}

    @property
    def columns(self) -> Table:
        """What the columns of a table are. Only with task tabular."""
        assert self.table is not None
        return self.table


def _as_by_default(tree: dict[str, Any], name: str) -> bool:
    """Whether a section says what it says anyway, as in the config that a run folder keeps."""
    default = Config.model_fields[name].default
    return hasattr(default, "model_dump") and tree[name] == default.model_dump(mode="json")
