"""Answer for `holdfast serve`: one request a line on standard input, one token a line on standard output with the request's number."""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import torch

from holdfast.base.errors import error_message
from holdfast.base.files import Json, read_json
from holdfast.trainer.common.device import take_threads
from holdfast.trainer.model.greedy import begin_alone
from holdfast.trainer.model.place import at_first_that_fits, places
from holdfast.trainer.model.plain import load_plain


def serve(path: Path) -> int:
    """Load base and adapter, say so, and answer until the input ends."""
    request: Json = read_json(path) or {}
    take_threads(request["threads"])
    left, told = places(request.get("held"), quick=True), list[str]()
    others = {f"expert{number}": folder for number, folder in enumerate(request["experts"].values())}
    model = at_first_that_fits(left, lambda place: load_plain(request["model"], request["adapter"], *place, others), told.append)
    names = dict(zip(request["experts"], others, strict=True))  # PEFT's own have no dot
    device = left[0].device
    _say({"ready": True, "told": told})
    waiting: queue.SimpleQueue[Json | None] = queue.SimpleQueue()
    cancelled: set[int] = set()
    threading.Thread(target=_listen, args=(waiting, cancelled), daemon=True).start()
    while (wanted := waiting.get()) is not None:
        number = wanted["number"]
        if names and wanted["model"] != "base":
            model.set_adapter(names.get(wanted["model"], "default"))
        try:
            for part in _tokens(model, wanted, request["ends"], device, cancelled):
                _say({"of": number, **part})
        except RuntimeError as error:  # what does not fit into memory, say; the next may
            _say({"of": number, "error": error_message(error)})
    return 0


def _listen(waiting: queue.SimpleQueue[Json | None], cancelled: set[int]) -> None:
    """Take requests, and the numbers of those that nobody waits for any more, until the input ends."""
    for line in sys.stdin.buffer:
        told = orjson.loads(line)
        if "cancel" in told:
            cancelled.add(told["cancel"])
        else:
            waiting.put(told)
    waiting.put(None)


def _say(part: Json) -> None:
    sys.stdout.buffer.write(orjson.dumps(part, option=orjson.OPT_APPEND_NEWLINE))
    sys.stdout.buffer.flush()


@torch.inference_mode()
def _tokens(model: Any, wanted: Json, ends: list[int], device: torch.device, cancelled: set[int]) -> Iterator[Json]:
    """Yield one token at a time, then why there are no more."""
    draws = torch.Generator().manual_seed(wanted["seed"])
    tuned, ids = wanted["model"] != "base", list(wanted["ids"])

    def whole() -> tuple[Any, dict[str, torch.Tensor]]:
        return begin_alone(model, ids) if tuned else (model, {"input_ids": torch.tensor([ids], device=device)})

    with contextlib.nullcontext() if tuned else model.disable_adapter():
        inner, shown = whole()
        for _ in range(wanted["longest"]):
            if wanted["number"] in cancelled:
                yield {"end": "cancelled"}
                return
            out = inner(**shown, use_cache=True, logits_to_keep=1)
            cache, number = getattr(out, "past_key_values", None), _choose_token(out.logits[0, -1].float().cpu(), wanted, draws)
            if number in ends:
                yield {"end": "stop"}
                return
            yield {"id": number}
            ids.append(number)
            if cache is None:  # a model that keeps nothing, or under another name, reads all of it again
                inner, shown = whole()
            else:
                shown = {"input_ids": torch.tensor([[number]], device=device), "past_key_values": cache}
    yield {"end": "length"}


def _choose_token(logits: torch.Tensor, wanted: Json, draws: torch.Generator) -> int:
    """Choose the likeliest token at temperature 0, else draw one from the likeliest that make up top_p."""
    if wanted["temperature"] <= 0:
        return int(logits.argmax())
    shares, order = torch.softmax(logits / wanted["temperature"], 0).sort(descending=True)
    kept = shares * ((shares.cumsum(0) - shares) < wanted["top_p"])
    kept[0] = shares[0]  # with top_p 0, too
    return int(order[torch.multinomial(kept, 1, generator=draws)])
