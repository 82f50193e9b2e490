"""The run's configuration: one YAML file, checked whole, frozen after loading. Reads no file: load.py does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, ValidationInfo, create_model, field_validator, model_validator

from holdfast.base.tasks import kind_named, kind_of, look_up, task_kinds
from holdfast.config.adapter import Adapter
from holdfast.config.adapter_kinds import FROM_WEIGHTS, KINDS
from holdfast.config.choices.frozen_formats import FORMATS
from holdfast.config.faults import Fault
from holdfast.config.notify import Notify
from holdfast.config.objectives import either, objectives_of
from holdfast.config.section import Section
from holdfast.config.train import WITH_MOMENTS, Preference, Train

Weight = Annotated[float, Field(gt=0, le=1_000_000_000)]
_MOST_STEPS = 1_000_000_000  # as train.steps


class Data(Section):
    """Where the rows come from."""

    files: Annotated[list[str], Field(min_length=1)] = Field(
        description="JSON Lines, JSON, CSV, Parquet, Arrow or text files, also compressed, read in this order; "
        "owner/name of a data set on the hub, or an address that fsspec knows (s3://bucket/rows.jsonl)"
    )
    subset: str | None = Field(None, min_length=1, description="the subset of data sets on the hub; the default one when not given")
    split: str | None = Field(None, min_length=1, description="the split of data sets on the hub in `files`; train when not given")
    revision: str | None = Field(
        None, min_length=1, description="branch, tag or commit of data sets on the hub; a run keeps the commit it began with"
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
    chat_template: str | dict[str, str] | None = Field(
        None,
        description="how turns are written: a file of Jinja, {of: MODEL}, chatml, llama3 or gemma; as the model has it when not given",
    )
    redact: bool = Field(False, description="take secrets and e-mail addresses out of the texts")
    held_out: float = Field(
        0.05,
        ge=0.0,
        le=0.5,
        description="share of the rows kept for evaluation, drawn by seed; rows of one conversation or prompt stay together",
    )
    held_out_files: list[str] = Field(
        default_factory=list,
        description="files with the rows for evaluation, instead of a share; of owner/name on the hub its validation or test split",
    )
    rows_per_epoch: int | None = Field(
        None, ge=1, le=10**12, description="rows an epoch draws, another part of the same mix each time; all of them when not given"
    )
    weights: dict[str, Weight] = Field(
        default_factory=dict, description="how often a file's rows are drawn, relative to their number: {file: weight}; 1 when not given"
    )

    row_weight: str | None = Field(
        None, min_length=1, description="the field that says how much a row's loss counts beside that of others; all alike when not given"
    )

    @model_validator(mode="after")
    def _split_answers(self) -> Data:
        if self.too_long == "split" and self.train_on != "assistant":
            raise ValueError(f"too_long split learns every answer once: it goes with train_on assistant, not {self.train_on}")
        return self

    @field_validator("chat_template")
    @classmethod
    def _of_a_model(cls, value: Any) -> Any:
        if (isinstance(value, dict) and [*value] != ["of"]) or (isinstance(value, str) and not value.strip()):
            raise ValueError("give a file of Jinja, {of: MODEL}, or a name (chatml, llama3, gemma)")
        return value

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


class Save(Section):
    """What is kept on the way."""

    every: int | None = Field(
        None,
        ge=1,
        le=_MOST_STEPS,
        description="steps between durable checkpoints; chosen from measured times and failures when not given",
    )
    min_every: int = Field(1, ge=1, le=_MOST_STEPS, description="fewest steps between durable checkpoints when the interval is chosen")
    max_every: int = Field(100, ge=1, le=_MOST_STEPS, description="most steps between durable checkpoints when the interval is chosen")
    keep: int = Field(3, ge=1, le=1_000_000, description="newest checkpoints kept")
    keep_every: int | None = Field(
        None, ge=1, le=_MOST_STEPS, description="checkpoints of steps that are multiples of this are made and kept for good"
    )
    snapshot_dir: str | None = Field(None, description="folder of the memory snapshot; /dev/shm when there is room, else the run folder")
    flush_snapshots: bool = Field(
        False,
        description="put each snapshot on disk (snapshot_dir, else the run folder): a power cut then costs one step",
    )
    to: str | None = Field(
        None, description="a second place for checkpoints, sent beside training: a shared folder or an fsspec address (s3://bucket/name)"
    )

    to_every: int | None = Field(
        None,
        ge=1,
        le=_MOST_STEPS,
        description="with to: a state is made durable and sent after so many steps, whatever `every` says: a lost machine costs that many",
    )

    @model_validator(mode="after")
    def _bounds(self) -> Save:
        if self.to_every is not None and self.to is None:
            raise ValueError("to_every needs to, the second place")
        if self.min_every > self.max_every:
            raise ValueError(f"min_every is {self.min_every}, max_every {self.max_every}: no interval lies between them")
        return self


class Evaluate(Section):
    """What is measured on the held-out rows: their loss on the way, and base against tuned when the run is done."""

    every: int | None = Field(
        None, ge=1, le=_MOST_STEPS, description="steps between evaluations on the way, the last step is one too; none when not given"
    )
    rows: int | None = Field(
        None, ge=1, le=_MOST_STEPS, description="held-out rows of an evaluation on the way, drawn by seed; all when not given"
    )
    patience: int | None = Field(
        None,
        ge=1,
        le=_MOST_STEPS,
        description="evaluations in a row without improvement after which the run ends early; never when not given",
    )
    min_delta: float = Field(0.0, ge=0, le=1000, description="the held-out loss has to fall by more than this to count as improved")
    keep_best: bool = Field(True, description="with every: the run's adapter is the one of the lowest held-out loss, else the last one")
    generate: int = Field(8, ge=0, le=1_000_000, description="held-out prompts that base and tuned model answer; 0: none")
    max_new_tokens: int = Field(64, ge=1, le=10_000_000, description="longest answer")

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
    trials: int = Field(60, ge=0, le=1_000_000, description="most experiments with a step that keeps failing; 0: none")
    hang_s: float = Field(
        60.0, gt=0, le=10_000_000, description="seconds of silence, at least, before a trainer counts as hanging; more where steps are long"
    )
    device_s: float = Field(300.0, ge=0, le=10_000_000, description="seconds to look for a GPU that is gone before the run is given up")
    allow_cpu: bool = Field(False, description="where nothing else was seen to help, continue on the CPU rather than give up")
    rollback: bool = Field(
        True, description="go back to before a rise of the loss that lasts, without the rows that did it or at half the learning rate"
    )
    track: list[Literal["tensorboard", "wandb", "mlflow", "trackio"]] = Field(
        default_factory=list, description="trackers that get every step, each through its own package"
    )
    notify: Notify | None = Field(None, description="who is told when the run needs a person, recovered or ended")


_NAMES = [kind.name for kind in task_kinds()]


class Common(Section):
    """What the configs of all kinds of tasks share, and the rules that hold between sections."""

    task: str = Field(
        _NAMES[0],
        description="; ".join(f"{kind.name}: {kind.about}" for kind in task_kinds()),
        json_schema_extra={"enum": [name for kind in task_kinds() for name in (kind.name, *kind.aliases)]},
    )
    model: str = Field(
        description="a folder in Hugging Face layout, a GGUF file, a hub name (name or name@REVISION), or tiny (ships with holdfast)"
    )
    data: Data
    adapter: Adapter = Adapter()
    train: Train = Train()
    preference: Preference = Preference()
    save: Save = Save()
    evaluate: Evaluate = Evaluate()
    run: Run = Run()

    @field_validator("task", mode="before")
    @classmethod
    def _by_its_name(cls, value: Any) -> str:
        """Take an older name for the one it has now."""
        if found := kind_named(value):
            return found.name
        raise ValueError(f"there is no such task; it is one of {', '.join(_NAMES)}")

    @model_validator(mode="after")
    def _kinds_fit(self) -> Common:
        self._frozen_fits()
        self._optimizer_fits()
        self._objective_fits()
        return self

    def _frozen_fits(self) -> None:
        """Raise ValueError where the frozen weights cannot be held, cut or kept away as is asked for."""
        train, kind = self.train, self.adapter.kind
        if train.frozen_format.width and kind.own_weights:
            raise ValueError(f"adapter.type {kind.name} trains the weights themselves, which train.frozen {train.frozen} would hold frozen")
        if train.fsdp and (reason := self._not_cut()):
            what = "all that is trained" if kind.fsdp == "trained" else "frozen layers in 16 or 32 bits"
            raise ValueError(f"train.fsdp cuts {what} between ranks, and {reason}")
        if train.offload == "layers" and (reason := self._not_kept_away()):
            raise ValueError(f"train.offload layers keeps frozen decoder layers in main memory, and {reason}")
        if train.double_quant and not train.frozen_format.nested:
            nested = " and ".join(form.name for form in FORMATS.values() if form.nested)
            raise ValueError(f"train.double_quant belongs to train.frozen {nested}; this is {train.frozen}")

    def _optimizer_fits(self) -> None:
        """Raise ValueError where the optimizer does not go with what is trained."""
        train, adapter, kind, optimizer = self.train, self.adapter, self.adapter.kind, self.train.optimizer_kind
        if train.weights == "bf16" and (not kind_of(self).base_model or not kind.own_weights):
            what = f"adapter.type {kind.name}" if kind_of(self).base_model else kind_of(self).what
            raise ValueError(f"train.weights bf16 is for adapter.type full and layers; {what} has few weights, and trains them in fp32")
        if adapter.lr_ratio is not None and optimizer.moments == "blocks":
            raise ValueError(f"adapter.lr_ratio needs rates for single matrices, and {optimizer.name} has one for all; take adamw")
        if adapter.init in FROM_WEIGHTS and (train.weight_decay or not optimizer.rests):
            moved = "train.weight_decay shrinks" if optimizer.rests else f"train.optimizer {optimizer.name} moves"
            raise ValueError(f"adapter.init {adapter.init} keeps half of its weights as they began, and {moved} them")
        if optimizer.averages and kind.prunes:
            text = f"adapter.type {kind.name} takes weights away, and train.optimizer {optimizer.name} keeps their mean"
            raise ValueError(f"{text}; take adamw")

    def _objective_fits(self) -> None:
        """Raise ValueError where the objective does not go with what is trained, or on what."""
        adapter, kind, objective = self.adapter, self.adapter.kind, self.train.objective_kind
        if objective.reference and kind.own_weights:
            free = either(objectives_of("pairs", reference=False))
            text = f"holds the model against the one without its adapter, and adapter.type {kind.name} has none"
            raise ValueError(f"train.objective {objective.name} {text}; take {free}, which need no reference, or an adapter")
        if objective.scores and (adapter.start or not kind.scalar_head):
            text = "adapter.start has none" if adapter.start else f"adapter.type {kind.name} has no place for one"
            text = f"trains a scalar head beside a fresh adapter, and {text}; take lora or another adapter"
            raise ValueError(f"train.objective {objective.name} {text}")
        if objective.rows != "answers" and self.data.train_on != "assistant":
            text = f"data.train_on {self.data.train_on} is for train.objective sft; {objective.name} looks at the last answer"
            raise ValueError(text)

    def fusable(self, precision: str) -> bool:
        """True if a GPU's kernels of LoRA layers can read the matrices computed with: frozen ones that are whole on it."""
        return precision != "fp16" and not self.train.fsdp

    @property
    def cuts_trained(self) -> bool:
        """Whether ranks hold pieces of what is trained, with gradients and moments: of all weights, in a full fine-tune."""
        return self.train.fsdp and self.adapter.kind.fsdp == "trained"

    def _not_cut(self) -> str:
        """Return the setting of this run that FSDP does not go with; empty where it goes with all."""
        adapter, train = self.adapter, self.train
        if not adapter.kind.fsdp or adapter.modules_to_save or adapter.init in FROM_WEIGHTS:
            how = f"adapter.init {adapter.init}" if adapter.init in FROM_WEIGHTS else f"adapter.type {adapter.type}"
            how = "adapter.modules_to_save" if adapter.modules_to_save else how
            cut = [kind.name for kind in KINDS.values() if kind.fsdp]
            return f"{how} needs whole weights; it goes with adapter.type {', '.join(cut[:-1])} and {cut[-1]}"
        if adapter.kind.fsdp == "trained" and (reason := self._not_in_pieces()):
            return reason
        if train.frozen_format.width:
            return f"train.frozen is {train.frozen}; take auto or half"
        if train.precision == "fp16":
            return "train.precision is fp16; it goes with fp32 and bf16"
        if train.objective_kind.rows != "answers":
            return f"train.objective is {train.objective}; it goes with sft"
        if not kind_of(self).base_model:
            return f"{kind_of(self).what} has none"
        return ""

    def _not_in_pieces(self) -> str:
        """Return the setting of a full fine-tune that needs whole matrices, or makes bits depend on the number of ranks; else empty."""
        train = self.train
        if train.optimizer_kind.moments != "own":
            return f"train.optimizer {train.optimizer} needs whole matrices or blocks of its own; take {', '.join(WITH_MOMENTS)}"
        if train.weights == "bf16":
            return "train.weights bf16 is rounded by where a weight lies in its rank's memory; take fp32"
        if train.offload == "optimizer":
            return "train.offload optimizer keeps whole moments in main memory; leave one of them out"
        if train.reduction_parts == "off":
            return "train.reduction_parts is off, by whose parts it is cut; leave it out, or give a power of two"
        return ""

    def _not_kept_away(self) -> str:
        """Return why this run has no such layers, or holds them elsewhere; empty where it goes with it."""
        if not kind_of(self).base_model:
            return f"{kind_of(self).what} has none"
        if not self.adapter.kind.frozen:
            return f"adapter.type {self.adapter.type} trains all of them; take an adapter, or adapter.type layers"
        return "train.fsdp cuts them between ranks; leave one of them out" if self.train.fsdp else ""

    faults: list[Fault] = Field(default_factory=list, description="faults to inject, to rehearse a recovery")

    @model_validator(mode="before")
    @classmethod
    def _of_one_task(cls, tree: Any) -> Any:
        """Refuse sections that the task does not use, and have its own rules look at the rest."""
        kind = kind_named(tree.get("task", _NAMES[0])) if isinstance(tree, dict) else None
        if kind is None:
            return tree
        for other in task_kinds():
            strange = [name for name in other.sections if name not in kind.sections and tree.get(name) and not _as_by_default(tree, name)]
            if strange:
                they = "it" if len(strange) == 1 else "them"
                raise ValueError(f"{' and '.join(strange)}: for {other.plural}; say task: {other.name}, or leave {they} out")
        return look_up(kind.rules)(tree) if kind.rules else tree


if TYPE_CHECKING:

    class Config(Common):
        """A holdfast run."""

else:
    _OF_KINDS = [look_up(kind.own_sections) for kind in task_kinds() if kind.own_sections]
    Config = create_model(
        "Config", __base__=Common, __module__=__name__, **{name: field for one in _OF_KINDS for name, field in one.items()}
    )
    Config.__doc__ = "A holdfast run."


def _as_by_default(tree: dict[str, Any], name: str) -> bool:
    """True if a section holds its defaults only, as in the config that a run folder keeps."""
    default = Config.model_fields[name].default
    return hasattr(default, "model_dump") and tree[name] == default.model_dump(mode="json")
