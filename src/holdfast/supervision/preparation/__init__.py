"""Everything between a config and the first start of a trainer."""
