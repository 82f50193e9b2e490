"""Supervised fine-tuning of a causal language model: its rows, its model, its proofs, its evaluation."""
