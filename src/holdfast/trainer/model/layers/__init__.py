"""The layers of a step made lean: LoRA, mixed precision, dropout, Liger."""
