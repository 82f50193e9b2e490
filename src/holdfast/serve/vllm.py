"""A vLLM server that somebody else runs: adapters are loaded into it by name, and requests passed on to it.

https://docs.vllm.ai/en/latest/features/lora/: it loads adapters while it runs where VLLM_ALLOW_RUNTIME_LORA_UPDATING is set.
"""

from __future__ import annotations

import http.client
import os
import secrets
import shlex
import threading
import urllib.error
import urllib.request
from collections.abc import Generator, Mapping
from typing import Any

import orjson

from holdfast.base.errors import BLOCKED, USAGE, Stop
from holdfast.base.files import Json
from holdfast.base_model.server_keys import VLLM_RANKS
from holdfast.data.tokens.codec import Codec
from holdfast.export.card import largest_rank, vllm_options
from holdfast.export.endings import end_tokens
from holdfast.export.subject import Subject
from holdfast.serve.child import PATIENCE_S
from holdfast.serve.engines import AnswerRequest
from holdfast.serve.experts import MERGED_NAME, expert_model

_HEALTH_S, _LOAD_S = 5, 300


class Vllm:
    """A vLLM server at an address; `VLLM_API_KEY` is its key, where it has one. Its adapters lie on a disk that both see."""

    name = "vllm"
    at_once = 256  # answers; it batches them

    def __init__(self, url: str | None, subject: Subject, codec: Codec, experts: Mapping[str, Subject]) -> None:
        self._adapters = {"tuned": subject, **experts}
        self._start = start_command(subject, self._adapters)
        if url is None:
            raise Stop(USAGE, "holdfast starts no vLLM; --engine-url says where one listens, such as http://127.0.0.1:8000", self._start)
        self._url, self._key = url.rstrip("/").removesuffix("/v1"), os.environ.get("VLLM_API_KEY")
        self.left_out = ""  # why it has no merged expert
        self._ends, self._lock = list(end_tokens(codec, subject.facts)), threading.Lock()
        try:
            with self._ask("/v1/models", None, _LOAD_S) as answer:
                listed = orjson.loads(answer.read())["data"]
            base = next(one["id"] for one in listed if not one.get("parent"))
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError, StopIteration) as error:
            raise Stop(BLOCKED, f"no vLLM answers at {self._url}: {error}", self._start) from None
        mark = secrets.token_hex(4)  # of this version in this process: another one may have the same adapter
        self._named = {"base": base} | {name: f"holdfast-{mark}-{at}" for at, name in enumerate(self._adapters)}
        self._load()

    def _load(self) -> None:
        """Load the adapters. Raises Stop where vLLM refuses one, but for the merged expert: its rank is more than it may have been told."""
        for name, one in self._adapters.items():
            try:
                with self._ask("/v1/load_lora_adapter", {"lora_name": self._named[name], "lora_path": str(one.tuned.resolve())}, _LOAD_S):
                    pass
            except urllib.error.HTTPError as error:
                said = _said(error)
                if "already" in said:
                    continue
                if name == expert_model(MERGED_NAME):
                    self.left_out = f"the vLLM at {self._url} does not load {name}: {said}; one that does: {self._start}"
                    continue
                if error.code in (404, 405):
                    raise Stop(USAGE, f"the vLLM at {self._url} loads no adapters while it runs", self._start) from None
                raise Stop(BLOCKED, f"the vLLM at {self._url} does not load {one.tuned}: {said}", self._start) from None
            except (OSError, http.client.HTTPException) as error:
                raise Stop(BLOCKED, f"no vLLM answers at {self._url}: {error}", self._start) from None

    def stream(self, wanted: AnswerRequest) -> Generator[tuple[str, int, str | None], None, None]:
        greedy = not wanted.temperature or not wanted.top_p
        body: Json = {"model": self._named[wanted.model], "prompt": wanted.ids, "max_tokens": wanted.longest, "seed": wanted.seed}
        body |= {"temperature": 0.0 if greedy else wanted.temperature, "top_p": 1.0 if greedy else wanted.top_p, "stream": True}
        body |= {"stop_token_ids": self._ends, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
        told = 0
        try:
            with self._answering(wanted.model, body) as answer:
                for line in answer:
                    if not line.startswith(b"data: {"):
                        continue
                    part = orjson.loads(line[6:])
                    if "error" in part:
                        raise RuntimeError(f"vLLM: {part['error']}")
                    made = int((part.get("usage") or {}).get("completion_tokens", told + 1))
                    for choice in part.get("choices") or ():
                        new, told, why = max(0, made - told), max(made, told), choice.get("finish_reason")
                        ended = why == "stop" and new > 0  # by a token that is no text
                        yield choice.get("text") or "", new - ended, ("stop" if why == "stop" else "length") if why else None
                        if why:
                            return
        except (http.client.HTTPException, ValueError) as error:
            raise RuntimeError(f"the model's answer broke off: {error!r}") from None
        raise RuntimeError("the model's answer broke off")

    def _answering(self, model: str, body: Json) -> Any:
        """Return the open answer; a server that was started again meanwhile is given its adapters again. Raises RuntimeError."""
        try:
            try:
                return self._ask("/v1/completions", body, PATIENCE_S)
            except urllib.error.HTTPError as error:
                if error.code != 404 or model == "base":
                    raise
                with self._lock:
                    self._load()
                return self._ask("/v1/completions", body, PATIENCE_S)
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"vLLM answers {error.code}: {_said(error)}") from None
        except Stop as stop:
            raise RuntimeError(stop.message) from None

    def _ask(self, path: str, body: Json | None, patience_s: float) -> Any:
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {self._key}"} if self._key else {})
        request = urllib.request.Request(self._url + path, None if body is None else orjson.dumps(body), headers)
        return urllib.request.urlopen(request, timeout=patience_s)

    @property
    def trouble(self) -> str:
        try:
            with self._ask("/health", None, _HEALTH_S):
                return ""
        except (OSError, http.client.HTTPException) as error:
            return f"the vLLM at {self._url} does not answer: {error}"

    def close(self) -> None:
        for name in self._adapters:
            try:
                with self._ask("/v1/unload_lora_adapter", {"lora_name": self._named[name]}, _HEALTH_S):
                    pass
            except (OSError, http.client.HTTPException):
                return  # it has gone, and its adapters with it


def start_command(subject: Subject, adapters: Mapping[str, Subject]) -> str:
    """Return the command that starts a vLLM which takes two versions of these adapters. Raises Stop(2) for too high a rank."""
    configs = [one.config for one in adapters.values()]
    if (rank := largest_rank(configs)) > VLLM_RANKS[-1]:
        raise Stop(USAGE, f"a rank of {rank} is more than vLLM's {VLLM_RANKS[-1]}", "--engine llama.cpp or transformers, or merge it")
    base = shlex.quote(str(subject.facts.folder))
    command = f"VLLM_ALLOW_RUNTIME_LORA_UPDATING=True vllm serve {base} --enable-lora {vllm_options(configs, subject.facts.config)}"
    return command + f" --max-loras {len(adapters)} --max-cpu-loras {2 * len(adapters)}"


def _said(error: urllib.error.HTTPError) -> str:
    text = error.read(2000).decode("utf-8", "replace")
    try:
        found = orjson.loads(text)
        return str((found.get("error") or found).get("message") or text)[:300]
    except (ValueError, AttributeError):
        return text[:300] or str(error.reason)
