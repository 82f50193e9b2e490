"""Remedy cards: changes a run can go on with, each tried on the failing step first. The fields are those of core/remedy.py."""

from holdfast.core.remedy import RemedyCard as KIND

__all__ = ["KIND"]
