"""Rows: files, checks, chat template, tokens. No torch."""
