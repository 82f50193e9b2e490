"""What a row means and whether it can be trained on: layouts, checks, rules. Tokenises nothing."""
