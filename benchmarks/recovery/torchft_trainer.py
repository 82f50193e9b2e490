"""The peers' training with torchft: a replica group of one process for each rank, gloo between them, a lighthouse that says who is there.

    python benchmarks/recovery/torchft_trainer.py ORDERS.json

Each is started, and started again, by a torchrun of its own; goodput.py writes the orders, reads the steps and kills it. What a replica
that comes back needs is the trained weights and the optimizer's state, so no more is sent.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from peer_trainer import begun
from torchft import DistributedDataParallel, DistributedSampler, Manager, Optimizer, ProcessGroupGloo


def main() -> None:
    orders = json.loads(Path(sys.argv[1]).read_text())
    folder, group, groups = Path(orders["folder"]), int(os.environ["REPLICA_GROUP_ID"]), int(os.environ["NUM_REPLICA_GROUPS"])
    model, rows, collate = begun(orders, group)
    data: Any = rows
    trained = {name: one for name, one in model.named_parameters() if one.requires_grad}

    def state() -> dict[str, Any]:
        return {"model": {name: one.detach() for name, one in trained.items()}, "optimizer": optimizer.state_dict()}

    def take(given: dict[str, Any]) -> None:
        with torch.no_grad():
            for name, one in trained.items():
                one.copy_(given["model"][name])
        optimizer.load_state_dict(given["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=5)),
        min_replica_size=1,
        load_state_dict=take,
        state_dict=state,
        replica_id=f"group_{group}",
        timeout=timedelta(seconds=30),
    )
    ours = DistributedDataParallel(manager, model)
    optimizer = Optimizer(manager, torch.optim.AdamW(trained.values(), lr=5e-5))
    sampler = DistributedSampler(data, group, groups, group_rank=0, num_replicas=1, shuffle=True)
    loader = torch.utils.data.DataLoader(data, batch_size=orders["batch"], sampler=sampler, collate_fn=collate)
    while manager.current_step() < orders["steps"]:
        for batch in loader:
            before = manager.current_step()
            optimizer.zero_grad()
            ours(**batch).loss.backward()
            optimizer.step()
            if manager.current_step() > before and manager.participating_rank() == 0:
                tell(folder, manager)


def tell(folder: Path, manager: Manager) -> None:
    """Write down a step that all who are there took, once for all of them, and how many they are."""
    with (folder / "steps.jsonl").open("a") as handle:
        row = {"step": manager.current_step(), "time": time.time(), "ranks": manager.num_participants()}
        handle.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
