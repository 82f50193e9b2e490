"""The command line: its parser, and one file a command."""

import sys

try:
    import holdfast.base  # noqa: F401  (says where to go on native Windows, before what is imported below fails for want of fcntl)
except ImportError as error:
    print(f"holdfast: {error}", file=sys.stderr)
    raise SystemExit(2) from None

from holdfast.cli.main import entry, main

__all__ = ["entry", "main"]
