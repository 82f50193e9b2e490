"""Checks of the texts of training rows: one rule a file."""

from holdfast.book.kinds.data_check import DataCheck

KIND = DataCheck
