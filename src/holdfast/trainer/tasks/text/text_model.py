"""A causal language model with an adapter, its micro-batches and their loss: all that a step computes with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.config.config import Config
from holdfast.config.settings import Settings
from holdfast.data.token_set.token_set import TokenSet
from holdfast.trainer.common.decoder import bring, text_decoder
from holdfast.trainer.common.on_card import on_card
from holdfast.trainer.distributed.rank import Rank
from holdfast.trainer.model.attention import Kernel, best_kernel, packed_attention
from holdfast.trainer.model.frozen.offloaded_layers import OffloadedLayers, everywhere, streams
from holdfast.trainer.model.frozen.quantised import QuantisedWeights
from holdfast.trainer.model.frozen.sharded import mesh_of, shard_layers
from holdfast.trainer.model.head import OutputHead, each_loss
from holdfast.trainer.model.layers.dropout import StepContext, make_stateless
from holdfast.trainer.model.layers.fused import FusedLayers
from holdfast.trainer.model.layers.liger import Liger
from holdfast.trainer.model.layers.lora import use_lean_lora
from holdfast.trainer.model.layers.mixed import HALF_TYPES
from holdfast.trainer.model.layers.neftune import EmbeddingNoise
from holdfast.trainer.model.load import DTYPES, checkpoint_layers, load_base
from holdfast.trainer.model.offload import HostActivations
from holdfast.trainer.model.trained.choose import trained_on
from holdfast.trainer.model.trained.cut import CutPieces, units_of
from holdfast.trainer.model.trained.pieces import Pieces
from holdfast.trainer.tasks.text.compared import ComparedLoss, SequenceGroup
from holdfast.trainer.tasks.text.objective import objective_of
from holdfast.trainer.tasks.text.packing import TextBatch, grouped_batches, packed_batches


class TextModel:
    """A base model and what is trained of it, on the rows' answer tokens."""

    kernel: Kernel | None
    compared: ComparedLoss | None = None
    turn: int | None = None  # tokens of a row; longer ones share no micro-batch with others
    _ahead: tuple[tuple[list[int], int], list[TextBatch]] | None = None

    def __init__(self, config: Config, settings: Settings, tokens: TokenSet, device: torch.device, folder: Path | None = None) -> None:
        base: Any
        self.tokens, self.device = tokens, device
        mesh = mesh_of(config, device)
        base, self.notes = load_base(config, settings, device, mapped=mesh is not None or streams(config, device))
        self.base = base
        self.held: QuantisedWeights | None = getattr(base, "held", None)
        self.liger = Liger(base) if settings.liger else None
        own = config.cuts_trained  # what is trained is cut, not what is frozen
        trained = trained_on(base, config, settings, device, cut=own and mesh is not None)
        self.model: nn.Module = trained.model
        self.step_hooks, self.artifact, self.form = trained.step_hooks, trained.tensors, trained.form
        self.trained = trained.tensors  # whole, where the artifact is pieces of it
        if own:
            self._in_pieces(settings.shards, cut=mesh is not None)
            mesh = None
        away = OffloadedLayers(self.model, base, device) if streams(config, device) else None
        near = away.near if away else everywhere
        self.context = StepContext(config.train.seed)
        make_stateless(self.model, self.context)
        half = HALF_TYPES.get(settings.dtype)
        able = on_card(device) and config.fusable(settings.dtype)  # a remedy may have brought a card's run to the CPU
        self.fused = FusedLayers(self.model, self.context, half is not None, near) if settings.fused and able else None
        if self.fused is None:
            use_lean_lora(self.model, half, cut=mesh is not None, near=near)
        self.away_bytes = away.settle() if away else 0
        if away and away.unpinned:
            self.notes.append(f"the layers in main memory are not pinned, so the card waits for each copy: {away.unpinned}")
        self.held_bytes = shard_layers(base, self.artifact.values(), mesh, device) if mesh is not None else None
        self.noise = EmbeddingNoise(base, config.train.neftune, self.context) if config.train.neftune else None
        self.losses = LabelLoss(base, own_head=settings.own_head, prefix=trained.prefix, fused=self.fused is not None)
        self.packing: bool = settings.packing
        if settings.rope_apart and (turn := turning_length(base.config)):
            self.turn = turn - (0 if trained.prefix is None else len(trained.prefix))
        self.own_kind: str = base.config._attn_implementation
        at_once = self.packing and settings.varlen and settings.attention == "sdpa" and settings.dtype == "bf16"
        self.kernel = best_kernel() if at_once and on_card(device) else None
        self.kind = packed_attention(settings.attention, self.context, self.kernel) if self.packing else self.own_kind
        base.set_attn_implementation(self.kind)
        self.dtype = DTYPES[settings.dtype]
        self.frozen = settings.frozen
        self.layers = checkpoint_layers(base, settings.checkpointed_layers)
        if objective := objective_of(config):
            held = "" if settings.frozen == config.train.frozen else f"-{settings.frozen}"
            self.compared = ComparedLoss(self, objective, config.train.objective_kind, settings, folder, held)
        self.keeping = HostActivations(self.model) if settings.activations_on_host else nullcontext

    def _in_pieces(self, parts: int, cut: bool) -> None:
        """Hold what is trained in the pieces that ranks hold; cut: this one holds some of them, else all."""
        units, layers = units_of(self.base, self.artifact, parts)
        if not cut:
            self.step_hooks = Pieces(units, parts)
            self.artifact = self.step_hooks.tensors
            return
        self.step_hooks = whole = CutPieces(self.base, units, layers, parts, self.device)
        bring(self.base, self.trained.values(), self.device)
        self.artifact = whole.pieces

    @property
    def attends(self) -> str:
        """How it attends, in words."""
        if self.kernel:
            return f"FlashAttention of {self.kernel.source}, all samples of a row at once"
        return "each sample of a row by itself" if self.packing else self.own_kind

    @contextmanager
    def own_attention(self) -> Iterator[None]:
        """Attend as transformers does within the context, for the proof at the run's start."""
        self.base.set_attn_implementation(self.own_kind)
        yield
        self.base.set_attn_implementation(self.kind)

    def batches(self, samples: list[int], budget: int) -> list[TextBatch]:
        ahead, self._ahead = self._ahead, None
        return ahead[1] if ahead and ahead[0] == (samples, budget) else self._laid_out(samples, budget)

    def prepare(self, samples: list[int], budget: int) -> None:
        """Lay out now what `batches` will be asked for next: on a card the copies follow what it is still busy with."""
        self._ahead = ((samples, budget), self._laid_out(samples, budget))
        if self.compared is not None:
            self.compared.score(samples)

    def _laid_out(self, samples: list[int], budget: int) -> list[TextBatch]:
        lay, sides = packed_batches if self.packing else grouped_batches, [samples]
        if self.turn is not None:
            sides = [[one for one in samples if (self.tokens.length(one) > self.turn) is far] for far in (False, True)]
        found = [batch for side in sides for batch in lay(self.tokens, side, budget, self.device)]
        if self.compared is None:
            return found
        group = SequenceGroup(list(samples), budget)
        return [replace(batch, labels=len(batch.numbers), group=group) for batch in found]

    def share_step(self, samples: list[int], laid: Sequence[Sequence[TextBatch]], rank: Rank) -> None:
        if self.compared is not None and self.compared.kind.drift:
            self.compared.share_drift(samples, laid, rank)

    def prepare_passes(self, batches: Sequence[TextBatch]) -> None:
        """Compute reference values, for which the adapter is switched off, or has other values."""
        if self.compared is not None:
            for batch in batches:
                if batch.group is not None:
                    self.compared.follow(batch.group.budget)
            self.compared.score([number for batch in batches for number in batch.numbers])

    def loss_sum(self, batch: TextBatch, step: int) -> tuple[Tensor, Tensor]:
        if self.compared is not None and batch.group is not None:
            return self.compared(batch, batch.group, step)
        self.enter(batch, step)
        with self.keeping():
            return self.losses(batch)

    @property
    def measures(self) -> tuple[str, ...]:
        """What `loss_sum` counts beside the loss."""
        return ("token_accuracy",) if self.compared is None else self.compared.objective.measures

    def enter(self, batch: TextBatch, step: int) -> None:
        """Tell dropout, attention and kernels which model, samples and positions the next forward pass is about."""
        Liger.use(self.liger)
        samples, positions = batch.samples, batch.positions
        if self.noise is not None:
            self.noise.enter(positions, batch.spans if batch.packed else None)
        if (prefix := self.losses.prefix) is not None:
            ahead = torch.arange(-len(prefix), 0, device=positions.device).expand(len(positions), -1)
            samples, positions = torch.cat([samples[:, :1].expand_as(ahead), samples], 1), torch.cat([ahead, positions], 1)
        self.context.enter(step, samples, positions, batch.spans if batch.packed else None, batch.ends)


