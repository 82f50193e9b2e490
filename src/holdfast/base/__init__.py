"""Primitives that know nothing of runs: errors, files, locks, processes' names, units. Standard library and small packages only."""

import sys

from holdfast import NATIVE_WINDOWS

if sys.platform == "win32":
    raise ImportError(NATIVE_WINDOWS)
