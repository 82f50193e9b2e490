"""What a model folder says of itself: shapes, types, packed weights. Loads no weights."""