class LabelLoss:
    """Sum of cross-entropies over the labels of a micro-batch, each as often as it counts, in fp32, and how many have the largest logit.

    own_head: let the model compute logits of all positions itself, for an architecture whose output layer `Head` does not match.
    prefix: embeddings that stand before every sample, [tokens, size]; samples then have rows of their own.
    """

    def __init__(self, model: Any, own_head: bool, prefix: Tensor | None = None, fused: bool = False) -> None:
        self.model = model
        self.prefix = prefix
        found = text_decoder(model)
        self.decoder = None if found is model else found
        apart = self.decoder is not None and model.get_output_embeddings() is not None
        self.head = OutputHead(model, fused) if apart and not own_head else None

    def __call__(self, batch: TextBatch) -> tuple[Tensor, Tensor]:
        losses, right = self.each(batch)
        if batch.label_weights is not None:
            losses = losses * batch.label_weights
        return losses.sum(dtype=torch.float64).to(torch.float32), right.sum()

    def each(self, batch: TextBatch) -> tuple[Tensor, Tensor]:
        """Compute (cross-entropy of each label, whether it has the largest logit): [labels]."""
        if self.head is None:
            logits = self._own(self.model(**self._inputs(batch), use_cache=False).logits)
            return each_loss(logits.flatten(0, 1).index_select(0, batch.label_at).float(), batch.label_ids)
        return self.head.losses(self.hidden(batch).index_select(0, batch.label_at), batch.label_ids)

    def hidden(self, batch: TextBatch) -> Tensor:
        """Compute the decoder's output before the output layer: [rows * width, size]."""
        assert self.decoder is not None
        states: Tensor = self.decoder(**self._inputs(batch), use_cache=False).last_hidden_state
        return self._own(states).flatten(0, 1)

    def scores(self, batch: TextBatch) -> Tensor:
        """Compute the scalar head's value of each sequence, read where transformers reads it: [sequences], fp32."""
        read = last_tokens(batch, self.model.config.get_text_config().pad_token_id)
        found: Tensor = self.model.score(self.hidden(batch).index_select(0, read).float())
        return found[:, 0]

    @contextmanager
    def without_prefix(self) -> Iterator[None]:
        """Leave out the prompt adapter's prefix within the context."""
        kept, self.prefix = self.prefix, None
        yield
        self.prefix = kept

    def _own(self, states: Tensor) -> Tensor:
        """Return the states at the samples' own positions, without the prefix."""
        return states if self.prefix is None else states[:, len(self.prefix) :]

    def _inputs(self, batch: TextBatch) -> dict[str, Tensor]:
        if self.prefix is None:
            return inputs(batch)
        embedded = self.model.get_input_embeddings()(batch.ids)
        ahead = self.prefix.to(embedded.dtype).expand(len(embedded), -1, -1)
        there = torch.cat([batch.positions.new_ones(ahead.shape[:2]), (batch.positions >= 0).long()], 1)
        return {"inputs_embeds": torch.cat([ahead, embedded], 1), "attention_mask": there}


