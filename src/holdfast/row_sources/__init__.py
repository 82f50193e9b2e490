"""Rows that are elsewhere: data sets of the hub, and addresses that fsspec knows. They are fetched into a cache and read as files."""
