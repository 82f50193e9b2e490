"""Faster ways to compute, climbed by `holdfast tune`."""

from holdfast.book.kinds.rung import RungCard as KIND

__all__ = ["KIND"]
