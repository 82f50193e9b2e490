"""Compare a GGUF file, as llama.cpp computes with it, with base + adapter; and name the first tensor that is another one."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.base.child import module_command
from holdfast.base.errors import BLOCKED, USAGE, Stop
from holdfast.base.files import Json, read_json, write_json
from holdfast.base.versions import install
from holdfast.export.ask import Questions
from holdfast.export.child import Say, follow
from holdfast.export.gguf.convert import expected_tensors, need_gguf
from holdfast.export.gguf.engine import MOST_TOKENS
from holdfast.export.gguf.kinds import SIXTEEN, budget_of
from holdfast.export.proof import Comparison, Side, compare, log_softmax
from holdfast.export.subject import Subject
from holdfast.machine.system import usable_threads

_LEAST = -60.0  # a log-probability below which llama.cpp's fp32 softmax has nothing left
_WHOLE = 1 << 21  # log-probabilities of whole vocabularies that are asked for in all
_TENSOR = {"exact": 1e-4, "quantised": 0.2}  # NMSE of a tensor from which on it is another one


def need_engine() -> None:
    """Raise Stop(2) without llama.cpp's wheel: what is not compared is not written."""
    if importlib.util.find_spec("xllamacpp") is None:
        raise Stop(
            USAGE,
            "a GGUF export is compared by llama.cpp itself, and the package xllamacpp is not installed",
            install("ship"),
        )


def compare_gguf(
    file: Path, lora: Path | None, kind: str, reference: Side, questions: Questions, work: Path, env: Mapping[str, str], say: Say
) -> Comparison:
    """Compute the figures of one file of type `kind`, with an adapter on it where one is given."""
    whole = _whole(len(questions.places), reference.logits.shape[1])
    found, told = ask_llama_cpp(file, lora, questions, reference.logits.shape[1], whole, work, env, say)
    ours, theirs = _alike(reference.logits, told["ids"], told["logprobs"])
    of_all = _alike(reference.logits[whole], told["whole_ids"], told["whole_logprobs"])
    base = None if reference.base is None else _alike(reference.base[whole], told["whole_ids"], told["whole_logprobs"])[0]
    ends = questions.ends if found["stops"] in (True, None) else tuple(end for end in questions.ends if end != questions.end)
    side = Side(theirs, found["answers"], found["chats"], found["texts"], ends, questions.kept_pad)
    return compare(replace(reference, logits=ours), side, "llama.cpp", budget_of(kind), questions.end, kind in SIXTEEN, (*of_all, base))


def _whole(places: int, vocabulary: int) -> list[int]:
    """Choose the places, spread over all, where every token's log-probability is asked for: llama.cpp writes each as text."""
    return sorted({*np.linspace(0, places - 1, max(1, min(places, _WHOLE // vocabulary))).round().astype(int).tolist()})


def _alike(logits: Any, ids: Any, logprobs: Any) -> tuple[Any, Any]:
    """Return the log-probabilities of both sides at the same tokens."""
    ours = np.take_along_axis(log_softmax(logits.astype(np.float64)), ids, axis=1)
    return np.maximum(ours, _LEAST).astype(np.float32), np.maximum(logprobs, _LEAST)


def ask_llama_cpp(
    file: Path, lora: Path | None, questions: Questions, vocabulary: int, whole: list[int], work: Path, env: Mapping[str, str], say: Say
) -> tuple[Json, Any]:
    """Have a child ask llama.cpp: facts, and arrays of ids and log-probabilities of each place. Raises Stop(1) where it fails."""
    before = [questions.samples.row(row)[0][: at + 1] for row, at in questions.places]
    longest = max(map(len, [*before, *questions.prompts, *questions.chat_ids, *questions.text_ids]))
    request: Json = {"model": str(file), "lora": [str(lora)] if lora else [], "threads": usable_threads()}
    request |= {"context": longest + questions.longest + 8, "prompts": questions.prompts, "longest": questions.longest}
    request |= {"chats": questions.chats, "texts": questions.texts, "end": questions.end, "places": before, "pad": questions.pad}
    request |= {"most": min(vocabulary, MOST_TOKENS), "vocabulary": vocabulary, "whole": whole, "out": str(work / "llama")}
    write_json(work / "llama-request.json", request)
    with (work / "llama.log").open("wb") as log:
        command = module_command("holdfast.export.gguf.engine", work / "llama-request.json")
        places = f"llama.cpp computes at {len(before):,} places and answers {len(questions.prompts):,} prompts"
        code = follow(command, log, env, say, work / "llama-progress.jsonl", places)
    if code:
        lines = [line for line in (work / "llama.log").read_text(errors="replace").splitlines() if line.strip()]
        said = next((line for line in lines if "error" in line.lower()), lines[-1] if lines else "it printed nothing")
        raise Stop(BLOCKED, f"llama.cpp cannot use what was made of it (exit code {code}): {said[:300]}", "nothing was written")
    return read_json(work / "llama.json") or {}, np.load(work / "llama.npz")


def first_tensor(file: Path, kind: str, subject: Subject) -> str | None:
    """Return llama.cpp's name of the first tensor that is not what base + adapter make it; None where each is."""
    gguf = need_gguf()
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(file).tensors}
    most = _TENSOR["exact" if kind in SIXTEEN else "quantised"]
    for expected in expected_tensors(subject):
        found = stored.get(expected.name)
        if found is None:
            return f"{expected.name}, which is missing"
        values = gguf.dequantize(found.data, found.tensor_type).astype(np.float64).reshape(expected.shape)
        wanted = expected.values().astype(np.float64)
        if not ((values - wanted) ** 2).sum() <= most * (wanted**2).sum():
            return str(expected.name)
    return None
