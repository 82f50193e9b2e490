"""The project's own Triton kernels beside the layers they stand in for: proven, and how far apart with an adapter that is not young."""

from __future__ import annotations

from typing import Any

from stages import training
from stages.common import Json, Place


def run(place: Place) -> None:
    from holdfast.trainer.tasks.text import proof

    stand = training.build(place, "qwen0.5b", 2048, dropout=0.05)
    if not hasattr(proof, "fused_differ"):
        for question in ("proven", "loss-apart", "gradients-apart"):
            place.answer(question, None, "no fused layers here")
        return
    proven = bool(stand.settings.fused)
    rehearsed = place.smoke and not proven  # the simulated card has no driver that Triton could compile for
    place.answer("proven", None if rehearsed else proven, "; ".join(stand.notes)[:500])
    del stand
    training.release()
    if not proven:
        for question in ("loss-apart", "gradients-apart"):
            place.answer(question, None, "they are left out")
        return
    found: list[Any] = [_loss_and_gradients(place, {"fused": fused}) for fused in (True, False)]
    (loss, ours), (wanted, theirs) = found
    place.answer("loss-apart", abs(loss - wanted) / wanted, f"{loss} and {wanted}")
    place.answer("gradients-apart", float((ours - theirs).norm() / theirs.norm()), "of the norm of all gradients")


def _loss_and_gradients(place: Place, changes: Json) -> tuple[float, Any]:
    """Of one step with dropout, at weights that are no longer near zero: other masks would move both by much."""
    import torch

    from holdfast.trainer.step.step import compute_gradients

    stand = training.build(place, "qwen0.5b", 2048, dropout=0.05, liger=False, **changes)
    torch.manual_seed(3)
    with torch.no_grad():
        for weights in stand.task.artifact.values():
            weights.copy_(0.02 * torch.randn(weights.shape))
    computed = compute_gradients(stand.task, stand.optimizer, 1, stand.samples, stand.settings.micro_batch_tokens, lambda *_: 1.0)
    gradients = torch.cat([weights.grad.flatten().float().cpu() for weights in stand.task.artifact.values()])
    del stand
    training.release()
    return computed.loss, gradients
