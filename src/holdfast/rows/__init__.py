"""Data: reader, formats, checks, chat template, tokens. No torch."""
