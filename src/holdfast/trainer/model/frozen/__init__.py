"""How frozen base weights are held: in 16 bits, 4 or 8 bits, in main memory, in pieces on several ranks."""
