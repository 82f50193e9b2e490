"""What is to be shipped: a run's adapter or whole model, or any PEFT folder, with its base model. Loads no weights."""

from __future__ import annotations

import functools
import hashlib
import math
from dataclasses import dataclass
from pathlib import Path

import orjson

from holdfast.base.errors import BLOCKED, USAGE, Stop
from holdfast.base.files import Json, read_json, sha256
from holdfast.base.tasks import kind_of
from holdfast.base_model.folder import ModelFacts, base_of_adapter, read_model, weight_files
from holdfast.base_model.packed import packed_as, widened_from
from holdfast.config.choices.frozen_formats import FORMATS
from holdfast.data.token_set.learned_rows import run_of
from holdfast.data.tokens.codec import Codec, load_codec
from holdfast.data.tokens.given_template import codec_of
from holdfast.export.tensors import StoredTensor, held_tensors, tensors_of_file
from holdfast.run.adapter_folder import refuse_incomplete
from holdfast.run.artifact import ADAPTER_CONFIG, ARTIFACT
from holdfast.run.base_model import changed, identity
from holdfast.run.folder import RunFolder, which_runs
from holdfast.run.plan import read_plan
from holdfast.run.snapshots.checkpoint import checkpoint_steps
from holdfast.run.timeline import settings_in

# of an adapter_config.json: where it comes from, and what counts in training alone
_NOTES = (
    *("base_model_name_or_path", "revision", "peft_version", "inference_mode", "task_type", "auto_mapping", "lora_dropout"),
    "runtime_config",
)
MODEL = "model"  # the folder that a run without an adapter leaves


@dataclass(frozen=True)
class Subject:
    """An adapter, or a model that was trained as a whole, its base model, and the run that made it where that is known.

    tuned: the folder of the adapter or model; config: the adapter's, empty for a model; whole: the model, None for an adapter;
    base_name: as the run or the adapter names it; facts: of the base model's folder.
    """

    name: str
    tuned: Path
    config: Json
    base_name: str
    facts: ModelFacts
    run: RunFolder | None
    whole: ModelFacts | None = None

    @property
    def weights(self) -> Path:
        """The file of an adapter."""
        return self.tuned / ARTIFACT

    @property
    def model(self) -> ModelFacts:
        """The model whose weights an export begins with."""
        return self.whole or self.facts

    @property
    def state(self) -> str:
        """Its name, and which state of its run it is where that is not the end."""
        return f"{self.name} at {self.tuned.name}" if on_the_way(self) else self.name

    @property
    def longest_row(self) -> int | None:
        """The tokens a row may have, behind those that a prompt adapter has learned; None where the model's config does not say."""
        before = self.config.get("num_virtual_tokens")
        return max(1, self.facts.positions - (before if type(before) is int else 0)) if self.facts.positions else None

    @property
    def told(self) -> str:
        """What an export has to equal, in words."""
        return "base + adapter" if self.whole is None else "the trained model"

    def loaded(self) -> Json:
        """Return how a child loads it: the folder of a model, and that of an adapter or null."""
        if self.whole is not None:
            return {"model": str(self.tuned), "adapter": None}
        return {"model": str(self.facts.folder), "adapter": str(self.tuned)}

    def held(self) -> Json | None:
        """Return the fewer bits {kind, double, dtype} in which the run held a base that comes in more; None where it did not."""
        if self.run is None or self.whole is not None or packed_as(self.facts.config) or widened_from(self.facts.config):
            return None
        plan, settings = read_plan(self.run.plan_file), settings_in(self.run.timeline_file)
        frozen = (plan.frozen if plan else None) or settings.frozen if settings.frozen == "auto" else settings.frozen
        if FORMATS[frozen].width is None:
            return None
        return {"kind": frozen, "double": settings.double_quant, "dtype": settings.dtype}

    def held_otherwise(self) -> Json:
        """Return {"base_held": {"trained", "measured"}}: in how many bits training held the base's matrices, and its files do.

        Empty where that is the same, or not known. What is shipped goes by the files.
        """
        held = self.held()
        return {"base_held": {"trained": held["kind"], "measured": str(self.facts.stored or "F32").lower()}} if held else {}

    @functools.cached_property
    def adapter_tensors(self) -> dict[str, StoredTensor]:
        """The tensors of the adapter's file by name."""
        return tensors_of_file(self.weights)

    @functools.cached_property
    def model_tensors(self) -> dict[str, StoredTensor]:
        """The tensors by name that an export begins with, of all files of the model."""
        return held_tensors(self.model.folder)

    def hashes(self) -> Json:
        """Return the hashes by which an export, a verdict and the registry name their origin; the files are read once.

        A base is named by samples of its large files, as it always was: alike for runs of older versions, of this one, and for adapters
        without a run.
        """
        return dict(self._hashed)

    @functools.cached_property
    def _hashed(self) -> Json:
        plan = read_plan(self.run.plan_file) if self.run else None
        weights = _sha256([self.weights] if self.whole is None else weight_files(self.tuned))
        base = _of_json(identity(self.facts, whole=False).files)
        settings = settings_of(self.config) if self.whole is None else identity(self.whole, whole=False).files
        return {
            "run": str(self.run.path) if self.run else None,
            "adapter": str(self.tuned),
            "adapter_sha256": weights,
            "behaviour_sha256": _of_json([weights, base, settings]),
            "base": self.base_name,
            "base_sha256": base,
            "data_sha256": plan.data_sha256 if plan else None,
        }


