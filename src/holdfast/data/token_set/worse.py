"""How a token of an answer that is not to be given is told from the others."""

WORSE = 2  # added to what `learned` says of a token of the worse answer, and of what stands before it
