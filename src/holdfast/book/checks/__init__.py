"""Checks of a machine before the run: one fact that breaks or slows runs a file."""

from holdfast.book.kinds.check import Check

KIND = Check
