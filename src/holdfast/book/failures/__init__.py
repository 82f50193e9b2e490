"""Failure cards: what programs print when a run dies, one mechanism a file."""

from holdfast.book.kinds.failure import Failure

KIND = Failure
