"""Failure cards: what programs print when a run dies, one mechanism a file."""

from holdfast.core.failure import Failure

KIND = Failure
