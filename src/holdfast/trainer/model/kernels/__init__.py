"""Triton kernels, and the operations that launch them. Triton is imported only where one is launched."""
