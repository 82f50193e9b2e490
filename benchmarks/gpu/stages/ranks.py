"""Two ranks over NCCL or RCCL, where there are two cards of one kind: the bits of one rank, and a rank that is killed."""

from __future__ import annotations

import torch

from stages.common import Place, events


def run(place: Place) -> None:
    cards = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if cards < 2 or not torch.distributed.is_nccl_available():  # the simulated card has two and no NCCL
        for question in ("finished", "same-bits", "killed", "named", "cut-bits", "cut-bytes"):
            place.answer(question, None, f"{cards} cards, NCCL: {torch.distributed.is_nccl_available()}; two and one are needed")
        return
    train = {"reduction_parts": 8, "deterministic": True, "steps": 4, "threads": 1}
    rows = place.rows("qwen0.5b", 64)
    one, two = (
        place.train(name, place.config("qwen0.5b", rows, train=train | {"ranks": ranks})) for name, ranks in (("one", 1), ("two", 2))
    )
    place.answer("finished", [one["status"], two["status"]], str(two.get("reason") or ""))
    sha = one.get("artifact_sha256")
    place.answer("same-bits", sha is not None and sha == two.get("artifact_sha256"))
    kill = {"name": "kill", "when": {"attempt": 1, "step": 3, "phase": "backward", "rank": 1}, "effect": "kill"}
    killed = place.train("killed", place.config("qwen0.5b", rows, train=train | {"ranks": 2}), [kill])
    place.answer("killed", sha is not None and sha == killed.get("artifact_sha256"))
    endings = [str(event["ending"]) for event in events(killed, "attempt_ended")]
    whole, cut = (
        place.train(f"fsdp{ranks}", place.config("qwen0.5b", rows, train=train | {"ranks": ranks, "fsdp": True})) for ranks in (1, 2)
    )
    place.answer("cut-bits", whole.get("artifact_sha256") is not None and whole.get("artifact_sha256") == cut.get("artifact_sha256"))
    peaks = [one.get("peak_bytes") or 0 for one in (whole, cut)]
    place.answer("cut-bytes", round(peaks[1] / peaks[0], 3) if all(peaks) else None, f"{peaks[1]:,} of {peaks[0]:,}")
    place.answer("named", bool(endings) and "rank 1" in endings[0], "; ".join(endings))