def on_the_way(subject: Subject) -> bool:
    """Return whether it is a state on the way of its run, and not what that left at its end."""
    return subject.run is not None and subject.tuned not in (subject.run.adapter, subject.run.path / MODEL)


def settings_of(config: Json) -> Json:
    """Return what of an adapter_config.json may change what is computed: all but notes and what is off; names are in order."""
    found = {key: value for key, value in plain_scale(config).items() if key not in _NOTES and value is not None and value is not False}
    return {key: _in_order(value) for key, value in found.items() if value not in ([], {}, "")}


def plain_scale(config: Json) -> Json:
    """Return an adapter_config.json that scales its LoRA as this one does, without use_rslora where that can be said without it.

    SGLang 0.5.23 (srt/lora/lora.py) and llama.cpp's convert_lora_to_gguf.py read lora_alpha and r, and not use_rslora: they would answer
    with 1 / sqrt(r) of what was learned, without an error.
    """
    alpha, rank = config.get("lora_alpha"), config.get("r")
    if not config.get("use_rslora") or config.get("rank_pattern") or config.get("alpha_pattern"):
        return config
    if not isinstance(alpha, int | float) or not isinstance(rank, int) or rank < 1:
        return config
    plain = alpha * math.sqrt(rank)
    return config | {"use_rslora": False, "lora_alpha": int(plain) if plain == int(plain) else plain}


def _in_order(value: object) -> object:
    """Sort a list of names: PEFT saves sets, in any order. Other values are returned as they are."""
    return sorted(value) if isinstance(value, list) and all(isinstance(one, str) for one in value) else value


def _of_json(value: object) -> str:
    return hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()


def subject_codec(subject: Subject) -> Codec:
    """Load the tokenizer with the template that was trained: the run's, or the one beside an adapter; else the base's."""
    if subject.run is not None:
        return codec_of(subject.run.config(), subject.facts.folder)
    file = subject.tuned / "chat_template.jinja"
    return load_codec(subject.facts.folder, file.read_text(encoding="utf-8") if file.is_file() else None)