def turning_length(config: Any) -> int | None:
    """Return the tokens of the longest row that a model with longrope turns by its short frequencies; None of other models.

    With a longer one in a micro-batch, all rows of it are turned by the long frequencies.
    """
    text = config.get_text_config()
    rope = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    if rope.get("rope_type", rope.get("type")) != "longrope":
        return None
    found: int | None = rope.get("original_max_position_embeddings") or getattr(text, "original_max_position_embeddings", None)
    return found


def last_tokens(batch: TextBatch, pad: int | None) -> Tensor:
    """Return the index of each sequence's last token that is not padding, counted through all rows: [sequences]."""
    width = batch.ids.shape[1]
    spans = torch.tensor(batch.spans, device=batch.ids.device)
    ends = spans.cumsum(0) - 1 if batch.packed else torch.arange(len(spans), device=spans.device) * width + spans - 1
    if pad is None:
        return ends
    ids = batch.ids.flatten()
    places = torch.arange(len(ids), device=ids.device).where(ids != pad, 0)
    return places.cummax(0).values.index_select(0, ends)


def inputs(batch: TextBatch) -> dict[str, Tensor]:
    """Return the arguments of the model's forward pass: positions where samples share a row, a mask where they are padded."""
    if batch.packed:
        return {"input_ids": batch.ids, "position_ids": batch.positions}
    return {"input_ids": batch.ids, "attention_mask": (batch.positions >= 0).long()}
