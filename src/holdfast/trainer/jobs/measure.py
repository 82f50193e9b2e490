"""Measure models on given rows, prompts and conversations: losses, logits, hidden states, greedy answers. Judges nothing.

The request (JSON) names `rows` (a file of arrays: ids, learned, starts), `threads`, `out` (a folder) and `parts`. A part is a model
folder, an adapter or null, a name, and what is asked of it: `losses`, `alone` (how many rows once more, each by itself), `logits`
(a list of [row, position]), `prompts`, `chats`, `texts`. `settings` and `tokenizer`: the folders whose generation config and
tokenizer are used, where these are not the model's. `held`: the form in which their run held the base (place.py), where fewer bits will do;
all parts are measured in one form. What is found goes to `out/NAME.*`; what the user can mend to `out/error.json`.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import AutoTokenizer, GenerationConfig

from holdfast.base.child import PROGRESS
from holdfast.base.errors import BLOCKED, Stop, error_message
from holdfast.base.file_errors import file_error_in, of_the_file
from holdfast.base.files import Json, append_line, read_json, write_json
from holdfast.trainer.common.device import release, take_threads
from holdfast.trainer.common.oom import is_out_of_memory
from holdfast.trainer.jobs.losses import by_length, row_sums
from holdfast.trainer.model.greedy import greedy
from holdfast.trainer.model.place import ModelPlace, at_first_that_fits, in_one_form, note, places
from holdfast.trainer.model.plain import load_plain
from holdfast.trainer.model.unfit import CODE

_NO_MEMORY = "give it a machine with more main memory: the card and the CPU were tried"
_LOGITS = 1 << 26  # numbers at a time: 256 MiB
_MOST_TOKENS = 1 << 12  # of a batch
Floats = npt.NDArray[np.float64]


def measure(path: Path) -> int:
    """Do what the request at `path` asks for, part by part."""
    request: Json = read_json(path) or {}
    out = Path(request["out"])
    take_threads(request["threads"])
    left = places(request.get("held"))
    rows = np.load(request["rows"])
    parts: list[Json] = request["parts"]
    for part in in_one_form(parts, left):
        try:
            at_first_that_fits(left, partial(_measure, part, rows, out), partial(note, out, part["name"]))
        except Stop as stop:
            write_json(out / "error.json", {"part": part["name"], "message": stop.message, "hint": stop.hint})
            return stop.code
        except Exception as error:
            if is_out_of_memory(error):
                write_json(
                    out / "error.json", {"part": part["name"], "message": f"memory ran out: {error_message(error)}", "hint": _NO_MEMORY}
                )
                return BLOCKED
            if isinstance(error, (OSError, *CODE)):  # of another's files
                told = file_error_in(error_message(error))
                what = {"message": told.message, "hint": told.hint} if told else {"message": error_message(error), "hint": ""}
                write_json(out / "error.json", {"part": part["name"], **what})
                return BLOCKED
            raise
        append_line(out / "done.jsonl", {"part": part["name"]})
    return 0


class _ProgressFile:
    """Writes how far it is, at most once a second, and when something begins."""

    def __init__(self, out: Path, part: str) -> None:
        self.out, self.part = out / PROGRESS, part

    def begin(self, what: str, total: int = 0) -> None:
        self.what, self.total, self.done, self.at = what, total, 0, 0.0
        self.more(0)

    def more(self, new: int) -> None:
        self.done += new
        if (now := time.time()) - self.at >= 1:
            self.at = now
            append_line(self.out, {"part": self.part, "what": self.what, "done": self.done, "total": self.total, "time": now})


def _measure(part: Json, rows: Any, out: Path, place: ModelPlace) -> None:
    name, device = part["name"], place.device
    answer: Json = {"held": place.held.weights.kind if place.held else None}
    if part.get("chats") is not None or part.get("texts") is not None:
        answer |= _tokenise(part)
    told = _ProgressFile(out, name)
    told.begin("loading the model")
    model = load_plain(part["model"], part["adapter"], *place)
    if part.get("losses"):
        lengths = np.diff(rows["starts"])
        batches = [*by_length(lengths, max(1, min(_MOST_TOKENS, _LOGITS // int(model.get_input_embeddings().weight.shape[0]))))]
        told.begin("loss of rows", len(lengths) + (part.get("alone") or 0))
        np.save(out / f"{name}.losses.npy", _losses(model, rows, batches, part["pad"], device, told))
        if part.get("alone"):
            one_by_one = [np.array([row]) for row in range(part["alone"])]
            answer["alone"] = _losses(model, rows, one_by_one, part["pad"], device, told)[: part["alone"]].tolist()
    if part.get("logits"):
        told.begin("logits of rows", len({row for row, _ in part["logits"]}))
        logits, hidden = _logits(model, rows, part["logits"], device, told)
        np.save(out / f"{name}.logits.npy", logits)
        np.save(out / f"{name}.hidden.npy", hidden)
    if part.get("prompts"):
        began = time.perf_counter()
        told.begin("answers", len(part["prompts"]))
        answer["answers"] = _answers(model, part, device, told)
        answer["seconds"] = round(time.perf_counter() - began, 3)
    write_json(out / f"{name}.json", answer)
    del model
    release()


def _tokenise(part: Json) -> Json:
    """Tokenise conversations and texts by the tokenizer and template that lie with the model; `unloadable`: why transformers cannot."""
    folder = part.get("tokenizer") or part["model"]
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ImportError, *CODE) as error:
        return {"chats": [], "texts": [], "unloadable": error_message(of_the_file(error, folder))}
    chats = [
        tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=True)["input_ids"]
        for messages in part.get("chats") or []
    ]
    texts = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in part.get("texts") or []]
    return {"chats": [[*map(int, ids)] for ids in chats], "texts": texts}


def _losses(model: Any, rows: Any, batches: list[Any], pad: int, device: torch.device, told: _ProgressFile) -> Floats:
    """Compute learned tokens of each row and the sum of their losses in nats. Rows are padded on the right, where none attends."""
    ids, learned, starts = rows["ids"], rows["learned"], rows["starts"]
    lengths = np.diff(starts)
    found = np.zeros((len(lengths), 2))
    for batch in batches:
        width = int(lengths[batch].max())
        given, wanted = np.full((len(batch), width), pad, np.int64), np.zeros((len(batch), width), np.bool_)
        for at, row in enumerate(batch):
            span = slice(int(starts[row]), int(starts[row + 1]))
            given[at, : lengths[row]], wanted[at, : lengths[row]] = ids[span], learned[span]
        wanted[:, 0] = False  # the first token of a row is never predicted
        sums, counts = row_sums(model, torch.from_numpy(given).to(device), torch.from_numpy(wanted).to(device))
        found[batch] = np.stack([counts, sums], axis=1)
        told.more(len(batch))
    return found


def _logits(model: Any, rows: Any, wanted: list[list[int]], device: torch.device, told: _ProgressFile) -> tuple[Any, Any]:
    """Compute logits [places, vocabulary] and states [layers + 1, places, width] at (row, position), each row alone, unpadded.

    Narrower states, of a model that has several streams, are filled up with zeros.
    """
    logits, hidden = [], []
    for row in dict.fromkeys(row for row, _ in wanted):
        at = [position for one, position in wanted if one == row]
        ids = rows["ids"][int(rows["starts"][row]) : int(rows["starts"][row]) + max(at) + 1].astype(np.int64)
        with torch.inference_mode():
            found = model(input_ids=torch.from_numpy(ids)[None].to(device), use_cache=False, output_hidden_states=True)
        logits.append(found.logits[0, -len(ids) :][at].float().cpu().numpy())  # behind those of virtual tokens
        states = [by_token(state)[-len(ids) :][at].float().cpu().numpy() for state in found.hidden_states]
        widest = max(state.shape[1] for state in states)
        hidden.append(np.stack([np.pad(state, ((0, 0), (0, widest - state.shape[1]))) for state in states]))
        told.more(1)
    return np.concatenate(logits), np.concatenate(hidden, axis=1)


def by_token(state: torch.Tensor) -> torch.Tensor:
    """Arrange one row's states as [tokens, width]; parallel streams, after or before the token axis, are put side by side."""
    streams_first = state.dim() == 4 and state.shape[1] == 1
    return (state.movedim(0, 2) if streams_first else state)[0].flatten(1)


