"""Rows: files, checks, chat templates, tokens, repetitions; making, cleaning and collecting them. No torch."""
