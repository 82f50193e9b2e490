"""Primitives that know nothing of runs: errors, files, locks, processes' names, units. Standard library and small packages only."""

import sys

NATIVE_WINDOWS = "native Windows is not supported: use WSL 2, which runs what is made for Linux; in PowerShell: wsl --install"
if sys.platform == "win32":
    raise ImportError(NATIVE_WINDOWS)
