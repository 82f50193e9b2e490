"""Facts of a machine and of a model folder as nouns. None is unknown."""
