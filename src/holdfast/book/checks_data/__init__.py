"""Checks of the texts of training rows: one rule a file."""

from holdfast.core.cards.data_check import DataCheck

KIND = DataCheck
