"""Refuse a model that cannot learn next tokens from text: its own code fails, or sees the tokens it is to predict. Moves no weight."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers
from torch import Tensor

from holdfast.base.errors import error_message
from holdfast.trainer.common.oom import is_out_of_memory
from holdfast.trainer.common.refuse import Refusal
from holdfast.trainer.model.layers.dropout import StatelessDropout

CODE = (RuntimeError, ValueError, TypeError, AttributeError, KeyError, IndexError, AssertionError)  # what a model's own code raises
_MOVED = {torch.float32: 1e-4, torch.bfloat16: 1e-2, torch.float16: 2e-3}  # of the largest logit: no other order of additions does that
_LENGTH = 24
_FRESH = "then start afresh with --run DIR"
Ids = npt.NDArray[np.int32]
Logits = Callable[[Ids], Tensor]


def refuse_unfit(model: Any, logits: Logits, stream: Ids, dtype: torch.dtype, narrow: bool) -> None:
    """Raise Refusal where `model` cannot compute a row of text, or where a later token moves earlier logits.

    logits: of one sample by the model as transformers runs it, [tokens, vocabulary]; stream: tokens of the data; dtype: of products;
    narrow: weights are in 16 bits. Raises RuntimeError where it may be about these, or about a card.
    """
    ids = beginning(stream)
    other = ids.copy()
    other[-1] = next(number for number in (*ids, 0, 1) if number != ids[-1])
    model.eval()
    for last in (False, True):  # what a process computes first may be wrong: what does not come again is no fact about the model
        once, again = (of_its_code(model, partial(logits, one), narrow)[:-1] for one in (ids, other))
        moved = float((again - once).abs().max() / once.abs().max().clamp_min(1e-30))
        if math.isnan(moved) or moved <= _MOVED[dtype]:  # logits that are no numbers tell nothing
            break
        if last:
            raise _sees_ahead(model, moved)
    model.train()  # some take other shapes then
    for module in model.modules():
        if isinstance(module, StatelessDropout):  # needs a micro-batch
            module.eval()
    of_its_code(model, partial(logits, ids), narrow)
    model.eval()


@torch.no_grad()
def refuse_odd_writing(model: Any, stream: Ids, dtype: torch.dtype) -> None:
    """Raise Refusal where transformers' `generate` gives a decoder of BERT's kind other inputs than training does.

    It numbers positions from 0, where RoBERTa and its kin number them from behind their padding token: such a model writes otherwise than
    it learned, wherever it is loaded.
    """
    if getattr(model.config, "is_decoder", None) is not True or not hasattr(model, "generate"):
        return
    ids = torch.from_numpy(beginning(stream)).long()[None].to(next(model.parameters()).device)
    asked = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 1, "do_sample": False, "use_cache": False, "num_beams": 1}
    model.eval()
    try:
        read = model(input_ids=ids, use_cache=False).logits[0, -1].float()
        found = model.generate(input_ids=ids, **asked, output_logits=True, return_dict_in_generate=True, pad_token_id=0)
    except CODE as error:
        if is_out_of_memory(error):
            raise
        return
    moved = float((found.logits[0][0].float() - read).abs().max() / read.abs().max().clamp_min(1e-30))
    if moved > _MOVED[dtype]:
        text = f"{type(model).__name__} of transformers {transformers.__version__} writes with other positions than it is trained with:"
        text += f" its generate moves the logits of the next token by {moved:.1e} of the largest"
        raise Refusal("launch_misconfigured", text, f"give a causal language model, {_FRESH}")


def beginning(stream: Ids) -> Ids:
    """Return a short sample of the data's tokens: the first ones, repeated where there are too few."""
    return np.resize(stream[:_LENGTH], _LENGTH)


@torch.no_grad()
def of_its_code(model: Any, work: Callable[[], Tensor], narrow: bool) -> Tensor:
    """Return what `work` gives. Raises Refusal where the model's own code fails twice; other errors as they are."""
    try:
        try:
            return work()
        except CODE as error:
            _raise_others(model, error, narrow)
            return work()  # what does not come again is no fact about the model
    except CODE as error:
        _raise_others(model, error, narrow)
        raise _unable(model, error) from error


def _raise_others(model: Any, error: Exception, narrow: bool) -> None:
    """Raise an error that may say nothing of the model itself: one of memory, of a card, or of a number format."""
    beside = narrow or next(model.parameters()).device.type != "cpu"
    if is_out_of_memory(error) or (beside and isinstance(error, RuntimeError)):
        raise error


def _unable(model: Any, error: Exception) -> Refusal:
    own = f"{type(model).__name__} of transformers {transformers.__version__}"
    when = " while it trains" if model.training else ""
    text = f"{own} cannot compute a row of {_LENGTH} tokens of text alone{when}: {error_message(error)}"
    return Refusal("launch_misconfigured", text, f"give a language model that takes rows of text of any length, {_FRESH}")


def _sees_ahead(model: Any, moved: float) -> Refusal:
    text = f"{type(model).__name__} sees the tokens that it is to predict: another last token moves the logits before it by"
    decodes = getattr(model.config.get_text_config(), "is_decoder", None)
    tables = [one for name, one in model.named_modules() if name.endswith("position_embeddings")]
    behind = any(getattr(one, "padding_idx", None) is not None for one in tables)  # as a decoder it is refused, too: refuse_odd_writing
    hint = "set is_decoder to true in the model's config.json" if decodes is False and not behind else "give a causal language model"
    return Refusal("launch_misconfigured", f"{text} {moved:.1e} of the largest, so it would learn to copy", f"{hint}, {_FRESH}")
