"""Read what a model folder says of itself: config.json and the headers of its safetensors files. No torch, no weights loaded."""

from __future__ import annotations

import difflib
import functools
import math
import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast.base.errors import BLOCKED, USAGE, Stop
from holdfast.base.file_errors import of_the_file
from holdfast.base.files import Json, read_json
from holdfast.base.hub import refusal
from holdfast.base.safe_open import open_regular
from holdfast.base.versions import install
from holdfast.base_model.forms import names_in_index, read_config, refuse_odd_config
from holdfast.base_model.gguf_file import is_gguf, widened_folder
from holdfast.base_model.packed import about_packing, packed_as, unpacked_shapes, widened_from, widened_shapes
from holdfast.base_model.tensor_header import NoTensors, TensorEntry, read_header
from holdfast.base_model.types import is_tower

_EMBEDDINGS = ("embed_tokens", "wte", "wpe", "lm_head", "embed_in", "embed_out", "word_embeddings", "segment_emb")
_OUTPUT = ("output", "head")  # the output layer in files of Mistral's and DeepSeek V4's own; within a layer the names mean others
_TABLE = re.compile(r"(\w+_)?(embed|embeddings?|embed_\w+)")  # the last word of a name, as older models have it
_STORED = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}  # types as config.json and as safetensors name them
COUNTS = "I64"  # the type of tables of whole numbers, as DeepSeek V4's of experts by token: no weights, in few bits or many
_KEYS = re.compile(r"\blayers\.(\d+)\.self_attn\.[kv]_(?:proj|norm)\.")
_WIDENED_TO = "BF16"  # what models are in that are widened when they are loaded
_NOT_OF_A_MODEL = ["*/*.safetensors", "consolidated*.safetensors"]  # the weights once more, for others' code: gpt-oss, Llama, Mistral
_ALIKE = 0.75  # of the letters of two names
_SAMPLES, _SAMPLE = 16, 512  # of a table, and bytes in each
_CACHED = "models--"  # begins the name of a model's folder in the hub's cache: models--OWNER--NAME
GENERATION = "generation_config.json"
EMBEDDED = {"tiny": Path(__file__).parents[1] / "models" / "tiny"}  # base models that ship with the package, by name


def _is_embedding(name: str) -> bool:
    """True if a matrix is a table that is looked up, or the output layer: of RoBERTa's two the last."""
    return not name.endswith("lm_head.dense") and (
        name in _OUTPUT
        or "unembed" in name.split(".")
        or any(part in name for part in _EMBEDDINGS)
        or _TABLE.fullmatch(name.rpartition(".")[2]) is not None
    )


