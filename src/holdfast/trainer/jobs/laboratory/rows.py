"""Which rows an experiment is done on: the run's own steps, ten short distinct rows, or the shapes that break kernels. Changes no row."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from typing import Any

import numpy as np
import torch

from holdfast.base.files import Json
from holdfast.config.objectives import OBJECTIVES
from holdfast.trainer.step.training_state import TrainingState

TEN, _LOOKED_AT, _LABELS = 10, 2000, 32
_CLIMB = 24  # steps of looking for the hidden state that says a token best
_SAYS_LITTLE = 0.6  # of the loss of a guess: a layer that can do better is taken to say anything


def samples_of(training: TrainingState, request: Json, step: int) -> list[int]:
    """Choose the samples of an experiment's step. rows: own, ten, shapes, fullest.

    most_tokens cuts a step to its first samples, to no fewer of them than least_samples.
    """
    how = request.get("rows", "own")
    if how == "ten":
        return ten_rows(training)
    if how == "shapes":
        shapes = shape_rows(training, request.get("budget"))
        return shapes[(step - 1) % len(shapes)]
    if how == "fullest":
        return _within(training, training.samples(fullest_step(training)), request.get("most_tokens"))
    least = request.get("least_samples", 1)
    last = training.job.settings(1).steps
    return _within(training, training.samples((step - 1) % last + 1), request.get("most_tokens"), least)


def _within(training: TrainingState, samples: list[int], most: int | None, least: int = 1) -> list[int]:
    if most is None:
        return samples
    kept: list[int] = []
    sizes, total = training.task.data.sizes, 0
    for number in samples:
        if len(kept) >= least and total + int(sizes[number]) > most:
            break
        kept.append(number)
        total += int(sizes[number])
    return kept


def fullest_step(training: TrainingState) -> int:
    """Find the step with the most tokens of the first epochs."""
    settings = training.job.settings(1)
    return min(training.task.data.table.largest_step(training.task.data.sizes, settings.samples)[0], settings.steps)


def ten_rows(training: TrainingState) -> list[int]:
    """Choose ten rows of different content among the first of the run: the shortest above a quarter of all lengths."""
    rows = training.task.data.table.rows[:_LOOKED_AT]
    sizes = training.task.data.sizes
    by_length = sorted((int(number) for number in rows), key=lambda number: (int(sizes[number]), number))
    start = len(by_length) // 4 if len(by_length) > 4 * TEN else 0
    seen, chosen = set(), []
    for number in [*by_length[start:], *by_length[:start]]:
        content = _content(training, number)
        if content in seen:
            continue
        seen.add(content)
        chosen.append(number)
        if len(chosen) == TEN:
            break
    return chosen


def _content(training: TrainingState, number: int) -> bytes:
    tokens = getattr(training.task, "tokens", None)
    if tokens is None:
        return str(number).encode()
    ids, learned = tokens.row(number)
    return bytes(ids.tobytes()) + bytes(learned.tobytes())


def shape_rows(training: TrainingState, budget: int | None = None) -> list[list[int]]:
    """Choose samples of the shortest, the longest, the fullest and an awkward micro-batch: lengths that are no round numbers."""
    rows = [int(number) for number in training.task.data.table.rows[:_LOOKED_AT]]
    sizes = training.task.data.sizes
    by_length = sorted(rows, key=lambda number: (int(sizes[number]), number))
    budget = budget or training.job.settings(1).micro_batch_tokens
    full = _within(training, training.samples(fullest_step(training)), max(budget, int(sizes[by_length[-1]])))
    odd = [number for number in by_length if int(sizes[number]) % 2][: len(by_length)]
    awkward = [odd[0], odd[-1]] if len(odd) > 1 else [by_length[0], by_length[-1]]
    return [[by_length[0]], [by_length[-1]], full, sorted(set(awkward))]


def label_facts(training: TrainingState) -> Json:
    """Collect facts of the ten rows: learned tokens, the least loss their contradictions allow, equal rows.

    What bounds a loss in nats a label bounds no other: answers of one prompt that contradict each other are what those compare.
    """
    tokens = getattr(training.task, "tokens", None)
    facts: Json = {"order": order_facts(training)}
    if tokens is None:
        return facts
    ten = ten_rows(training)
    rows = training.task.data.table.rows[:_LOOKED_AT]
    equal = len(rows) - len({_content(training, int(number)) for number in rows})
    in_nats = OBJECTIVES[training.job.config.train.objective].rows == "answers"
    labels = sum(int((tokens.row(number)[1][1:] & 1).sum()) for number in ten)
    return facts | {
        "ten": len(ten),
        "ten_sources": [str(training.task.data.source(number)) for number in ten],
        "ten_tokens": sum(tokens.length(number) for number in ten),
        "ten_labels": labels,
        "equal_rows": equal,
        "looked_at": len(rows),
        "least_loss": round(least_loss(training, ten), 6) if in_nats else 0.0,
        "expressible_loss": expressible_loss(training, ten) if in_nats else None,
        "vocabulary": _vocabulary(training) if in_nats else None,
        "most_common_label": _most_common(training, ten),
    }


def least_loss(training: TrainingState, numbers: list[int]) -> float:
    """Compute the least mean loss any model can reach on rows: the entropy of what follows the same beginning, per learned token, each as
    often as it counts."""
    tokens = training.task.tokens  # type: ignore[attr-defined]
    following: dict[bytes, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for number in numbers:
        ids, learned = tokens.row(number)
        counts = tokens.counts_of(number)
        for at in np.flatnonzero(learned[1:] & 1) + 1:
            following[ids[:at].tobytes()][int(ids[at])] += 1.0 if counts is None else float(counts[at])
    labels = sum(sum(one.values()) for one in following.values())
    nats = sum(-count * math.log(count / sum(one.values())) for one in following.values() for count in one.values())
    return nats / labels if labels else 0.0


def expressible_loss(training: TrainingState, numbers: list[int]) -> float | None:
    """Estimate the least mean loss on these rows' labels that a frozen output layer can express; a random one hardly any.

    What it is given has a norm that the last normalisation fixes; for each of the commonest labels the state of that norm is looked for
    that says it best. None where there is no such layer, or it learns.
    """
    task: Any = training.task
    layer: Any = getattr(getattr(task, "base", None), "get_output_embeddings", lambda: None)()
    weight = getattr(layer, "weight", None)
    if weight is None or weight.requires_grad or weight.ndim != 2 or not weight.is_floating_point():
        return None
    labels = Counter(
        int(label) for number in numbers for label in task.tokens.row(number)[0][1:][(task.tokens.row(number)[1][1:] & 1) == 1]
    ).most_common(_LABELS)
    wanted, often = (torch.tensor(column, device=weight.device) for column in zip(*labels, strict=True))
    seen: list[float] = []
    handle = layer.register_forward_pre_hook(lambda _layer, given: seen.append(float(given[0].detach().float().norm(dim=-1).max())))
    task.model.eval()  # dropout follows micro-batches
    try:
        with torch.no_grad(), task.own_attention():
            task.base(input_ids=torch.from_numpy(task.tokens.ids[:32]).long()[None].to(weight.device), use_cache=False)
            known, little = weight.detach().float(), _SAYS_LITTLE * math.log(weight.shape[0])
            loss = _best_said(known, wanted, often / often.sum(), seen[0], little)
    except (RuntimeError, IndexError, TypeError, ValueError, AttributeError):
        return None
    finally:
        handle.remove()
        task.model.train()
    return round(loss, 6) if loss > little else None  # else the layer can say anything


def _best_said(known: torch.Tensor, wanted: torch.Tensor, shares: torch.Tensor, norm: float, enough: float) -> float:
    """Minimise the mean loss on the tokens `wanted` (n) over states of norm `norm`; `known`: output layer [tokens, width].

    shares: of each token in the mean. The loss is convex in the state, so following its slope finds it. Ends at `enough`.
    """
    state, best = known[wanted] - known.mean(0), math.inf
    for number in range(_CLIMB):
        state = norm * torch.nn.functional.normalize(state, dim=-1)
        logits = state @ known.T
        best = min(best, float(shares @ torch.nn.functional.cross_entropy(logits, wanted, reduction="none")))
        if best <= enough:
            break
        slope = known[wanted] - logits.softmax(-1) @ known
        state = state + norm * (1 - number / _CLIMB) * torch.nn.functional.normalize(slope, dim=-1)
    return best


def _most_common(training: TrainingState, numbers: list[int]) -> Json | None:
    """Find the label that is learned most, and its share of all labels of these rows; None without labels."""
    tokens = training.task.tokens  # type: ignore[attr-defined]
    seen: Counter[int] = Counter()
    for number in numbers:
        ids, learned = tokens.row(number)
        seen.update(ids[1:][(learned[1:] & 1) == 1].tolist())
    if not seen:
        return None
    token, count = seen.most_common(1)[0]
    return {"id": int(token), "share": round(count / seen.total(), 4)}


def _vocabulary(training: TrainingState) -> int | None:
    embedded = getattr(training.task.model, "get_input_embeddings", lambda: None)()
    weight = getattr(embedded, "weight", None)
    return None if weight is None else int(weight.shape[0])


def order_facts(training: TrainingState) -> Json:
    """Count how often the first epoch sees a row, as far as the run goes, and test whether the order is drawn alike twice."""
    settings, table = training.job.settings(1), training.task.data.table
    size = table.mixture.size if table.mixture else len(table.rows)
    steps = min(settings.steps, math.ceil(size / table.batch))

    def drawn() -> list[int]:
        return [number for step in range(1, steps + 1) for number in table.samples(step, settings.samples, settings.behind)][:size]

    once, again = drawn(), drawn()
    most = max(Counter(once).values(), default=0)
    mixed = table.mixture is not None
    return {"steps": steps, "rows": len(set(once)), "of": size, "most_often": most, "alike": once == again, "mixed": mixed}
