"""Load the finished artifact the way anybody would, with plain transformers and PEFT, and compare it with the base on held-out rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from peft import PeftModel, set_peft_model_state_dict
from safetensors.torch import load_file
from torch import Tensor

from holdfast.base.files import Json
from holdfast.base_model.folder import read_model
from holdfast.config.config import Config
from holdfast.config.settings import Settings
from holdfast.data.judge.turns import Example, Message
from holdfast.data.templates.chat_template import pieces
from holdfast.data.token_set.token_set import TokenSet, load_tokens, sequences, split
from holdfast.data.tokens.codec import Codec
from holdfast.data.tokens.given_template import codec_of
from holdfast.data.tokens.prompt import asked_and_answered
from holdfast.export.endings import end_tokens
from holdfast.run.adapter_folder import IS_REFERENCE
from holdfast.run.artifact import ARTIFACT
from holdfast.run.base_model import refuse_changed
from holdfast.run.folder import RunFolder
from holdfast.trainer.common.decoder import decoder_layers, table_of_positions
from holdfast.trainer.common.device import prepare_torch, release
from holdfast.trainer.common.oom import tag_out_of_memory
from holdfast.trainer.model.frozen.offloaded_layers import OffloadedLayers, everywhere, streams
from holdfast.trainer.model.layers.lora import use_lean_lora
from holdfast.trainer.model.layers.mixed import HALF_TYPES
from holdfast.trainer.model.load import load_base
from holdfast.trainer.model.portions import in_portions
from holdfast.trainer.model.trained.saved import with_adapter
from holdfast.trainer.parts.threads import products_in
from holdfast.trainer.protocol.task import HELD_OUT_AT_ONCE, Asked
from holdfast.trainer.tasks.text.answer import answers, ignore
from holdfast.trainer.tasks.text.compared import mixed, sums
from holdfast.trainer.tasks.text.divergence import kl_to_reference
from holdfast.trainer.tasks.text.objective import Objective, SequenceScores, objective_of
from holdfast.trainer.tasks.text.packing import TextBatch, grouped_batches
from holdfast.trainer.tasks.text.rewarded import rewarded
from holdfast.trainer.tasks.text.text_model import LabelLoss

_SAMPLES_KEPT = 12
_SLOT = "HOLDFAST-SLOT"


class Sides:
    """The tuned model as anybody would load it, and its base: one model where there is an adapter, else loaded when it is asked for.

    Raises Stop(1) where the base is not that of the run.
    """

    def __init__(self, run: RunFolder, config: Config, settings: Settings) -> None:
        refuse_changed(run, config.model)
        self.run, self.config, self.settings = run, config, settings
        self.device = prepare_torch(settings)
        self.is_adapter = not config.adapter.kind.own_weights
        self._base: Any = None
        self.from_start = False  # whether preferences were held against the adapter that the run began from
        self.tuned: Any
        if not self.is_adapter:
            made = config.model_copy(update={"model": str(run.artifact)})
            self.tuned = self._whole(made)
            return
        away = streams(config, self.device)
        base, _ = load_base(config, settings, self.device, mapped=away)
        self.tuned = with_adapter(base, run.adapter)
        layers = OffloadedLayers(self.tuned, base, self.device) if away else None
        if half := HALF_TYPES.get(settings.dtype):
            # what a product rounds away is no part of the adapter's worth
            use_lean_lora(self.tuned, half, near=layers.near if layers else everywhere)
        if layers:
            layers.settle()
        begun = run.plan().start_adapter
        self.from_start = bool(begun and begun.get(IS_REFERENCE))

    def _whole(self, config: Config) -> Any:
        """Load a model without an adapter."""
        away = streams(config, self.device)
        model = load_base(config, self.settings, self.device, mapped=away)[0].eval()
        if away:
            for layer in decoder_layers(model, "train.offload: layers")[1]:
                layer.requires_grad_(False)  # and not the output layer, whose loss would be taken another way
            OffloadedLayers(model, model, self.device).settle()
        return model

    @contextmanager
    def base(self) -> Iterator[Any]:
        """Provide the base model within the context."""
        if self.is_adapter:
            with self.tuned.disable_adapter():
                yield self.tuned
            return
        if self._base is None:
            self._base = self._whole(self.config)
        yield self._base

    @contextmanager
    def before(self) -> Iterator[Any]:
        """Provide the model before training within the context: the base, or the adapter that preferences were held against."""
        if not self.from_start:
            with self.base() as model:
                yield model
            return
        try:
            set_peft_model_state_dict(self.tuned, load_file(self.run.start_adapter))
            yield self.tuned
        finally:
            set_peft_model_state_dict(self.tuned, load_file(self.run.adapter / ARTIFACT))

    @contextmanager
    def reference(self, losses: LabelLoss) -> Iterator[None]:
        """Compute with the model before training, through `losses` of the tuned one, within the context."""
        kept = losses.prefix
        with self.before() as model:
            losses.prefix = _inner(model)[1]
            try:
                yield
            finally:
                losses.prefix = kept

    def give_up_tuned(self) -> None:
        """Release the tuned model, which is not needed again, where the base is a model of its own that takes its place."""
        if not self.is_adapter:
            self.tuned = None
            release()


def compared(run: RunFolder, config: Config, settings: Settings, asked: Asked) -> Json:
    """Compare base and tuned model on held-out rows: loss per label token, exact matches, sample answers; pairs by a scalar head."""
    if config.train.objective_kind.scores:
        return rewarded(run, config, settings, asked)
    sides = Sides(run, config, settings)
    tokens = load_tokens(run.data_file)
    held_out = split(tokens, config.data, config.train.seed)[1].tolist()
    result: Json = {"loads": True, "rows": len(held_out), "eval_base": None, "eval_tuned": None, "exact_match": None, "samples": []}
    if not held_out:
        return result
    facts = read_model(config.model)
    codec = codec_of(config, facts.folder)
    ends = end_tokens(codec, facts)
    marked = config.train.objective_kind.rows == "marks"  # what is marked bad is no answer to be met
    good = (row for row in held_out if not marked or sequences(*tokens.row(row))[0][1])
    parts = [_first_turn(tokens, row, codec, ends) for row in islice(good, config.evaluate.generate)]
    prompts = [prompt for prompt, _ in parts]

    objective = objective_of(config)

    def of(model: Any) -> tuple[Any, list[str]]:
        how = mean_loss if objective is None else answer_logps
        return how(model, tokens, held_out, settings, sides.device, asked), _answers(
            model, prompts, codec, ends, config, asked
        ) if prompts else []

    tuned, said = of(sides.tuned)
    apart, drift = None, torch.zeros(())
    if objective is not None and sides.is_adapter:
        apart = _divergence(sides, tokens, held_out, lambda _: asked(0))  # no row of those that were announced
        drift = _drift(sides, tokens, held_out, lambda _: asked(0)) if config.train.objective_kind.drift else drift
    sides.give_up_tuned()
    with sides.before() as model:
        base, said_before = of(model)
    result |= (
        {"eval_base": base, "eval_tuned": tuned}
        if objective is None
        else _held_against(objective, tuned, base, torch.from_numpy(tokens.weights_of(held_out)), drift, apart)
    )
    result |= {"reference": "start adapter"} if sides.from_start else {}
    return result | (_compare_answers(parts, said, said_before, codec, config.evaluate.max_new_tokens) if prompts else {})


def mean_loss(model: Any, tokens: TokenSet, rows: list[int], settings: Settings, device: torch.device, asked: Asked = ignore) -> float:
    """Average the cross-entropy per label token over `rows`, each with its row weight, in nats. asked: told each batch's rows."""
    total, divisor = 0.0, 0.0
    for batch, losses in _label_losses(model, tokens, rows, settings, device, asked):
        weighted = losses if batch.label_weights is None else losses * batch.label_weights
        total += float(weighted.sum(dtype=torch.float64))
        divisor += batch.divisor
    return total / divisor