@dataclass(frozen=True)
class ModelFacts:
    """A model's configuration, the shape of every weight by name, and the one type all matrices are `stored` in (None: several).

    copy: the output layer where it is the embedding once more, which some files have beside it: the loaded model has one of them.
    """

    folder: Path
    config: Json
    shapes: dict[str, tuple[int, ...]]
    file_bytes: int
    stored: str | None = None
    copy: str | None = None

    @property
    def held(self) -> dict[str, tuple[int, ...]]:
        """The shapes of what the loaded model holds: each weight once."""
        return {name: shape for name, shape in self.shapes.items() if name != self.copy}

    @functools.cached_property
    def generation(self) -> Json:
        """What its generation_config.json says; empty where there is none."""
        return read_json(self.folder / GENERATION) or {}

    @property
    def text(self) -> Json:
        """What config.json says of the language model: of a wrapped one that stands under text_config.

        Nemotron-H lists its layers and does not say how many they are.
        """
        inner = self.config.get("text_config")
        said = self.config | inner if isinstance(inner, dict) else self.config
        listed = said.get("layers_block_type")
        return {"num_hidden_layers": len(listed)} | said if isinstance(listed, list) else said

    @property
    def positions(self) -> int | None:
        """The longest input the model takes, in tokens; None when its config does not say."""
        value = self.text.get("max_position_embeddings") or self.text.get("n_positions")
        return value if type(value) is int and value > 0 else None

    def linear(self) -> dict[str, tuple[int, ...]]:
        """Return the weight shapes of linear layers by module name: every matrix but embeddings and the output layer.

        A table has no bias (ProphetNet calls a layer relative_pos_embeddings); outside of layers a row for each token is one (CTRL's w).
        """
        tokens = self.text.get("vocab_size")

        def is_table(name: str, rows: int) -> bool:
            by_token = rows == tokens and not any(word.isdigit() for word in name.split("."))
            return by_token or (_is_embedding(name) and not (_TABLE.fullmatch(name.rpartition(".")[2]) and f"{name}.bias" in self.shapes))

        return {name: shape for name, shape in self.matrices().items() if not is_table(name, shape[0])}

    def matrices(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of all two-dimensional weights by module name."""
        return {name.removesuffix(".weight"): shape for name, shape in self.shapes.items() if name.endswith(".weight") and len(shape) == 2}

    def parameters(self) -> int:
        return sum(math.prod(shape) for shape in self.held.values())

    def number(self, *names: str, default: int) -> int:
        """Return the first of these config keys that holds a size: a whole number above 0."""
        said = self.text
        return next((said[name] for name in names if type(said.get(name)) is int and said[name] > 0), default)


def folder_of(model: str) -> Path:
    """Return the folder of an embedded model, of a GGUF file (widened where it is not yet), or the path that `model` is. Raises Stop(1)."""
    if is_gguf(model) and not is_folder(Path(model)):
        return widened_folder(Path(model).expanduser())
    return EMBEDDED.get(model) or Path(model)


def read_description(model: str) -> ModelFacts:
    """Read the facts of a model whose weights may be missing: then no shapes, `stored` of config.json. Raises Stop as read_model does.

    Of the hub's models the weights are used where they were fetched before; for this alone none are.
    """
    folder = folder_of(model)
    elsewhere = not is_folder(folder)
    if elsewhere:
        folder = _from_hub(model, weights=False)
    config = read_config(folder / "config.json")
    if config is None or (_has_weights(folder) if elsewhere else any(folder.glob("*.safetensors*"))):
        return read_model(str(folder))
    refuse_odd_config(folder / "config.json", config)
    return ModelFacts(folder, config, {}, 0, _STORED.get(str(config.get("dtype") or config.get("torch_dtype")).removeprefix("torch.")))


def _has_weights(folder: Path) -> bool:
    try:
        return bool(weight_files(folder))
    except Stop:
        return False


def read_model(model: str) -> ModelFacts:
    """Read the facts of an embedded model, a local folder, a GGUF file, or a hub name, also name@REVISION (fetched with a network).

    Raises Stop(1) when it cannot be had or is damaged, naming the file.
    """
    folder = folder_of(model)
    if not is_folder(folder):
        folder = _from_hub(model)
    config = read_config(folder / "config.json")
    if config is None:
        _refuse_adapter(folder)
        missing = not (folder / "config.json").exists()
        found = "missing" if missing else "not a JSON object"
        raise Stop(BLOCKED, f"{folder}/config.json is {found}", "give a folder in Hugging Face layout")
    refuse_odd_config(folder / "config.json", config)
    shapes: dict[str, tuple[int, ...]] = {}
    types: set[str] = set()
    size, tables = 0, dict[str, tuple[Path, TensorEntry]]()
    packed, wide = packed_as(config), widened_from(config)
    for file in weight_files(folder):
        tensors = stored_tensors(file)
        own = _unpacked(file, tensors, wide) if packed or wide else {name: tensor.shape for name, tensor in tensors.items()}
        shapes |= own
        tables |= {
            name: (file, one) for name, one in tensors.items() if len(one.shape) == 2 and _is_embedding(name.removesuffix(".weight"))
        }
        if not wide:
            types |= {tensors[name].dtype for name, shape in own.items() if len(shape) > 1} - {COUNTS, *(("U8", "I8") if packed else ())}
        size += file.stat().st_size
    stored = _WIDENED_TO if wide else types.pop() if len(types) == 1 else None
    facts = ModelFacts(folder, config, shapes, size, stored)
    if config.get("tie_word_embeddings", facts.text.get("tie_word_embeddings")) is True:
        facts = replace(facts, copy=_copied_head(tables))
    shared, layers = facts.text.get("num_kv_shared_layers"), facts.text.get("num_hidden_layers")
    if type(shared) is not int or type(layers) is not int:
        return facts
    return replace(facts, shapes={name: shape for name, shape in shapes.items() if not _is_dropped(name, layers - shared)})


def _copied_head(tables: dict[str, tuple[Path, TensorEntry]]) -> str | None:
    """Return the name of an output layer that is another table, by samples of their bytes: with other values it would stay a layer."""
    parts = {name: _samples(*place) for name, place in tables.items()}
    return next((head for head in parts if head.endswith("lm_head.weight") and [*parts.values()].count(parts[head]) > 1), None)


def _samples(file: Path, tensor: TensorEntry) -> tuple[object, ...]:
    with open_regular(file) as handle:
        found = []
        for part in range(_SAMPLES):
            handle.seek(tensor.begin + (tensor.end - tensor.begin) * part // _SAMPLES)
            found.append(handle.read(min(_SAMPLE, (tensor.end - tensor.begin) // _SAMPLES)))
    return tensor.dtype, tensor.shape, *found


def _is_dropped(name: str, first: int) -> bool:
    """Return whether a tensor is of keys or values in a layer that takes an earlier one's (Gemma 3n and 4): no model has it, files do.

    first: the first of these layers.
    """
    found = None if is_tower(name) else _KEYS.search(name)
    return found is not None and int(found[1]) >= first


def _refuse_adapter(folder: Path) -> None:
    """Say how an adapter, or a run that has one, is gone on from. Raises Stop(1) where it is one."""
    about = read_json(folder / "adapter_config.json") or read_json(folder / "adapter" / "adapter_config.json")
    if about is not None:
        base = about.get("base_model_name_or_path") or "its base model"
        raise Stop(BLOCKED, f"{folder} holds an adapter and no model", f"to train it further: model: {base}, adapter.start: {folder}")


def is_folder(path: Path) -> bool:
    """True if there is such a folder; a name that is too long for one is no error."""
    try:
        return path.is_dir()
    except OSError:
        return False


def hub_name(model: str) -> tuple[str, str | None]:
    """Split name@REVISION into the name and the revision (a branch, a tag, a commit); None where none is asked for, and for a folder."""
    name, at, revision = model.partition("@")
    return (name, revision) if at and not is_folder(Path(model)) else (model, None)


def named_by_peft(model: str) -> Json:
    """Return how an adapter_config.json names a base model: a GGUF file by the folder it was widened into, a hub's with its revision."""
    name, revision = (str(folder_of(model)), None) if is_gguf(model) else hub_name(model)
    return {"base_model_name_or_path": name, "revision": revision}


def name_for_others(model: str) -> str:
    """Return a base model's name without a path of this machine: of a folder in the hub's cache the hub's, of any other its own."""
    place = Path(model)
    if not place.is_absolute() and not is_folder(place):
        return model
    cached = next((part for part in place.parts if part.startswith(_CACHED)), "")
    return cached.removeprefix(_CACHED).replace("--", "/") or place.name


def base_of_adapter(config: Json) -> str:
    """Return the base model that an adapter_config.json names, as name@REVISION where it names a revision; "" for none."""
    name, revision = config.get("base_model_name_or_path"), config.get("revision")
    if not isinstance(name, str):
        return ""
    return f"{name}@{revision}" if isinstance(revision, str) and revision and "@" not in name and not is_folder(Path(name)) else name


def refuse_near_embedded(name: str) -> None:
    """Raise Stop(2) for a name that is almost that of a model which comes with holdfast."""
    if near := [] if "/" in name else difflib.get_close_matches(name.lower(), EMBEDDED, 1, _ALIKE):
        raise Stop(USAGE, f"{name} is not a folder, and no model of that name comes with holdfast", f"did you mean {near[0]}?")


def _from_hub(model: str, weights: bool = True) -> Path:
    """Fetch a model of the hub, or what describes it alone: what lies at the top, and not Mistral's own copy of the weights."""
    name, revision = hub_name(model)
    refuse_near_embedded(name)
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.utils import disable_progress_bars
    except ImportError:
        raise Stop(BLOCKED, f"{name} is not a folder, and huggingface_hub is not installed", install("train")) from None
    if not sys.stderr.isatty():
        disable_progress_bars()
    wanted = ["*.json", "*.jinja", "*.model", "*.txt", "README.md", *(["*.safetensors"] if weights else [])]
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=wanted, ignore_patterns=_NOT_OF_A_MODEL))
    except Exception as error:  # noqa: BLE001  (each way to fail is an error of its own, of two libraries)
        raise refusal(error, model, "model", "a folder") from None


