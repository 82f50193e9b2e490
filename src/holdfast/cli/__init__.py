"""The command line."""

import sys

from holdfast import NATIVE_WINDOWS

if sys.platform == "win32":  # before what is imported below fails there for want of fcntl
    print(f"holdfast: {NATIVE_WINDOWS}", file=sys.stderr)
    raise SystemExit(2)

from holdfast.cli.main import entry, main

__all__ = ["entry", "main"]
