"""Tables of what one key of a config may be: optimizers, and formats of frozen weights."""
