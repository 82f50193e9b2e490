"""Checks of the texts of training rows: one rule a file."""

from holdfast.core.datacheck import DataCheck

KIND = DataCheck
