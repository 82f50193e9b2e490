"""Have llama.cpp compute with a GGUF file: log-probabilities, greedy answers, its own rendering and tokens of conversations.

A process of its own (`python -m holdfast.export.gguf.engine REQUEST`), because a native library that fails takes its process along.
It uses the package xllamacpp, which is llama.cpp's server as a library; nothing listens but on a port of loopback that the
kernel chooses, behind a key drawn for this one process.
"""

from __future__ import annotations

import secrets
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import orjson

from holdfast.base.files import Json, read_json, write_json

Ask: TypeAlias = Callable[[str, Json], Json]
MOST_TOKENS = 8192  # of a vocabulary whose log-probabilities are asked for at every place, the likeliest
_PATIENCE_S = 600


def main(path: Path) -> int:
    """Do what the request asks for; results beside `out`: .npz of places, .json of the rest."""
    request: Json = read_json(path) or {}
    server, ask = _serve(request)
    found: Json = {
        "answers": [_answer(ask, prompt, request["longest"]) for prompt in request["prompts"]],
        "chats": [_chat(ask, messages) for messages in request["chats"]],
        "texts": [_tokens(ask, text) for text in request["texts"]],
        "stops": _stops_at(ask, request["end"], request["prompts"][0]) if request["end"] is not None else None,
    }
    np.savez(request["out"] + ".npz", **_places(ask, request))
    write_json(Path(request["out"] + ".json"), found)
    del server
    return 0


def _serve(request: Json) -> tuple[Any, Ask]:
    import xllamacpp

    key = secrets.token_urlsafe(24)
    params = xllamacpp.CommonParams()
    params.model.path = request["model"]
    params.n_ctx, params.n_parallel, params.warmup = request["context"], 1, False
    params.n_gpu_layers, params.verbosity = request.get("gpu_layers", 0), 0
    for cpu in (params.cpuparams, params.cpuparams_batch):
        cpu.n_threads, cpu.poll = request["threads"], 0  # who waits does not spin
    params.hostnames, params.port, params.api_keys = ["127.0.0.1"], 0, [key]
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.lora_adapters = [xllamacpp.CommonAdapterLoraInfo(file, 1.0) for file in request["lora"]]
    server = xllamacpp.Server(params)
    return server, _asker(server.listening_address, key)


def _complete(ask: Ask, prompt: list[int], longest: int, **more: Any) -> Json:
    given: Json = {"prompt": prompt, "n_predict": longest, "temperature": 0.0, "samplers": ["top_k"], "top_k": 1}
    return ask("/completion", given | {"cache_prompt": True, "return_tokens": True} | more)


def _answer(ask: Ask, prompt: list[int], longest: int) -> Json:
    found = _complete(ask, prompt, longest)
    ended, ids = found["stop_type"] == "eos", [int(number) for number in found["tokens"]]
    return {"ids": ids[:-1] if ended else ids, "ended": ended}


def _stops_at(ask: Ask, end: int, prompt: list[int]) -> bool:
    """Return whether an answer ends when token `end` comes, which is made the only choice."""
    found = _complete(ask, prompt, 4, logit_bias=[[end, 1e4]])
    return bool(found["stop_type"] == "eos" and found["tokens_predicted"] == 1)


def _places(ask: Ask, request: Json) -> dict[str, Any]:
    """Return ids and log-probabilities of the likeliest `most` tokens at each place, given what is before it: [places, most].

    At the places numbered in `whole` those of every token, too: [whole, vocabulary]. They are the model's own, before any bias. What is
    chosen is the pad token, because llama.cpp tells nothing of a token that is a part of a character.
    """
    most, whole = request["most"], set(request["whole"])
    found: dict[str, list[Any]] = {"ids": [], "logprobs": [], "whole_ids": [], "whole_logprobs": []}
    for at, before in enumerate(request["places"]):
        asked = request["vocabulary"] if at in whole else most
        answer = _complete(ask, before, 1, n_probs=asked, logit_bias=[[request["pad"], 1e4]])
        entry = answer["completion_probabilities"][0]["top_logprobs"]
        ids, logprobs = np.array([one["id"] for one in entry], np.int64), np.array([one["logprob"] for one in entry], np.float32)
        found["ids"].append(ids[:most])
        found["logprobs"].append(logprobs[:most])
        if at in whole:
            found["whole_ids"].append(ids)
            found["whole_logprobs"].append(logprobs)
    return {name: np.array(values) for name, values in found.items()}


def _asker(url: str, key: str) -> Ask:
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}

    def ask(path: str, body: Json) -> Json:
        request = urllib.request.Request(url + path, orjson.dumps(body), headers)
        with urllib.request.urlopen(request, timeout=_PATIENCE_S) as answer:
            found: Json = orjson.loads(answer.read())
        return found

    return ask


def _tokens(ask: Ask, text: str, opening: bool = False) -> list[int]:
    """Tokenise a text by the engine. opening: with the token that the file says its texts begin with."""
    found = ask("/tokenize", {"content": text, "add_special": opening, "parse_special": True})["tokens"]
    return [*map(int, found)]


def _chat(ask: Ask, messages: list[Json]) -> list[int]:
    """Return the token ids from which a server answers `messages`."""
    text = ask("/apply-template", {"messages": messages})["prompt"]
    return _tokens(ask, text, opening=True)  # a server takes the first token out of the rendered text where the file adds it


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