def answer_logps(model: Any, tokens: TokenSet, rows: list[int], settings: Settings, device: torch.device, asked: Asked) -> list[Answers]:
    """Compute for each row the log-probabilities of its one or two answers, their numbers of tokens, and whether they are good."""
    found: dict[int, Answers] = {}
    for batch, losses in _label_losses(model, tokens, rows, settings, device, asked):
        each = len(batch.counts) // len(batch.numbers)
        values = sums(losses, batch).double().tolist()
        for at, number in enumerate(batch.numbers):
            span = slice(at * each, at * each + each)
            found[number] = Answers(values[span], batch.counts[span], batch.good[span])
    return [found[row] for row in rows]


class Answers(NamedTuple):
    """A row's sequences: log-probabilities, tokens, whether each is a good one."""

    logps: list[float]
    counts: tuple[int, ...]
    good: tuple[bool, ...]


def _divergence(sides: Sides, tokens: TokenSet, rows: list[int], asked: Asked) -> float | None:
    inner, prefix = _inner(sides.tuned)
    losses = LabelLoss(inner, sides.settings.own_head, prefix)
    return kl_to_reference(partial(sides.reference, losses), losses, tokens, rows, sides.settings, sides.device, asked)


def _drift(sides: Sides, tokens: TokenSet, rows: list[int], asked: Asked) -> Tensor:
    """Compute of each row the drift that an evaluation on the way gives it: that of the rows which are judged together."""
    found, longest = [], table_of_positions(sides.tuned, _inner(sides.tuned)[1])
    for start in range(0, len(rows), HELD_OUT_AT_ONCE):
        some = mixed([sequences(*tokens.row(row))[0][0] for row in rows[start : start + HELD_OUT_AT_ONCE]], longest)
        if not some:
            found.append(torch.zeros(1))
            continue
        ids, learned = (np.concatenate(part) for part in zip(*some, strict=True))
        starts, places = np.cumsum([0, *(len(row) for row, _ in some)]), np.zeros(len(some), np.int32)
        others = TokenSet(ids, learned, starts, places, places.astype(np.int64), ("answers to other prompts",), 0, tokens.pad)
        numbers = list(range(len(some)))

        def logps(model: Any, of: TokenSet = others, numbers: list[int] = numbers) -> Tensor:
            return torch.tensor([one.logps[0] for one in answer_logps(model, of, numbers, sides.settings, sides.device, asked)])

        tuned = logps(sides.tuned)
        with sides.before() as model:
            found.append((tuned - logps(model)).mean().clamp_min(0.0).expand(len(some)))
    return torch.cat(found)


