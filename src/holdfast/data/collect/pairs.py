"""One row out of a request and its response, as OpenAI-compatible servers, proxies and clients log them. Reads no file.

Known: chat completions, completions, responses and llama.cpp's /completion; bodies as objects or as text, under `body` or not; streamed
answers as server-sent events or as a list of chunks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from holdfast.base.files import Json
from holdfast.data.collect.record import Record, Unusable
from holdfast.data.judge.layouts import parse_example
from holdfast.data.judge.turns import BadRow

_REQUESTS = ("request", "request_body", "input")
_RESPONSES = ("response", "response_body", "output", "completion", "result")
_PAIRED = ("instruction", "input", "context", "output", "response", "prompt", "completion", "question", "answer")
_FIELDS = (*_PAIRED, "text", "messages", "conversations", "tools", "system")
RATINGS = ("rating", "human_rating", "feedback", "thumbs", "score")
_LINE_END = re.compile(r"\r\n?|\n")  # of an event; other characters that end lines may stand in its JSON
_YES = {True, "true", "yes", "granted", "given", "opt_in", "1"}
_CONSENTS, _REFUSALS = ("consent", "opt_in", "allow_training"), ("opt_out", "do_not_train", "no_training")


def record_of(value: Any, place: str, raw: str, kind: str) -> Record | Unusable:
    """Return the row in one record of a log, or why there is none. `kind`: its category, where the record names none."""
    try:
        if not isinstance(value, dict):
            raise BadRow("not_an_object", "a record must be a JSON object")
        around = [_loaded(value.get("metadata")), value]
        request, response = _part(value, _REQUESTS), _part(value, _RESPONSES)
        if isinstance(request, dict):
            around += [_loaded(request.get("metadata")), request]
        row = _row(value, request, response)
        parse_example(row, "auto")
    except BadRow as bad:
        return Unusable(place, raw, bad.reason, bad.detail)
    known = [each for each in around if isinstance(each, dict)]
    category = next((each["category"] for each in known if isinstance(each.get("category"), str) and each["category"].strip()), kind)
    rating = next((each[name] for each in known for name in RATINGS if each.get(name) is not None), None)
    return Record(place, row, raw, category, consent_of(known), rating)


def _row(value: Json, request: Any, response: Any) -> Json:
    """Return the row's fields alone. Raises BadRow."""
    if response is None or (not isinstance(request, dict) and "messages" not in value):
        try:
            parse_example(value, "auto")  # a row as it is, such as an application pushes into a stream
        except BadRow as bad:
            if response is None:
                asked_for = request is not None or "messages" in value or "prompt" in value
                raise BadRow("no_response", "a request without its response") if asked_for else bad from None
        else:
            return {name: value[name] for name in _FIELDS if name in value}
    asked = request if isinstance(request, dict) else {"input": request} if isinstance(request, str | list) else value
    _refuse_failure(value, response)
    answer = _answer(response)
    model = response.get("model") if isinstance(response, dict) else None
    row: Json
    if isinstance(prompt := asked.get("prompt"), str | list):
        if isinstance(prompt, list):
            if len(prompt) != 1 or not isinstance(prompt[0], str):
                raise BadRow("wrong_type", "the prompt is a list of tokens or of several prompts; one text is needed")
            prompt = prompt[0]
        row = {"prompt": prompt, "completion": answer["content"]}
    else:
        row = {"messages": [*_messages(asked), answer]}
        if asked.get("tools"):
            row["tools"] = asked["tools"]
    return row | ({"model": model} if isinstance(model, str) else {})


def _part(value: Json, names: Iterable[str]) -> Any:
    """Return the request or the response of a record: unpacked from text and from `body`."""
    found = next((value[name] for name in names if value.get(name) is not None), None)
    found = _loaded(found)
    if isinstance(found, dict) and found.get("body") is not None:
        status = found.get("status_code", found.get("status"))
        body = _loaded(found["body"])
        found = body | {"status_code": status} if isinstance(body, dict) and status is not None else body
    return found


def _loaded(value: Any) -> Any:
    if not isinstance(value, str) or value.lstrip()[:1] not in ("{", "["):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _refuse_failure(value: Json, response: Any) -> None:
    """Raise BadRow for a request that was not answered well."""
    for each in (value, response):
        if not isinstance(each, dict):
            continue
        status = each.get("status_code", each.get("status"))
        if isinstance(status, int) and status >= 400:
            raise BadRow("failed_request", f"the server answered with status {status}")
        if each.get("error"):
            raise BadRow("failed_request", f"the server answered with an error: {str(each['error'])[:120]}")


