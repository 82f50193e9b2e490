"""The arithmetic a LoRA step cannot do without, timed piece by piece on random numbers of the right shapes. Trains nothing.

    python products.py STEPS.json       {"config": a model's config.json, "rank", "threads", "steps": [{"lengths": [...], "labels": n}]}

Prints one JSON object: for each piece the seconds and CPU seconds of each step. Products are written into buffers made beforehand,
tokens lie behind each other without padding, attention is dense within each row, the output layer runs at labels only.
The first layer's q, k and v hand no gradient back, because nothing below them is trained.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

Piece = tuple[str, Callable[[], object]]


@dataclass(frozen=True)
class Shape:
    hidden: int
    middle: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int
    rank: int

    @property
    def head(self) -> int:
        return self.hidden // self.heads

    def linears(self) -> list[tuple[int, int, bool]]:
        """(inputs, outputs, is q, k or v) of a layer's matrices."""
        kv = self.kv_heads * self.head
        attention = [(self.hidden, self.hidden, True), (self.hidden, kv, True), (self.hidden, kv, True), (self.hidden, self.hidden, False)]
        return attention + [(self.hidden, self.middle, False)] * 2 + [(self.middle, self.hidden, False)]


class Pieces:
    """Weights of the whole model, and buffers for the longest step."""

    def __init__(self, shape: Shape, longest: int, labels: int, kind: torch.dtype) -> None:
        self.shape = shape
        widest = max(max(inputs, outputs) for inputs, outputs, _ in shape.linears())

        def made(*sizes: int) -> Tensor:
            return (torch.randn(*sizes) * 0.02).to(kind)

        self.weights = [[made(outputs, inputs) for inputs, outputs, _ in shape.linears()] for _ in range(shape.layers)]
        self.head = made(shape.vocabulary, shape.hidden)
        self.left, self.right = made(longest * widest), made(longest * widest)
        self.down, self.up = made(3 * shape.rank * widest), made(shape.rank * widest)
        self.small, self.narrow = made(longest * 3 * shape.rank), made(max(longest, widest) * 3 * shape.rank)
        self.logits, self.hidden = made(labels * shape.vocabulary), made(labels * shape.hidden)
        self.attended = torch.randn(longest * shape.hidden)  # attention is in fp32, whatever the products are in

    def frozen(self, tokens: int, backward: bool) -> None:
        for layer, weights in enumerate(self.weights):
            for weight, (inputs, outputs, first) in zip(weights, self.shape.linears(), strict=True):
                if not backward:
                    torch.mm(_cut(self.left, tokens, inputs), weight.t(), out=_cut(self.right, tokens, outputs))
                elif layer or not first:
                    torch.mm(_cut(self.left, tokens, outputs), weight, out=_cut(self.right, tokens, inputs))

    def adapters(self, tokens: int) -> None:
        """Forward x A, (xA) B; backward dy B, their products with x and xA, and what they add to dx. Layers of one input share x A."""
        rank = self.shape.rank
        for layer in range(self.shape.layers):
            for group in (self.shape.linears()[:3], self.shape.linears()[3:4], self.shape.linears()[4:6], self.shape.linears()[6:]):
                inputs, ranks = group[0][0], rank * len(group)
                x, dx, down = _cut(self.left, tokens, inputs), _cut(self.right, tokens, inputs), _cut(self.down, ranks, inputs)
                small, narrow = _cut(self.small, tokens, rank), _cut(self.narrow, tokens, rank)
                torch.mm(x, down.t(), out=_cut(self.narrow, tokens, ranks))
                for _, outputs, _ in group:
                    up, dy = _cut(self.up, outputs, rank), _cut(self.left, tokens, outputs)
                    torch.mm(small, up.t(), out=_cut(self.right, tokens, outputs))
                    torch.mm(dy, up, out=narrow)
                    torch.mm(small.t(), dy, out=_cut(self.narrow, rank, outputs))  # this way round it takes a seventh of the time
                torch.mm(_cut(self.small, tokens, ranks).t(), x, out=_cut(self.narrow, ranks, inputs))
                if layer or not group[0][2]:
                    torch.mm(_cut(self.small, tokens, ranks), down, out=dx)

    def attention(self, lengths: list[int]) -> None:
        """Per row and layer: scores and sums forward; the gradients of sums, scores, queries, keys and values backward."""
        heads, size = self.shape.heads, self.shape.head
        for length in lengths:
            rows = self.attended[: heads * length * size].view(heads, length, size)
            scores = torch.empty(heads, length, length)
            sums = torch.empty(heads, length, size)
            for _ in range(self.shape.layers):
                for _ in range(2):
                    torch.bmm(rows, rows.transpose(1, 2), out=scores)
                for _ in range(4):
                    torch.bmm(scores, rows, out=sums)

    def output(self, labels: int) -> None:
        logits, hidden = _cut(self.logits, labels, self.shape.vocabulary), _cut(self.hidden, labels, self.shape.hidden)
        torch.mm(hidden, self.head.t(), out=logits)
        torch.mm(logits, self.head, out=hidden)

    def of_step(self, lengths: list[int], labels: int) -> Iterator[Piece]:
        tokens = sum(lengths)
        yield "products: frozen layers, forward", lambda: self.frozen(tokens, False)
        yield "products: frozen layers, backward", lambda: self.frozen(tokens, True)
        yield "products: adapters", lambda: self.adapters(tokens)
        yield "products: attention", lambda: self.attention(lengths)
        yield "products: output layer at labels", lambda: self.output(labels)
        yield from others(self.shape, lengths, labels)


