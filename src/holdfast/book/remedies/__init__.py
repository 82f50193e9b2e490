"""Remedy cards: changes a run can go on with, each tried on the failing step first. The fields are those of book/kinds/remedy.py."""

from holdfast.book.kinds.remedy import RemedyCard as KIND

__all__ = ["KIND"]
