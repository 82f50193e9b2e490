"""Checks of whole tables: what is odd about columns, order and classes."""

from holdfast.core.cards.table_check import TableCheck

KIND = TableCheck
