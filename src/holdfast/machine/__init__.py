"""The facts of a machine: read, recorded, compared. Judges none of them."""
