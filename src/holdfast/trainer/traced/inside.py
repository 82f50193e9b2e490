"""What an operation takes for itself and gives back before it ends, which tensors of shapes do not show. Pure.

Products in 16 bits on a CPU: oneDNN lays the second matrix out anew, block by block, and keeps sums in fp32 between blocks. The sizes are
an envelope of 120 shapes measured with torch 2.13 on two threads (32 to 2,048 rows, 64 to 50,304 terms, 64 to 8,000 columns): never less
than was taken, by at most 2 MiB a thread more. They are of a CPU with AMX; on one without it (an AVX-512 EPYC, one shape tried) nothing
was taken, and a plan is that much too high.
"""

from __future__ import annotations

_MIB = 1 << 20
_LONG, _LONGEST = 2048, 8000  # terms of a sum, from which on it is cut


def product_scratch(rows: int, terms: int, columns: int, threads: int) -> int:
    """Return the scratch bytes of [rows, terms] x [terms, columns] in bf16 on a CPU."""
    if terms >= _LONGEST:
        most = 1.2
    elif rows <= 64:
        most = 0.65
    else:
        most = 1.1 if rows < 512 else 2.1
    copies = threads if rows >= 512 else 1
    laid_out = min(2.2 * terms * columns * copies, most * _MIB * threads)
    sums = min(4 * rows * columns * threads, 1.1 * _MIB * threads) if terms >= _LONG else 0
    return int(laid_out + sums) + (1 << 16)
