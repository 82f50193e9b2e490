"""Failure cards: what programs print when a run dies, one mechanism a file."""

from holdfast.core.cards.failure import Failure

KIND = Failure
