"""A plain training loop in torch, that knows nothing of holdfast: it saves its state into ckpt/step-N.pt and goes on from --resume FILE.

Prints "weights SHA256" at its end, bit for bit.
"""

import argparse
import hashlib
from pathlib import Path

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--resume", default="")
parser.add_argument("--steps", type=int, default=12)
parser.add_argument("--every", type=int, default=2)


def save(file: Path, state: dict) -> None:
    torch.save(state, file.with_suffix(".part"))
    file.with_suffix(".part").replace(file)


def main() -> None:
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    begin = 0
    if Path(given.resume).is_file():
        state = torch.load(given.resume, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["random"])
        begin = state["step"]
    Path("ckpt").mkdir(exist_ok=True)
    for step in range(begin + 1, given.steps + 1):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
        print(f"step {step}/{given.steps} loss {loss.item():.4f}", flush=True)
        if step % given.every == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "random": torch.get_rng_state(), "step": step}
            save(Path(f"ckpt/step-{step}.pt"), state)
    found = hashlib.sha256(b"".join(one.detach().numpy().tobytes() for one in model.parameters()))
    print("weights", found.hexdigest(), flush=True)


if __name__ == "__main__":
    main()
