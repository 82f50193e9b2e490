"""The command line."""

from holdfast.cli.main import entry, main

__all__ = ["entry", "main"]