def _answers(model: Any, part: Json, device: torch.device, told: _ProgressFile) -> list[Json]:
    """Generate greedy answers: by our own loop where `ends` is given, else by transformers with the folder's own settings."""
    if part.get("ends") is not None:
        found = greedy(model, part["prompts"], part["pad"], part["ends"], part["longest"], told.more)
        return [answer._asdict() for answer in found]
    settings = GenerationConfig.from_pretrained(part.get("settings") or part["model"], local_files_only=True)
    ends = settings.eos_token_id if isinstance(settings.eos_token_id, list) else [settings.eos_token_id]
    answers = []
    for prompt in part["prompts"]:
        written = _generate(model, prompt, settings, part["longest"], device)
        ended = bool(written) and written[-1] in ends
        answers.append({"ids": written[:-1] if ended else written, "ended": ended, "ends": ends, "pad": settings.pad_token_id})
        told.more(1)
    return answers


def _generate(model: Any, prompt: list[int], settings: Any, longest: int, device: torch.device) -> list[int]:
    """Generate after a prompt by transformers; without its cache where that does not fit the model."""
    ids = torch.tensor([prompt], device=device)
    asked = {"attention_mask": torch.ones_like(ids), "generation_config": settings, "do_sample": False, "max_new_tokens": longest}
    asked |= {"max_length": None, "forced_eos_token_id": None}  # where we cut an answer short, the model did not end it
    with torch.inference_mode():
        try:
            found: torch.Tensor = model.generate(input_ids=ids, **asked)
        except CODE as error:
            if is_out_of_memory(error):
                raise
            found = model.generate(input_ids=ids, **asked, use_cache=False)
    written: list[int] = found[0, len(prompt) :].tolist()
    return written
