"""A small training with Lightning's Trainer, as its documentation writes one that goes on: ckpt_path="last". Arguments: OUT STEPS SAVE."""

import sys

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

out, steps, save = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])


class Small(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(64, 1))

    def training_step(self, batch: list[torch.Tensor], number: int) -> torch.Tensor:
        loss = torch.nn.functional.mse_loss(self.layers(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.01)


seed_everything(3)
rows = torch.randn(2 * steps, 32)
loader = DataLoader(TensorDataset(rows, rows.sum(1, keepdim=True)), batch_size=2, shuffle=True)
saving = ModelCheckpoint(dirpath=out, filename="{step}", every_n_train_steps=save, save_top_k=-1, save_last=True)
trainer = Trainer(max_steps=steps, accelerator="cpu", callbacks=[saving], logger=False, enable_model_summary=False)
trainer.fit(Small(), loader, ckpt_path="last")
