"""Launcher cards: the training commands that are known, and how each is told to go on. The fields are those of core/cards/launcher.py."""

from holdfast.core.cards.launcher import LauncherCard as KIND

__all__ = ["KIND"]