def read_subject(path: Path, base: str | None = None) -> Subject:
    """Resolve `path`: a run folder, its model or a checkpoint of it, or a folder that PEFT saved.

    base: where the base model is, if not where the adapter says. Raises Stop where there is no adapter, its file is not the one
    the run ended with, or the base is gone or another one than it was trained on.
    """
    path = path.expanduser().resolve()
    if not path.is_dir():
        why = "it is a file" if path.exists() else "there is no such folder"
        raise Stop(
            USAGE, f"{path} is not a folder of a run or of an adapter ({why})", f"{which_runs(path)}; a folder that PEFT saved does, too"
        )
    run = run_of(path)
    if run:
        run.refuse_foreign()
        if not (kind := kind_of(run.config())).ships:
            raise Stop(BLOCKED, f"{run.path} trains {kind.what} and no language model", f"{run.artifact}: {kind.otherwise}")
    model = _model_of(path, run)
    folder = model or (path / "adapter" if (path / "config.yaml").is_file() else path)
    config = {} if model else _adapter_config(folder, run)
    if config.get("task_type") == "SEQ_CLS":
        text = f"{folder} scores answers (train.objective reward) and gives none: there is nothing to serve, export or compare"
        raise Stop(BLOCKED, text, "load it with AutoModelForSequenceClassification and PEFT; docs/how-to/preferences.md shows how")
    given = run.config().model if run else base_of_adapter(config)
    named = base or given
    if not named:
        raise Stop(BLOCKED, f"{folder}/{ADAPTER_CONFIG} names no base model", "give it with --base DIR")
    try:
        facts = read_model(named)
    except Stop as stop:
        text = f"the base model of {folder} is not available: {stop.message}"
        raise Stop(stop.code, text, f"{stop.hint}; or say where it is now with --base DIR") from None
    if model is None:
        refuse_incomplete(folder, config, facts)
    _refuse_changed(run, folder, facts)
    name = run.path.name if run else path.name
    return Subject(name, folder, config, str(named), facts, run, read_model(str(model)) if model else None)


def _model_of(path: Path, run: RunFolder | None) -> Path | None:
    """Return the folder of the whole model that a run without an adapter left; None for none."""
    if run is None or path not in (run.path, run.path / MODEL) or run.adapter.exists():
        return None
    return run.path / MODEL if (run.path / MODEL).is_dir() else None


def _adapter_config(folder: Path, run: RunFolder | None) -> Json:
    config = read_json(folder / ADAPTER_CONFIG)
    if config is not None and (folder / ARTIFACT).is_file():
        return config
    if run and not folder.exists():
        text = f"{run.path} has no adapter yet: the run is not finished"
        saved = f", or give one of {run.checkpoints}" if checkpoint_steps(run) else ""
        raise Stop(BLOCKED, text, f"finish it with the command that began it (`holdfast status {run.path}` tells it){saved}")
    lacking = " and ".join(name for name in (ADAPTER_CONFIG, ARTIFACT) if not (folder / name).is_file())
    if not lacking:
        raise Stop(BLOCKED, f"{folder}/{ADAPTER_CONFIG} is not a JSON object", "save the adapter again")
    raise Stop(USAGE, f"{folder} holds no adapter: {lacking} missing", "give a finished run, or a folder that PEFT saved")


def _refuse_changed(run: RunFolder | None, folder: Path, facts: ModelFacts) -> None:
    if run is None:
        return
    summary = read_json(run.summary_file) or {}
    file = {run.adapter: run.adapter / ARTIFACT, run.path / MODEL: run.path / MODEL / "model.safetensors"}.get(folder)
    wanted = summary.get("artifact_sha256")
    if file and wanted and file.is_file() and sha256(file) != wanted:
        text = f"{file} is not what this run ended with (sha256 {wanted[:16]})"
        raise Stop(BLOCKED, text, "restore it, or export the folder it came from instead")
    if told := changed(run, facts):
        raise Stop(BLOCKED, told, "give the base model it was trained on with --base DIR: on another one an adapter is of no use")


def _sha256(files: list[Path]) -> str:
    """Hash one file; of several hash their hashes, in the order of their names."""
    found = [sha256(file) for file in files]
    return found[0] if len(found) == 1 else hashlib.sha256("".join(found).encode()).hexdigest()
