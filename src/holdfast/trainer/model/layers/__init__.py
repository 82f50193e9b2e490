"""The layers of a step made lean: LoRA, mixed precision, dropout, Liger.

PEFT puts LoRA on in trained/adapters.py; gradient checkpointing is in load.py.
"""