def others(shape: Shape, lengths: list[int], labels: int) -> Iterator[Piece]:
    """What is no matrix product, forward and backward by plain torch operations; attention's softmax is counted with it."""
    tokens = sum(lengths)
    x, wide = torch.randn(tokens, shape.hidden, requires_grad=True), torch.randn(tokens, shape.middle, requires_grad=True)
    scale, gate = torch.ones(shape.hidden), torch.randn(tokens, shape.middle, requires_grad=True)
    angles = torch.randn(tokens, 1, shape.head)
    queries = torch.randn(tokens, shape.heads + shape.kv_heads, shape.head, requires_grad=True)
    scores = [torch.randn(shape.heads, length, length, requires_grad=True) for length in lengths]
    logits = torch.randn(labels, shape.vocabulary, requires_grad=True)
    targets = torch.randint(shape.vocabulary, (labels,))
    trained = [torch.randn(shape.rank * size, requires_grad=True) for i, o, _ in shape.linears() * shape.layers for size in (i, o)]
    for weight in trained:
        weight.grad = torch.randn_like(weight)
    optimizer = torch.optim.AdamW(trained, lr=1e-4, weight_decay=0.0)
    optimizer.step()
    layers = shape.layers

    def rotate() -> Tensor:
        half = shape.head // 2
        return queries * angles + torch.cat((-queries[..., half:], queries[..., :half]), -1) * angles

    yield "norms", lambda: _both(lambda: F.rms_norm(x, (shape.hidden,), scale, 1e-6), 2 * layers + 1)
    yield "activations (SiLU x up)", lambda: _both(lambda: F.silu(gate) * wide, layers)
    yield "rotary positions", lambda: _both(rotate, layers)
    yield "residual sums", lambda: _both(lambda: x + x, 2 * layers)
    yield "softmax of attention", lambda: [_both(lambda one=one: one.softmax(-1), layers) for one in scores]
    yield "cross-entropy at labels", lambda: F.cross_entropy(logits, targets).backward()
    yield "gradient norm and AdamW", lambda: (torch.nn.utils.clip_grad_norm_(trained, 1.0), optimizer.step())


def _both(forward: Callable[[], Tensor], times: int) -> None:
    for _ in range(times):
        made = forward()
        made.backward(made.detach())


def _cut(buffer: Tensor, rows: int, columns: int) -> Tensor:
    return buffer[: rows * columns].view(rows, columns)


def main() -> None:
    asked = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(asked["threads"])
    config = asked["config"]
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size")
    shape = Shape(*(config[name] for name in names), rank=asked["rank"])
    steps = asked["steps"]
    pieces = Pieces(
        shape, max(sum(step["lengths"]) for step in steps), max(step["labels"] for step in steps), getattr(torch, asked["kind"])
    )
    found: dict[str, list[list[float]]] = {}
    for step in steps:
        for name, work in pieces.of_step(step["lengths"], step["labels"]):
            work()  # a library may prepare itself for these shapes
            began, cpu = time.perf_counter(), time.process_time()
            work()
            found.setdefault(name, []).append([time.perf_counter() - began, time.process_time() - cpu])
    print(json.dumps(found))


if __name__ == "__main__":
    main()
