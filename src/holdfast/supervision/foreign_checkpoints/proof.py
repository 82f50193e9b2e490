"""Whether a checkpoint of another program is whole: a Trainer's folder, or any file or folder of tensors. Changes nothing."""

from __future__ import annotations

import re
from pathlib import Path

from holdfast.base.files import read_json, read_python_json
from holdfast.base.safe_open import read_small
from holdfast.supervision.foreign_checkpoints.archives import prove_archive
from holdfast.supervision.foreign_checkpoints.tensors import NotWhole, prove_tensors

_ARCHIVES = (".pt", ".pth", ".bin", ".ckpt")
_STATE = re.compile(r"optimizer\.(?:pt|bin)|scheduler\.pt|rng_state(?:_\d+)?\.pth|scaler\.pt")
_WEIGHTS = ("model.safetensors", "adapter_model.safetensors", "pytorch_model.bin", "adapter_model.bin")
_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")


def prove(place: Path, whole: str, elder: Path | None = None) -> None:
    """Raise NotWhole, with the reason. whole: "trainer" or "files"; elder: an older checkpoint, whose kinds of files it has to have."""
    try:
        _prove_all(place, whole, elder)
    except OSError as error:
        raise NotWhole(f"it cannot be read: {error.strerror or error}") from None


def _prove_all(place: Path, whole: str, elder: Path | None) -> None:
    if place.is_symlink() and not place.exists():
        raise NotWhole(f"it is a link to {place.readlink()}, which is not there")
    if not place.is_dir():
        _prove_file(place)
        return
    if of_accelerate(place):
        _prove_accelerate(place, elder)
    elif whole == "trainer":
        _prove_trainer(place, elder)
    elif elder is not None and _alike(elder, place) and (missing := sorted(_kinds(elder) - _kinds(place))):
        raise NotWhole(f"{missing[0]} is missing, which {elder.name} has")
    files = [file for file in sorted(place.rglob("*")) if file.is_file()]
    if not files:
        raise NotWhole("it is empty")
    for index in (file for file in files if file.name in _INDEXES):
        _prove_shards(index)
    for file in files:
        _prove_file(file)


def of_accelerate(place: Path) -> bool:
    """True if a folder is one of accelerate's `save_state`, which writes the random states last, one file a process."""
    return not (place / "trainer_state.json").exists() and any(place.glob("random_states_*.pkl"))


def _prove_accelerate(place: Path, elder: Path | None) -> None:
    if elder is not None and (missing := sorted(_saved_by_accelerate(elder) - _saved_by_accelerate(place))):
        raise NotWhole(f"{missing[0]} is missing, which {elder.name} has")
    for file in place.glob("random_states_*.pkl"):
        prove_archive(file)


def _saved_by_accelerate(place: Path) -> set[str]:
    """Return the names of what accelerate writes of models, optimizers, schedulers and each process; none of another's folder."""
    return {file.name for file in place.iterdir() if file.suffix in (".safetensors", ".bin", ".pkl")} if of_accelerate(place) else set()


def _alike(elder: Path, place: Path) -> bool:
    return elder.is_dir() and _numberless(elder.name) == _numberless(place.name)


def _kinds(place: Path) -> set[str]:
    """Return the files of tensors that a folder holds, and a Trainer's last one, by names without their numbers."""
    files = (file for file in place.rglob("*") if file.suffix in (".safetensors", *_ARCHIVES) or file.name == "trainer_state.json")
    return {_numberless(str(file.relative_to(place))) for file in files}


def _numberless(name: str) -> str:
    return re.sub(r"\d+", "N", name)


def _prove_file(file: Path) -> None:
    if file.suffix == ".safetensors":
        prove_tensors(file)
    elif file.suffix in _ARCHIVES:
        prove_archive(file)
    elif file.suffix == ".distcp" and file.stat().st_size == 0:
        raise NotWhole(f"{file.name} is empty")


def _prove_trainer(place: Path, elder: Path | None) -> None:
    state, step = read_python_json(place / "trainer_state.json"), int(place.name.rpartition("-")[2])
    if state is None:
        there = "is damaged: it holds no JSON object" if (place / "trainer_state.json").exists() else "is missing"
        raise NotWhole(f"trainer_state.json {there}")
    if state.get("global_step") != step:
        raise NotWhole(f"trainer_state.json is of step {state.get('global_step')}, the folder of step {step}")
    sharded = _prove_sharded(place)
    # a Trainer writes its state last: where none has weights, they are saved under names of their own
    if not sharded and not _has_weights(place) and elder is not None and _has_weights(elder):
        raise NotWhole(f"it holds no weights, which {elder.name} does")
    if elder is not None and elder.is_dir() and (missing := sorted(_states(elder) - _states(place))):
        raise NotWhole(f"{missing[0]} is missing, which {elder.name} has")


def _states(place: Path) -> set[str]:
    return {file.name for file in place.iterdir() if _STATE.fullmatch(file.name)}


def _has_weights(place: Path) -> bool:
    """True if a file is named like a Trainer's weights; adapters with names of their own are in folders."""
    return any((place / name).exists() for name in (*_WEIGHTS, *_INDEXES)) or any(place.glob("*/adapter_model.safetensors"))


def _prove_sharded(place: Path) -> bool:
    """True if the weights are in a DeepSpeed or torch.distributed.checkpoint folder; raises NotWhole where a part of it is missing."""
    found = False
    if (latest := place / "latest").exists():
        name = read_small(latest).decode(errors="replace").strip()
        if not re.fullmatch(r"[\w.-]+", name) or not any((place / name).glob("*.pt")):
            raise NotWhole(f"latest names {name[:80]!r}, which is not there")
        found = True
    for folder in [*place.glob("pytorch_model_fsdp_*"), *place.glob("optimizer_*")]:
        if folder.is_dir():
            if not (folder / ".metadata").exists():
                raise NotWhole(f"{folder.name} has no .metadata: not every process had written its part")
            found = True
    return found


def _prove_shards(index: Path) -> None:
    tree = read_json(index)
    if tree is None or not isinstance(named := tree.get("weight_map"), dict):
        raise NotWhole(f"{index.name} is damaged: it names no shards")
    for name in sorted(set(map(str, named.values()))):
        file = index.parent / name
        if Path(name).name != name or not file.is_file():
            raise NotWhole(f"{name[:120]} is missing, which {index.name} names")
        if file.suffix == ".safetensors" and not {tensor for tensor, at in named.items() if at == name} <= prove_tensors(file):
            raise NotWhole(f"{name} lacks tensors that {index.name} says it has")
