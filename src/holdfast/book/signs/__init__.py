"""Signs: what a watchful person would say about the course of a run. Each is told once; none stops a run."""

from holdfast.book.kinds.sign import Sign

KIND = Sign

__all__ = ["KIND"]
