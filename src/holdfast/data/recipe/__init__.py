"""Rows that are not there yet: drawn from a recipe, or written by a model."""
