"""The optimizer is torch's AdamW to the bit, without memory of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from holdfast.config.train import Train
from holdfast.trainer.optim.optimizer import AdamW
from simulated import card


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_an_update_has_the_bits_of_torch_s_own(decay: float) -> None:
    torch.manual_seed(0)
    train = Train(lr=1e-2, weight_decay=decay, beta1=0.9, beta2=0.95, steps=1)
    weight = torch.randn(1003)
    ours = AdamW({"a": weight[:1000].clone().view(10, 100), "b": weight[1000:].clone()}, train)
    theirs = torch.nn.Parameter(weight.clone())
    reference = torch.optim.AdamW([theirs], lr=1e-2, betas=(0.9, 0.95), eps=train.epsilon, weight_decay=decay)
    for step in range(40):
        gradient = torch.randn(1003) * 10.0 ** (step % 7 - 4)
        theirs.grad = gradient.clone()
        ours.gradient.copy_(gradient)
        reference.param_groups[0]["lr"] = rate = 1e-2 / (1 + step)
        reference.step()
        ours.step(rate)
        assert torch.equal(ours.weights, theirs.detach())
    state = ours.state()
    for kind in ("exp_avg", "exp_avg_sq"):
        mine = torch.cat([state[f"{kind}/a"].flatten(), state[f"{kind}/b"]])
        assert torch.equal(mine, reference.state[theirs][kind])
    assert float(state["step"]) == 40


@card.needed
def test_an_update_on_a_full_card_allocates_nothing(tmp_path: Path) -> None:
    script = tmp_path / "full.py"
    script.write_text(
        "import simulated_card as card, torch\n"
        "from holdfast.config.train import Train\n"
        "from holdfast.trainer.optim.optimizer import AdamW\n"
        "optimizer = AdamW({'a': torch.ones(1 << 16, device='cuda')}, Train(steps=1, weight_decay=0.1))\n"
        "optimizer.gradient.fill_(0.5)\n"
        "card.limit(card.now())\n"
        "optimizer.step(1e-3)\n"
        "assert card.ooms() == 0 and float(optimizer.weights.cpu().max()) < 1\n"
    )
    done = card.run(script)
    assert done.returncode == 0, done.stderr