def _answer(response: Any) -> Json:
    """Return the assistant's turn. Raises BadRow."""
    if isinstance(response, str):
        if response.lstrip().startswith("data:"):
            return _joined(_events(response))
        return {"role": "assistant", "content": response}
    if isinstance(response, list):
        if response and all(isinstance(chunk, dict) and "choices" in chunk for chunk in response):
            return _joined(response)
        return _of_responses(response)
    if not isinstance(response, dict):
        raise BadRow("no_response", f"the response is {type(response).__name__}, an object is needed")
    if isinstance(response.get("output"), list):
        if response.get("status") == "incomplete":
            raise BadRow("cut_off_answer", "the answer is incomplete")
        return _of_responses(response["output"])
    if isinstance(response.get("content"), str) and "choices" not in response:
        if response.get("stop_type") == "limit" or response.get("stopped_limit"):
            raise BadRow("cut_off_answer", "the answer ran into its limit of tokens")
        return {"role": response.get("role", "assistant"), "content": response["content"]}
    choices = response.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise BadRow("no_response", "the response has no choices")
    if "delta" in choices[0]:
        return _joined([response])
    return _chosen(choices[0])


def _chosen(choice: Json) -> Json:
    _refuse_unfinished(choice.get("finish_reason"))
    if isinstance(choice.get("text"), str):
        return {"role": "assistant", "content": choice["text"]}
    message = choice.get("message")
    if not isinstance(message, dict):
        raise BadRow("no_response", "the choice has no message")
    kept = {name: message[name] for name in ("role", "content", "tool_calls") if message.get(name) is not None}
    return {"role": "assistant", "content": "", **kept}


def _refuse_unfinished(reason: Any) -> None:
    if reason == "length":
        raise BadRow("cut_off_answer", "the answer ran into its limit of tokens")
    if reason == "content_filter":
        raise BadRow("filtered_answer", "the answer was held back by a content filter")


def _events(text: str) -> Iterator[Json]:
    for line in _LINE_END.split(text):
        found = _loaded(line.removeprefix("data:").strip())
        if line.startswith("data:") and isinstance(found, dict):
            yield found


def _joined(chunks: Iterable[Json]) -> Json:
    """Join a stream of chunks to the turn that they make."""
    text, ended = "", False
    calls: dict[int, Json] = {}
    for chunk in chunks:
        choice = (chunk.get("choices") or [{}])[0]
        if not isinstance(choice, dict) or choice.get("index", 0) != 0:
            continue
        delta = choice.get("delta") or {}
        text += delta.get("content") or choice.get("text") or ""
        for part in delta.get("tool_calls") or ():
            call = calls.setdefault(part.get("index", 0), {"type": "function", "function": {"name": "", "arguments": ""}})
            for name in ("name", "arguments"):
                call["function"][name] += (part.get("function") or {}).get(name) or ""
        if choice.get("finish_reason"):
            _refuse_unfinished(choice["finish_reason"])
            ended = True
    if not ended:
        raise BadRow("cut_off_answer", "the stream ends without a reason to finish")
    turn: Json = {"role": "assistant", "content": text}
    return turn | ({"tool_calls": [calls[number] for number in sorted(calls)]} if calls else {})


def _of_responses(output: list[Any]) -> Json:
    """Return the assistant's turn in the output of the responses endpoint."""
    said = [item for item in output if isinstance(item, dict) and item.get("type", "message") == "message"]
    texts = [part.get("text", "") for item in said for part in item.get("content") or () if isinstance(part, dict)]
    texts += [item["content"] for item in said if isinstance(item.get("content"), str)]
    calls = [
        {"type": "function", "function": {"name": item.get("name"), "arguments": item.get("arguments", "{}")}}
        for item in output
        if isinstance(item, dict) and item.get("type") == "function_call"
    ]
    if not any(texts) and not calls:
        raise BadRow("no_response", "the output holds neither a text nor a call")
    return {"role": "assistant", "content": "".join(texts)} | ({"tool_calls": calls} if calls else {})


def _messages(asked: Json) -> list[Any]:
    """Return the turns before the answer. Raises BadRow."""
    turns = asked.get("messages", asked.get("input"))
    if isinstance(turns, str):
        turns = [{"role": "user", "content": turns}]
    if not isinstance(turns, list) or not turns:
        raise BadRow("no_conversation", "the request has neither messages nor a prompt; only conversations and completions are collected")
    system = asked.get("instructions", asked.get("system"))
    return [{"role": "system", "content": system}, *turns] if isinstance(system, str) and system.strip() else turns


def consent_of(known: list[Json]) -> bool | None:
    """Return the consent of the people concerned, None where none is recorded; a no anywhere is a no."""
    said = [each[name] for each in known for name in _CONSENTS if name in each]
    refused = [each[name] for each in known for name in _REFUSALS if name in each]
    answers = [_yes_or_no(value) for value in said] + [None if (no := _yes_or_no(value)) is None else not no for value in refused]
    if False in answers:
        return False
    return True if True in answers else None


def _yes_or_no(value: Any) -> bool | None:
    """Return True for yes, None for null and False for anything else: an unknown word counts as a no."""
    if value is None:
        return None
    word = value.strip().lower() if isinstance(value, str) else value
    return isinstance(word, bool | int | str) and word in _YES