def weight_files(folder: Path) -> list[Path]:
    """List the safetensors files of a model. Raises Stop(1) where there are none, or some are missing."""
    index = read_json(folder / "model.safetensors.index.json")
    if index is not None:
        names = names_in_index(folder / "model.safetensors.index.json", index)
        missing = [name for name in names if not (folder / name).is_file()]
        if missing:
            raise Stop(
                BLOCKED, f"{folder} lacks {len(missing)} of {len(names)} weight files: {', '.join(missing[:3])}", "download them again"
            )
        return [folder / name for name in names]
    if (folder / "model.safetensors").is_file():
        return [folder / "model.safetensors"]
    others = [entry.name for entry in folder.glob("*.bin")]
    found = f"only {', '.join(others[:3])}" if others else "no weights"
    raise Stop(BLOCKED, f"{folder} holds no model.safetensors ({found})", "save it with model.save_pretrained(folder)")


def _unpacked(file: Path, tensors: dict[str, TensorEntry], wide: str | None) -> dict[str, tuple[int, ...]]:
    try:
        if wide:
            return widened_shapes(wide, tensors)
        with open_regular(file) as handle:
            return unpacked_shapes(handle, tensors)
    except (OSError, ValueError) as error:
        if isinstance(error, OSError):
            of_the_file(error)
        hint = "take the model in 16 bits, or download it again" if wide else "download it again"
        raise Stop(BLOCKED, f"{file} {'cannot be widened' if wide else 'is damaged'}: {error}", hint) from None


