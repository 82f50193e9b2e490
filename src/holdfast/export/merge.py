"""Write base + adapter as a model folder of its own: one tensor at a time, onto weights read afresh from the base model's files."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from holdfast.base.errors import BLOCKED, Stop
from holdfast.base_model.folder import COUNTS
from holdfast.base_model.forms import write_config
from holdfast.data.tokens.codec import Codec
from holdfast.export.child import ask
from holdfast.export.delta import HEAD, Delta, UnplacedPart, WeightChange, read_delta
from holdfast.export.endings import end_tokens, one_or_all, pad_token, write_companions
from holdfast.export.subject import Subject
from holdfast.export.tensors import FLOATS, SHARD_BYTES, PendingTensor, StoredTensor, held_tensors, narrow, stretches, write_shards

_EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "embed_in.weight", "word_embeddings.weight")


def tied_embedding(subject: Subject) -> str | None:
    """Return the base's name of the embedding that is also the output layer; None where there are two."""
    shapes = subject.model.shapes
    if HEAD in shapes or "embed_out.weight" in shapes:
        return None
    return next((name for name in shapes if name.endswith(_EMBEDDINGS)), None)


def merged_tensors(
    subject: Subject, adapted: bool = True, wide: bool = False, work: Path | None = None
) -> tuple[list[PendingTensor], Delta]:
    """List every tensor of the merged model in the order of the base's files, still to be computed, and what changes them.

    adapted: False for the base as it is. wide: what the adapter changes stays in fp32, for who rounds it to
    another type. A model that was trained as a whole keeps the types it was trained in: all of its weights
    rounded to bf16 are beyond what an export may differ by. work: an empty place, where PEFT may merge what is
    not placed by names, for as long as tensors come; None: that is raised, as UnplacedPart.
    """
    held = subject.model_tensors if adapted or subject.whole is None else held_tensors(subject.facts.folder)
    _refuse_quantised(subject, held)
    tied = tied_embedding(subject)
    with_adapter = adapted and subject.whole is None
    try:
        delta = read_delta(subject.weights, subject.config, subject.facts.shapes, tied) if with_adapter else Delta()
    except UnplacedPart as unplaced:
        if work is None:
            raise
        delta = _delta_by_peft(subject, tied, work, unplaced)
    coming = [_coming(name, one, delta.changes.get(name), wide) for name, one in held.items()]
    if delta.untied and tied is not None:
        coming.append(_coming(HEAD, held[tied], delta.changes.get(HEAD), wide))
    return coming, delta


def merged_bytes(subject: Subject, wide: bool = False) -> int:
    """Return the bytes of the merged model, and of what PEFT writes on the way where it merges. Raises Stop(1) where it cannot."""
    try:
        return sum(tensor.bytes for tensor in merged_tensors(subject, wide=wide)[0])
    except UnplacedPart:
        return sum((8 if wide else 6) * math.prod(held.stored.shape) for held in subject.model_tensors.values())


def _refuse_quantised(subject: Subject, held: dict[str, StoredTensor]) -> None:
    found = {one.stored.dtype for one in held.values() if len(one.stored.shape) > 1} - {*FLOATS, COUNTS}
    if subject.facts.config.get("quantization_config") or found:
        kind = (subject.facts.config.get("quantization_config") or {}).get("quant_method") or ", ".join(sorted(found))
        text = f"{subject.facts.folder} is stored quantised ({kind}): merging into few bits loses most of what was learned"
        raise Stop(BLOCKED, text, "give the same model in 16 bits with --base DIR")


def _coming(name: str, held: StoredTensor, change: WeightChange | None, wide: bool) -> PendingTensor:
    dtype = "F32" if wide and change is not None else held.stored.dtype
    size = held.bytes if dtype == held.stored.dtype else 4 * math.prod(held.stored.shape)
    return PendingTensor(name, dtype, held.stored.shape, size, partial(_tensor_bytes, name, held, change, dtype))


def _tensor_bytes(name: str, held: StoredTensor, change: WeightChange | None, dtype: str) -> Iterator[npt.NDArray[np.uint8]]:
    """Yield the bytes of a tensor as it is to be, a stretch of rows at a time."""
    for first, last in stretches(held.stored.shape):
        if change is None:
            yield held.raw(first, last) if held.stored.shape else held.raw()
            continue
        values = change.applied(held.rows(first, last), first, last)
        try:
            if not np.isfinite(values).all():
                raise OverflowError("it is NaN or Inf")
            yield narrow(values, dtype)
        except OverflowError as error:
            raise Stop(BLOCKED, f"{name} cannot be merged: {error}", "export it --to adapter") from None


def write_merged(subject: Subject, codec: Codec, folder: Path, most: int = SHARD_BYTES, wide: bool = False) -> list[tuple[Path, str]]:
    """Write the merged model to an empty folder; return its weight files with their hashes. wide: what was changed in fp32."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=".merging-") as work:
        tensors, delta = merged_tensors(subject, wide=wide, work=Path(work))
        written = write_shards(folder, tensors, most)
    config = dict(subject.model.config)
    if delta.untied or (config.get("tie_word_embeddings") is True and _apart({tensor.name for tensor in tensors}, delta)):
        config["tie_word_embeddings"] = False
    if wide:
        config = {key: value for key, value in config.items() if key != "torch_dtype"} | {"dtype": "float32"}
    config |= {"eos_token_id": one_or_all(end_tokens(codec, subject.facts)), "pad_token_id": pad_token(codec, subject.facts)}
    write_config(folder / "config.json", config, subject.model.folder / "config.json")
    write_companions(codec, subject.facts, folder)
    return written


def _apart(names: set[str], delta: Delta) -> bool:
    """Return whether a base that keeps its one table twice, as embedding and as output layer, has two tables after the change."""
    tables = [change for name, change in delta.changes.items() if name.endswith(_EMBEDDINGS) and change.tokens is None]
    return HEAD in names and (HEAD in delta.changes or bool(tables))


def _delta_by_peft(subject: Subject, tied: str | None, work: Path, unplaced: UnplacedPart) -> Delta:
    """Merge by PEFT; return the base's tensors that differ afterwards, whole. They stay in `work` until they are written.

    PEFT holds the model in fp32 in main memory.

    Raises `unplaced` where that does not work either: the adapter is of another model.
    """
    try:
        ask("merge", work, {"model": str(subject.facts.folder), "adapter": str(subject.tuned)}, os.environ)
    except Stop as stop:
        raise unplaced from stop
    base, merged = subject.model_tensors, held_tensors(work / "merged")
    same = {name: name in base and base[name].stored.shape == held.stored.shape for name, held in merged.items()}
    if not all(same.values()) or set(base) - set(merged) - {tied}:
        raise unplaced
    changes = {name: WeightChange(whole=held) for name, held in merged.items() if not _alike(base[name], held)}
    if tied in changes:
        raise unplaced
    return Delta(changes)


def _alike(base: StoredTensor, merged: StoredTensor) -> bool:
    if base.stored.dtype == COUNTS == merged.stored.dtype:
        return np.array_equal(base.raw(), merged.raw())
    return all(np.array_equal(base.rows(first, last), merged.rows(first, last)) for first, last in stretches(base.stored.shape))
