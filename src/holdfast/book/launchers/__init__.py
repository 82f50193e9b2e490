"""Launcher cards: the training commands that are known, and how each is told to go on. The fields are those of book/kinds/launcher.py."""

from holdfast.book.kinds.launcher import LauncherCard as KIND

__all__ = ["KIND"]