def comes_quantised(model: ModelFacts) -> tuple[str, str] | None:
    """Return (what, what to do) of a model whose files hold quantised weights that cannot be trained on; None for any other."""
    about = about_packing(model.config, model.shapes)
    if about is None or packed_as(model.config) or widened_from(model.config):
        return None
    method = about.get("quant_method") or "an unnamed method"
    bits = next((f" in {count} bits" for key, count in (("load_in_4bit", 4), ("load_in_8bit", 8)) if about.get(key)), "")
    bits = bits or (f" in {about['bits']} bits" if isinstance(about.get("bits"), int) else "")
    text = f"{model.folder} comes quantised (by {method}{bits}), which is not read here; bitsandbytes, FP8 and MXFP4 are"
    return text, "take the model in 16 bits; train.frozen: nf4 or int8 then holds it in 4 or 8"


def stored_tensors(file: Path) -> dict[str, TensorEntry]:
    """Read the tensors of one safetensors file, after checking that header and size agree. Raises Stop(1) when it is damaged."""
    try:
        opened = open_regular(file)
    except OSError as error:
        raise Stop(BLOCKED, f"{file} cannot be read: {of_the_file(error).strerror}", "download it again") from None
    with opened as handle:
        try:
            return read_header(handle)[0]
        except NoTensors as error:
            if error.pointer:
                raise Stop(BLOCKED, f"{file} is a pointer of Git LFS and not the weights", "fetch them with git lfs pull") from None
            raise Stop(BLOCKED, f"{file} is damaged: {error}", "download it again") from None


def broken_tensor(name: str, count: int, shape: tuple[int, ...], first: tuple[int, ...]) -> str:
    """Describe one tensor whose values are not all finite."""
    return f"{name}: {count:,} of {math.prod(shape):,} values, the first at {list(first)}"
