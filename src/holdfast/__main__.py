"""`python -m holdfast VERB ...` is the same as `holdfast VERB ...`: it imports nothing from the current folder either."""

import os
import sys

if sys.path and sys.path[0] == os.getcwd() and not __file__.startswith(f"{sys.path[0]}/holdfast/"):  # noqa: PTH109  pathlib imports more
    del sys.path[0]

from holdfast.cli.main import entry

if __name__ == "__main__":
    entry()
