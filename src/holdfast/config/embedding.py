"""How wide the embedding of a category is: the plan and the network ask the same place. Pure."""

from __future__ import annotations


def embedding_width(values: int, asked: int | None) -> int:
    """Numbers that a category of so many values becomes: asked for, or half as many as values, 50 at most (fast.ai's first rule)."""
    return asked or min(50, (values + 2) // 2)
