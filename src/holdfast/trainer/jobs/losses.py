"""The mean loss of every row's answer under a base model, for `data check --second-look`. Writes numbers; judges nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from holdfast.base.errors import BLOCKED, Stop
from holdfast.base.files import Json, read_json, write_json
from holdfast.base_model.folder import read_model
from holdfast.config.config import Config
from holdfast.config.settings import Settings
from holdfast.data.judge.rules import Rules
from holdfast.data.tokens.codec import load_codec
from holdfast.data.tokens.shard import Shard, blocks, tokenise
from holdfast.trainer.common.device import prepare_torch
from holdfast.trainer.common.refuse import Refusal
from holdfast.trainer.model.load import load_base

_LOGITS = 1 << 26  # numbers at a time: 256 MiB
_MOST_TOKENS = 1 << 12  # of a batch


def losses(path: Path) -> int:
    """Do what the request at `path` asks for; what the user can mend is written to `error`, as message and hint."""
    request: Json = read_json(path) or {}
    try:
        found = [*_measure_rows(request)]
    except Stop as stop:
        write_json(Path(request["error"]), {"message": stop.message, "hint": stop.hint})
        return stop.code
    except Refusal as refusal:
        write_json(Path(request["error"]), {"message": str(refusal), "hint": refusal.hint})
        return BLOCKED
    columns = np.array(found, np.float64).reshape(-1, 4)
    np.save(request["out"], columns)
    return 0


def _measure_rows(request: Json) -> Iterator[tuple[int, int, int, float]]:
    """Yield (number of the file, line, learned tokens, mean loss) of each row. Raises Stop(1)."""
    settings = Settings(threads=request["threads"], deterministic=False, steps=1, samples=1, micro_batch_tokens=_MOST_TOKENS)
    device = prepare_torch(settings)
    facts = read_model(request["model"])
    codec = load_codec(facts.folder)
    model: Any = load_base(Config(model=request["model"], data={"files": request["files"]}), settings, device)[0].eval()
    known = model.get_input_embeddings().num_embeddings
    rules = Rules(**request["rules"] | {"fields": tuple(map(tuple, request["rules"]["fields"])), "too_long": "cut"})
    for number, file in enumerate(request["files"]):
        for block in blocks(file):
            shard = tokenise(block, rules, codec)
            if shard.verdicts.largest >= known:
                line = block.first_line + int(shard.lines[np.searchsorted(np.cumsum(shard.lengths), int(shard.ids.argmax()), "right")])
                message = f"{file}:{line} has token {shard.verdicts.largest}, the model {facts.folder} knows {known}"
                raise Stop(BLOCKED, message, "the tokenizer in this folder is not the model's")
            for line, learned, loss in _of_shard(model, shard, codec.pad, known, device):
                yield number, block.first_line + line, learned, loss


def _of_shard(model: Any, shard: Shard, pad: int, vocabulary: int, device: torch.device) -> Iterator[tuple[int, int, float]]:
    """Yield (line in the block, learned tokens, mean loss) of each row, in order."""
    starts = np.concatenate([[0], np.cumsum(shard.lengths)])
    budget = max(1, min(_MOST_TOKENS, _LOGITS // vocabulary))
    sums, counts = np.zeros(len(shard.lengths)), np.zeros(len(shard.lengths), np.int64)
    for rows in by_length(shard.lengths, budget):
        width = int(shard.lengths[rows].max())
        ids, learned = np.full((len(rows), width), pad, np.int64), np.zeros((len(rows), width), np.bool_)
        for at, row in enumerate(rows):
            length = int(shard.lengths[row])
            ids[at, :length] = shard.ids[starts[row] : starts[row] + length]
            learned[at, :length] = shard.learned[starts[row] : starts[row] + length]
        learned[:, 0] = False  # the first token of a row is never predicted
        sums[rows], counts[rows] = row_sums(model, torch.from_numpy(ids).to(device), torch.from_numpy(learned).to(device))
    for line, count, total in zip(shard.lines.tolist(), counts.tolist(), sums.tolist(), strict=True):
        yield line, count, total / count


def row_sums(model: Any, ids: torch.Tensor, learned: torch.Tensor) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Sum of the losses of the learned tokens of each row, and how many there are. Rows are padded on the right, which none sees."""
    with torch.inference_mode():
        logits = model(input_ids=ids, use_cache=False).logits[:, -ids.shape[1] : -1]  # those of virtual tokens stand before them
        each = torch.nn.functional.cross_entropy(logits.transpose(1, 2).float(), ids[:, 1:], reduction="none")
    sums = (each.double() * learned[:, 1:]).sum(dim=1)
    return sums.cpu().numpy(), learned.sum(dim=1).cpu().numpy()


def by_length(lengths: npt.NDArray[np.int32], budget: int) -> Iterator[npt.NDArray[np.int64]]:
    """Yield indices of rows of about one length, rows times longest within `budget`; a longer one alone."""
    order = np.argsort(lengths, kind="stable")
    begin = 0
    for end in range(1, len(order) + 1):
        if end == len(order) or (end + 1 - begin) * int(lengths[order[end]]) > budget:
            yield order[begin:end]
            begin = end
