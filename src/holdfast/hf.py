"""holdfast inside a transformers Trainer, or any subclass of it: `from holdfast.hf import HoldfastCallback`.."""

from holdfast.callback.hf import HoldfastCallback

__all__ = ["HoldfastCallback"]
