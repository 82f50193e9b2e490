"""What the host waits for in a step, beside the gate: nothing, it is said. And what a step launches."""

from __future__ import annotations

import warnings

from stages import training
from stages.common import Place


def run(place: Place) -> None:
    import torch

    stand = training.build(place, "qwen0.5b", 8192, dropout=0.05)
    place.answer("layout", stand.settings.varlen, "; ".join(stand.notes))
    stand.step(1)
    if not torch.cuda.is_available():
        place.answer("waits", None, "no card")
        place.answer("places", None, "no card")
        return
    strict = torch.cuda.set_sync_debug_mode

    def announce(moment: str, *_: object) -> float:
        if moment == "gate":
            strict("default")
        return 1.0

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        strict("warn")
        try:
            stand.step(2, announce)
        finally:
            strict("default")
    waits = [one for one in caught if "called a synchronizing" in str(one.message)]  # others say that the mode is young
    places = sorted({f"{'/'.join(one.filename.split('/')[-2:])}:{one.lineno}" for one in waits})
    place.answer("places", len(waits), "; ".join(places)[:1200])
    strict("error")
    try:
        stand.step(3, announce)
        place.answer("waits", 0)
    except RuntimeError as error:
        place.answer("waits", 1, str(error)[:300])
    finally:
        strict("default")
