"""Requests and responses in the log of a llama.cpp server (llama-server -v, or --log-verbosity 5 and up).

A request's body and then its response's are logged by log_server_request (tools/server/server-http.cpp). Streamed answers are empty
there; their chunks stand before, behind `data stream, to_send:`. A line does not say whose it is, so what could be another's is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from holdfast.base.files import Json
from holdfast.data.collect.pairs import record_of
from holdfast.data.collect.record import Record, Unusable

KIND = "llama-server"
_BODY = re.compile(r"log_server_r\w*:\s+(?:done )?(request|response):\s{1,2}(?!(?:GET|POST|PUT|DELETE|OPTIONS|HEAD|PATCH) /)(.*)$")
_STREAMED = re.compile(r"data stream, to_send:\s*data: (.*)$")
_NEW_LINE = re.compile(
    r"^(?:\[\d+\] )?(?:[\d.]+ [A-Z] )?(?:srv|slot|que|main|llama\w*|ggml\w*|common\w*|load\w*|print\w*|init|add_text|build|system\w*):?\s"
)
_LONGEST_BODY = 1 << 24


def is_log(head: str) -> bool:
    """True if `head`, the first lines of a file, is of such a log."""
    return bool(
        re.search(r"\blog_server_r|\"function\":\s*\"log_server_request\"|^(?:srv|slot) +\w+: |main: server is listening", head, re.M)
    )


def records(lines: Iterable[tuple[int, str]], file: str) -> Iterator[Record | Unusable]:
    """Yield a record for each conversation or completion that was asked for. `lines`: numbers and texts of the log's lines."""
    open_ones: list[tuple[int, Json]] = []
    streams: dict[str, list[Json]] = {}
    for number, kind, value, raw in _bodies(lines):
        if kind == "pair":
            yield record_of(value, f"{file}:{number}", raw, KIND)
        elif kind == "chunk":
            streams.setdefault(str(value.get("id", "")), []).append(value)
        elif kind == "request":
            open_ones.append((number, {"request": value}) if isinstance(value, dict) else (number, {}))
        elif open_ones:
            at, pair = open_ones.pop(0)
            if not {"messages", "prompt", "input"} & set(pair.get("request", ())):
                continue  # a health check, an embedding, a list of models
            place = f"{file}:{at}"
            if open_ones:  # written by several threads at once
                yield Unusable(place, json.dumps(pair), "mixed_up", "other requests stand between this one and its response")
                continue
            if value is None and pair["request"].get("stream"):
                ended = [chunks for chunks in streams.values() if _ended(chunks)]
                if len(ended) > 1:
                    detail = f"{len(ended)} streamed answers ended before it, and the log does not say which is its own"
                    yield Unusable(place, json.dumps(pair), "mixed_up", detail)
                    streams.clear()
                    continue
                value = ended[0] if ended else None
                streams = {name: chunks for name, chunks in streams.items() if chunks is not value}
            yield record_of(pair | {"response": value}, place, json.dumps(pair | {"response": value}), KIND)
    for at, pair in open_ones:
        if pair:
            yield Unusable(f"{file}:{at}", json.dumps(pair), "no_response", "the log ends before its response")


def _ended(chunks: list[Json]) -> bool:
    last = (chunks[-1].get("choices") or [{}])[0]
    return bool(isinstance(last, dict) and last.get("finish_reason")) or chunks[-1].get("stop") is True


def _bodies(lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str, Any, str]]:
    """Yield line, kind (request, response, chunk or pair), value (None for an empty body) and text of each logged body, in order."""
    begun: tuple[int, str, str] | None = None
    for number, line in lines:
        if begun and not _NEW_LINE.match(line) and not line.startswith('{"') and len(begun[2]) < _LONGEST_BODY:
            begun = (begun[0], begun[1], f"{begun[2]}\n{line}")  # a body of several lines
            continue
        if begun:
            yield _body(*begun)
            begun = None
        if found := _BODY.search(line):
            begun = (number, found[1], found[2])
        elif found := _STREAMED.search(line):
            value = _loaded(found[1])
            if isinstance(value, dict):
                yield number, "chunk", value, line
        elif line.startswith("{") and "log_server_request" in line:
            value = _loaded(line)
            if isinstance(value, dict) and value.get("request") and value.get("response"):
                yield number, "pair", value, line
    if begun:
        yield _body(*begun)


def _body(number: int, kind: str, text: str) -> tuple[int, str, Any, str]:
    return number, kind, _loaded(text) if text.strip() else None, text


def _loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
