"""`python weights_on_card.py MODEL PACKED EXPERTS` with the simulated card and bitsandbytes on it: what reading weights takes of the card.

MODEL: a folder in 16 bits; PACKED: the same as bitsandbytes saves it; EXPERTS: another, with experts in
stacks. Run by test_weights.py. Prints {claim: bytes} as JSON.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Callable
from typing import Any

os.environ["TORCHDYNAMO_DISABLE"] = "1"
import simulated_card as card  # before torch
import torch

from holdfast.config.config import Config
from holdfast.config.settings import Settings
from holdfast.config.train import Train
from holdfast.trainer.model.frozen import quantised
from holdfast.trainer.model.load import load_base
from holdfast.trainer.model.place import ModelPlace, at_first_that_fits, places
from holdfast.trainer.model.plain import load_plain
from holdfast.trainer.optim.eight_bit import AdamW8Bit

CARD, CPU = torch.device("cuda:0"), torch.device("cpu")
SETTINGS = {"steps": 1, "samples": 1, "threads": 1, "micro_batch_tokens": 64, "deterministic": False}
IDS = torch.arange(3, 40)[None]


def at_most(work: Callable[[], Any]) -> tuple[Any, int, int]:
    """(what it gives, bytes of the card that it holds, the most there were)."""
    gc.collect()
    before = card.now()
    card.reset_peak()
    given = work()
    gc.collect()
    return given, card.now() - before, card.peak() - before


def loaded(folder: str, device: torch.device, **settings: Any) -> Any:
    config = Config.model_validate({"model": folder, "data": {"files": "x"}})
    return load_base(config, Settings.model_validate(SETTINGS | settings), device)[0].eval()


def logits(model: Any) -> torch.Tensor:
    with torch.inference_mode():
        found: torch.Tensor = model(input_ids=IDS.to(next(model.parameters()).device)).logits.float().cpu()
    return found


def starts(folder: str, kind: str, dtype: str, told: dict[str, int], double: bool = False, name: str = "") -> None:
    """A start quantises layer by layer, a restart reads what was kept; both to the bits of the CPU's, which has a cache of its own."""
    how: dict[str, Any] = {"frozen": kind, "dtype": dtype, "double_quant": double}
    read: list[tuple[int, ...]] = []
    own = quantised._own
    quantised._own = lambda weight, *more: (read.append(tuple(weight.shape)), own(weight, *more))[1]
    first, held, most = at_most(lambda: loaded(folder, CARD, **how))
    name = name or f"{kind}-{dtype}"
    told[f"{name} held"], told[f"{name} start"] = held, most
    digest, said = first.held.sha256, logits(first)
    assert not first.held.fault and all(one.device == CARD for one in first.parameters())
    del first
    shapes = len(set(read))
    read.clear()
    again, held, most = at_most(lambda: loaded(folder, CARD, **how))
    told[f"{name} restart"] = most
    assert len(read) == len(set(read)) == shapes, "of the weights in 16 bits a restart reads one of each shape"
    assert again.held.sha256 == digest and torch.equal(logits(again), said)
    del again
    os.environ["HOLDFAST_CACHE"] += "-cpu"
    there = loaded(folder, CPU, **how)
    assert there.held.sha256 == digest
    near = 1e-4 if dtype == "fp32" else 0.05
    assert (logits(there) - said).abs().max() < near * said.abs().max(), (logits(there) - said).abs().max() / said.abs().max()
    os.environ["HOLDFAST_CACHE"] = os.environ["HOLDFAST_CACHE"].removesuffix("-cpu")
    quantised._own = own


def widened_later(folder: str, told: dict[str, int]) -> None:
    """Files of 16 bits whose products are in fp32: its constants are widened beside a model without weights."""
    model, told["fp32 held"], told["fp32 start"] = at_most(lambda: loaded(folder, CARD, dtype="fp32"))
    assert next(model.parameters()).dtype == torch.bfloat16


def packed(folder: str, told: dict[str, int]) -> None:
    """A model that comes in 4 bits is never widened, to train and to measure."""
    model, told["packed held"], told["packed start"] = at_most(lambda: loaded(folder, CARD, frozen="nf4", dtype="bf16"))
    assert not model.held.fault
    del model
    model, told["packed measured, held"], told["packed measured"] = at_most(lambda: load_plain(folder, None, CARD))
    wide = load_plain(folder, None, CPU)
    assert (logits(model) - logits(wide)).abs().max() < 1e-4 * logits(wide).abs().max()


