"""Parts of a step, computed at the same time on cores of their own."""
