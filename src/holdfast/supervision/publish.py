"""Make the run's artifact of a verified checkpoint: whole or not at all. Trains and measures nothing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from holdfast.base.disk import flush_tree
from holdfast.base.errors import GAVE_UP, Stop
from holdfast.base.files import fsync_folder, read_json, sha256
from holdfast.base_model.folder import read_model, stored_tensors, weight_files
from holdfast.base_model.tensor_header import TensorEntry, pack_header
from holdfast.data.tokens.given_template import codec_of
from holdfast.export.endings import write_companions
from holdfast.run.artifact import CONFIGS, KINDS, WEIGHTS
from holdfast.run.folder import RunFolder
from holdfast.run.snapshots.checkpoint import Checkpoint

_WIDTHS = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "BF16": 2, "F16": 2, "I16": 2}  # bytes an element; all others 1
_PIECE = 1 << 24  # bytes copied at once
_HEAD, _TABLES = "lm_head.weight", ("embed_tokens.weight", "wte.weight", "word_embeddings.weight")  # ends of names
_Place = tuple[Path, TensorEntry]


def publish_artifact(run: RunFolder, checkpoint: Checkpoint, model: Path | None) -> str:
    """Copy what a checkpoint holds, and write what belongs beside it, to the folder of its kind, as RUN/adapter.

    Returns the SHA-256 of the weights there. RUN/artifact is another name for that folder. Raises Stop where the base model is gone whose
    other weights are wanted.
    """
    final = run.path / checkpoint.kind
    staged = run.path / f".{checkpoint.kind}.tmp"
    shutil.rmtree(staged, ignore_errors=True)
    staged.mkdir()
    weights, config = WEIGHTS[checkpoint.kind], CONFIGS[checkpoint.kind]
    shutil.copyfile(checkpoint.folder / config, staged / config)
    digest = checkpoint.artifact_sha256
    if checkpoint.partial:
        if model is None:
            text = f"the base model of {run.path} is gone; the weights of it that were not trained belong into what the run leaves"
            raise Stop(GAVE_UP, text, "put it back where it was; then rerun the same command")
        _with_the_others(checkpoint.folder / weights, model, staged / weights)
        digest = sha256(staged / weights)
    else:
        shutil.copyfile(checkpoint.folder / weights, staged / weights)
    if model is not None and KINDS[checkpoint.kind].text:
        facts = read_model(str(model))
        write_companions(codec_of(run.config(), facts.folder), facts, staged)
    flush_tree(staged)
    shutil.rmtree(final, ignore_errors=True)
    staged.rename(final)
    link = run.path / "artifact"
    if not link.is_symlink():
        link.symlink_to(checkpoint.kind, target_is_directory=True)
    fsync_folder(run.path)
    return digest


def _with_the_others(trained: Path, model: Path, out: Path) -> None:
    """Write the trained weights and, as they are stored, those of the base model that were not. Holds a piece of a tensor at a time.

    An output layer that is a trained embedding, kept twice in the base's files, is left out: beside other values transformers unties it.
    """
    base = {name: (file, tensor) for file in weight_files(model) for name, tensor in stored_tensors(file).items()}
    own = {name: (trained, tensor) for name, tensor in stored_tensors(trained).items()}
    tied = (read_json(trained.with_name(CONFIGS["model"])) or {}).get("tie_word_embeddings") is True
    tables = [base[name] for name in own if tied and name in base and name.endswith(_TABLES)]
    twice = {name for name in base if name not in own and name.endswith(_HEAD) and any(_same(base[name], table) for table in tables)}
    places = {name: place for name, place in (base | own).items() if name not in twice}
    in_order = sorted(places, key=lambda name: (-_WIDTHS.get(places[name][1].dtype, 1), name))  # wide types first: each is aligned
    stored = [(name, places[name][1]) for name in in_order]
    header, _ = pack_header(((name, one.dtype, one.shape, one.end - one.begin) for name, one in stored), {"format": "pt"})
    with out.open("wb") as handle:
        handle.write(header)
        for file, tensor in map(places.__getitem__, in_order):
            with file.open("rb") as source:
                for piece in _pieces(source, tensor):
                    handle.write(piece)


def _same(one: _Place, other: _Place) -> bool:
    """Return whether two tensors in files are of one form and have the same bytes."""
    (file, tensor), (other_file, other_tensor) = one, other
    if (tensor.dtype, tensor.shape) != (other_tensor.dtype, other_tensor.shape):
        return False
    with file.open("rb") as left, other_file.open("rb") as right:
        return all(a == b for a, b in zip(_pieces(left, tensor), _pieces(right, other_tensor), strict=True))


def _pieces(source: BinaryIO, tensor: TensorEntry) -> Iterator[bytes]:
    source.seek(tensor.begin)
    for start in range(tensor.begin, tensor.end, _PIECE):
        yield source.read(min(_PIECE, tensor.end - start))
