"""What runs inside other people's training processes, in their Python: the standard library and torch, nothing else of holdfast.

Nothing here may be the reason that a training ends: who calls it is guarded, and steps aside at the first error of its own.
"""