def measured(folder: str, told: dict[str, int]) -> None:
    """A model that is too large for the card is measured with its layers in main memory, then on the CPU; the user is told of both."""
    whole, held, told["measured"] = at_most(lambda: load_plain(folder, None, CARD))
    wanted = logits(whole)
    del whole
    gc.collect()
    for share, devices, words in ((0.5, 1, ["its layers stay in main memory"]), (0.01, 0, ["its layers stay", "it computes on the CPU"])):
        card.limit(int(card.now() + share * held))
        left, said = places(), list[str]()

        def asked(place: ModelPlace) -> torch.Tensor:
            return logits(load_plain(folder, None, *place))

        found, _, most = at_most(lambda left=left, asked=asked, said=said: at_first_that_fits(left, asked, said.append))
        card.limit(card.TOTAL)
        assert (found - wanted).abs().max() < 1e-4 * wanted.abs().max()
        assert len(said) == len(words) and all(part in line for part, line in zip(words, said, strict=True)), said
        assert (left[0].device.type == "cuda") == bool(devices)
        told[f"measured with {share} of it"] = most


def measured_as_held(folder: str, told: dict[str, int]) -> None:
    """What its run held in 4 bits is measured in those where more do not fit, from the bits that were kept."""
    own = quantised._own
    form = {"kind": "nf4", "double": False, "dtype": "bf16"}
    run = loaded(folder, CARD, frozen="nf4", dtype="fp32")  # the same bits: both were rounded to bf16, as the files have them
    wanted = logits(run)
    del run
    whole, held, _ = at_most(lambda: load_plain(folder, None, CARD))
    del whole
    gc.collect()
    card.limit(int(card.now() + 0.5 * held))
    left, said, read = places(form, quick=True), list[str](), list[int]()
    quantised._own = lambda weight, *more: (read.append(weight.numel()), own(weight, *more))[1]
    found, _, most = at_most(lambda: at_first_that_fits(left, lambda place: logits(load_plain(folder, None, *place)), said.append))
    quantised._own = own
    assert left[0].held and "in nf4, as its run held the base" in said[0], said
    assert torch.equal(found, wanted), (found - wanted).abs().max()
    told["measured as held"], told["measured as held, 16-bit matrices read"] = most, len(read)
    assert [bool(place.held) for place in places(form)] == [False, False, True, False], "layers of the files are nearer to what is shipped"
    card.limit(card.TOTAL)


def pages() -> None:
    """Moments in paged memory, which the driver does not clear, give the bits of those on the card, over several stretches."""
    ends = []
    for name in ("adamw8bit", "paged"):
        train = Train.model_validate({"optimizer": name})
        weights = {"a": torch.linspace(-1, 1, 9000, device=CARD), "b": torch.ones(500, device=CARD)}
        AdamW8Bit.STRETCH = 4096
        optimizer = AdamW8Bit(weights, train)
        assert all(getattr(one, "is_paged", False) == (name == "paged") for one in optimizer.moments)
        for _ in range(3):
            optimizer.gradient.copy_(optimizer.weights * 0.1 + 0.01)
            optimizer.step(1e-2)
        ends.append(torch.cat([optimizer.weights.cpu(), *(one.cpu().float() for one in optimizer.state().values() if one.ndim)]))
    assert torch.equal(*ends)


if __name__ == "__main__":
    torch.set_num_threads(1)
    pages()
    told: dict[str, int] = {}
    for kind, dtype in (("nf4", "bf16"), ("nf4", "fp32"), ("int8", "bf16"), ("fp4", "fp16")):
        starts(sys.argv[1], kind, dtype, told, double=kind == "fp4")
    starts(sys.argv[3], "nf4", "fp32", told, name="experts")  # in bf16 rounding chooses other experts here and there
    widened_later(sys.argv[1], told)
    packed(sys.argv[2], told)
    measured(sys.argv[1], told)
    measured_as_held(sys.argv[1], told)
    print(json.dumps(told))
