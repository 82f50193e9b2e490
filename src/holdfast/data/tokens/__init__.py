"""Rows as tokens: chat template, tokenizer, shards, the token cache, the run's token file."""
