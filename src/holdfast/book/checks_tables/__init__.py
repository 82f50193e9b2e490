"""Checks of whole tables: what is odd about columns, order and classes."""

from holdfast.book.kinds.table_check import TableCheck

KIND = TableCheck
