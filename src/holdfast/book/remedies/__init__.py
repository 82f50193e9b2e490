"""Remedy cards: changes a run can go on with, each tried on the failing step first. The fields are those of core/cards/remedy.py."""

from holdfast.core.cards.remedy import RemedyCard as KIND

__all__ = ["KIND"]
