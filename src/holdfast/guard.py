"""holdfast inside a plain PyTorch loop: `from holdfast.guard import guard`.."""

from holdfast.callback.guard import Guard, guard

__all__ = ["Guard", "guard"]
