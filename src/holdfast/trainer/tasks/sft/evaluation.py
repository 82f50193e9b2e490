"""Load the finished artifact the way anybody would, with plain transformers and PEFT, and compare it with the base on held-out rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from peft import PeftModel
from torch import Tensor

from holdfast.core.config.config import OWN_WEIGHTS, Config
from holdfast.core.config.settings import Settings
from holdfast.core.facts.model_folder import read_model
from holdfast.core.files import Json
from holdfast.core.run.base_model import refuse_changed
from holdfast.core.run.folder import RunFolder
from holdfast.rows.judge.layouts import Example, Message
from holdfast.rows.tokens.chat_template import pieces
from holdfast.rows.tokens.codec import Codec, load_codec
from holdfast.rows.tokens.token_set import TokenSet, load_tokens, split
from holdfast.trainer.device import prepare_torch, release
from holdfast.trainer.exhausted import OutOfMemory, tag_out_of_memory
from holdfast.trainer.model.load import load_base
from holdfast.trainer.model.lora import use_lean_lora
from holdfast.trainer.task import Asked
from holdfast.trainer.tasks.sft.answer import answers, ignore
from holdfast.trainer.tasks.sft.packing import grouped_batches
from holdfast.trainer.tasks.sft.text_model import LabelLoss

_SAMPLES_KEPT = 12
_ROWS_AT_ONCE = 512  # whose micro-batches lie on the device together
_SLOT = "HOLDFAST-SLOT"


class Sides:
    """The tuned model as anybody would load it, and its base: one model where there is an adapter, else loaded when it is asked for.

    Raises Stop(1) where the base is not that of the run.
    """

    def __init__(self, run: RunFolder, config: Config, settings: Settings) -> None:
        refuse_changed(run, config.model)
        self.config, self.settings = config, settings
        self.device = prepare_torch(settings)
        self.is_adapter = config.adapter.type not in OWN_WEIGHTS
        self._base: Any = None
        self.tuned: Any
        if not self.is_adapter:
            made = config.model_copy(update={"model": str(run.artifact)})
            self.tuned = load_base(made, settings, self.device)[0].eval()
            return
        base, _ = load_base(config, settings, self.device)
        self.tuned = PeftModel.from_pretrained(base, str(run.adapter)).eval()
        if settings.dtype == "bf16":
            use_lean_lora(self.tuned, mixed=True)  # what a product rounds away is no part of the adapter's worth

    @contextmanager
    def base(self) -> Iterator[Any]:
        """Inside, the model it began with."""
        if self.is_adapter:
            with self.tuned.disable_adapter():
                yield self.tuned
            return
        if self._base is None:
            self._base = load_base(self.config, self.settings, self.device)[0].eval()
        yield self._base

    def give_up_tuned(self) -> None:
        """The tuned model is not asked for again: where the base is another one, it takes its place."""
        if not self.is_adapter:
            self.tuned = None
            release()


def compared(run: RunFolder, config: Config, settings: Settings, asked: Asked) -> Json:
    """Held-out loss per label token, exact matches and sample answers of the base and the tuned model."""
    sides = Sides(run, config, settings)
    tokens = load_tokens(run.data_file)
    held_out = split(tokens, config.data, config.train.seed)[1].tolist()
    result: Json = {"loads": True, "rows": len(held_out), "eval_base": None, "eval_tuned": None, "exact_match": None, "samples": []}
    if not held_out:
        return result
    codec = load_codec(read_model(config.model).folder)
    parts = [_first_turn(tokens, row) for row in held_out[: config.evaluate.generate]]
    prompts = [prompt for prompt, _ in parts]

    def of(model: Any) -> tuple[float, list[str]]:
        loss = mean_loss(model, tokens, held_out, settings, sides.device, asked)
        return loss, _answers(model, prompts, codec, config, asked) if prompts else []

    result["eval_tuned"], tuned = of(sides.tuned)
    sides.give_up_tuned()
    with sides.base() as model:
        result["eval_base"], base = of(model)
    return result | (_compare_answers(parts, tuned, base, codec) if prompts else {})


def mean_loss(model: Any, tokens: TokenSet, rows: list[int], settings: Settings, device: torch.device, asked: Asked = ignore) -> float:
    """Cross-entropy per label token over `rows`, in nats; `asked` is told how many rows each batch had."""
    total, labels, budget = 0.0, 0, settings.micro_batch_tokens
    inner, prefix = _inner(model)
    loss = LabelLoss(inner, settings.own_head, prefix)
    waiting = [rows[start : start + _ROWS_AT_ONCE] for start in range(0, len(rows), _ROWS_AT_ONCE)]
    while waiting:
        left = set(now := waiting.pop(0))
        try:
            with torch.inference_mode():
                for batch in grouped_batches(tokens, now, budget, device):
                    with tag_out_of_memory(batch):
                        total += float(loss(batch)[0].double())
                    labels += batch.labels
                    left -= set(batch.numbers)
                    asked(len(batch.numbers))
        except OutOfMemory as full:
            assert full.batch is not None
            if len(full.batch.numbers) == 1:
                raise
            budget = full.batch.half
            full.with_traceback(None).__context__ = None
        if left:
            release()
            waiting.insert(0, [row for row in now if row in left])
    return total / labels


def _inner(model: Any) -> tuple[Any, Tensor | None]:
    """The causal model within, and what an adapter puts before each sample: embeddings [tokens, size]."""
    if not isinstance(model, PeftModel):
        return model, None
    learns_prompt = model.active_peft_config.is_prompt_learning and not getattr(model, "_adapters_disabled", False)
    return model.get_base_model(), model.get_prompt(batch_size=1)[0] if learns_prompt else None


def _compare_answers(parts: list[tuple[list[int], list[int]]], tuned: list[str], base: list[str], codec: Codec) -> Json:
    wanted = [codec.tokenizer.decode(answer, skip_special_tokens=True).strip() for _, answer in parts]
    questions = [_question(prompt, codec) for prompt, _ in parts]
    kept = [
        {"prompt": q, "wanted": w, "base": b, "tuned": t}
        for q, w, b, t in list(zip(questions, wanted, base, tuned, strict=True))[:_SAMPLES_KEPT]
    ]
    matches = {name: sum(a == w for a, w in zip(given, wanted, strict=True)) for name, given in (("base", base), ("tuned", tuned))}
    return {"exact_match": {"asked": len(parts)} | matches, "samples": kept}


def _question(prompt: list[int], codec: Codec) -> str:
    """The user's words in a prompt: what stands between the template's own words, or all of it where there are several turns."""
    text = codec.tokenizer.decode(prompt, skip_special_tokens=False)
    frame = pieces(Example(messages=(Message("user", _SLOT), Message("assistant", "x"))), codec.template)[0][0]
    before, _, after = frame.partition(_SLOT)
    return text.removeprefix(before).removesuffix(after).strip()


def _first_turn(tokens: TokenSet, row: int) -> tuple[list[int], list[int]]:
    """(prompt, answer) of a row's first learned turn, as token numbers; a row of plain text is prompted with its first token."""
    ids, learned = tokens.row(row)
    first = max(1, int(learned.argmax()))
    rest = learned[first:]
    end = first + (int(rest.argmin()) if not rest.all() else len(rest))
    return ids[:first].tolist(), ids[first:end].tolist()


def _answers(model: Any, prompts: list[list[int]], codec: Codec, config: Config, asked: Asked) -> list[str]:
    return answers(model, prompts, codec.tokenizer, codec.pad, codec.eos, config.evaluate.max_new_tokens, asked)