def _held_against(
    objective: Objective, tuned: list[Answers], base: list[Answers], weights: Tensor, drift: Tensor, apart: float | None
) -> Json:
    """Return the objective's mean loss of both, and the tuned model's pair accuracy and margin.

    weights: of the rows, in the loss. drift: the tuned model's; the base has none. apart: its divergence from the base, where known.
    """

    def flat(rows: list[Answers], name: str) -> Tensor:
        return torch.tensor([value for row in rows for value in getattr(row, name)])

    reference, counts, good = flat(base, "logps"), flat(tuned, "counts"), flat(tuned, "good")
    loss, measured = objective.of(SequenceScores(flat(tuned, "logps"), reference, counts, good, weights, drift))
    before, _ = objective.of(SequenceScores(reference, reference, counts, good, weights, torch.zeros(())))
    divisor = float(weights.double().sum())
    shares = {name: float(total) / len(tuned) for name, total in zip(objective.measures, measured, strict=True)}
    metrics = shares | {"kl_to_reference": apart}
    return {"eval_base": float(before) / divisor, "eval_tuned": float(loss) / divisor, **shares, "metrics": metrics}


def _label_losses(
    model: Any, tokens: TokenSet, rows: list[int], settings: Settings, device: torch.device, asked: Asked
) -> Iterator[tuple[TextBatch, Tensor]]:
    """Yield (batch, its labels' cross-entropies) until all rows are done; in smaller batches where one does not fit."""
    inner, prefix = _inner(model)
    loss = LabelLoss(inner, settings.own_head, prefix)

    def laid_out(left: list[int], budget: int) -> list[TextBatch]:
        return grouped_batches(tokens, left[:HELD_OUT_AT_ONCE], budget, device)

    def losses(batch: TextBatch) -> Tensor:
        with torch.inference_mode(), tag_out_of_memory(batch):
            return loss.each(batch)[0]

    with products_in(settings.part_threads):
        for batch, found in in_portions(rows, settings.micro_batch_tokens, laid_out, losses, settings.at_once):
            yield batch, found
            asked(len(batch.numbers))


def _inner(model: Any) -> tuple[Any, Tensor | None]:
    """Return (the causal model inside, embeddings [tokens, size] that a prompt adapter puts before each sample or None)."""
    if not isinstance(model, PeftModel):
        return model, None
    learns_prompt = model.active_peft_config.is_prompt_learning and not getattr(model, "_adapters_disabled", False)
    return model.get_base_model(), model.get_prompt(batch_size=1)[0] if learns_prompt else None


def _compare_answers(parts: list[tuple[list[int], list[int]]], tuned: list[str], base: list[str], codec: Codec, limit: int) -> Json:
    """Count the answers that are the rows' own, of those that the limit on an answer's tokens leaves whole."""
    wanted = [_text(answer, codec) for _, answer in parts]
    whole = [_text(answer[:limit], codec) == text for (_, answer), text in zip(parts, wanted, strict=True)]
    questions = [_question(prompt, codec) for prompt, _ in parts]
    kept = [
        {"prompt": q, "wanted": w, "base": b, "tuned": t}
        for q, w, b, t in list(zip(questions, wanted, base, tuned, strict=True))[:_SAMPLES_KEPT]
    ]
    counts = {"asked": sum(whole)}
    for name, given in (("base", base), ("tuned", tuned)):
        counts[name] = sum(may and said == text for said, text, may in zip(given, wanted, whole, strict=True))
    return {"exact_match": counts | {"too_long": len(parts) - sum(whole), "limit": limit}, "samples": kept}


def _text(answer: list[int], codec: Codec) -> str:
    return codec.tokenizer.decode(answer, skip_special_tokens=True).strip()


def _question(prompt: list[int], codec: Codec) -> str:
    """Extract the user's words from a prompt: what stands between the template's own, or all of it where there are several turns."""
    text = codec.tokenizer.decode(prompt, skip_special_tokens=False)
    frame = pieces(Example(messages=(Message("user", _SLOT), Message("assistant", "x"))), codec.template)[0][0]
    before, _, after = frame.partition(_SLOT)
    return text.removeprefix(before).removesuffix(after).strip()


def _first_turn(tokens: TokenSet, row: int, codec: Codec, ends: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return (prompt, answer) of a row's first answer as token ids."""
    (ids, learned), _ = sequences(*tokens.row(row))[0]
    return asked_and_answered(ids.tolist(), learned.tolist(), codec, ends)


def _answers(model: Any, prompts: list[list[int]], codec: Codec, ends: Sequence[int], config: Config, asked: Asked) -> list[str]:
    return answers(model, prompts, codec.tokenizer, codec.pad, ends, config.evaluate.max_new_tokens, asked)
