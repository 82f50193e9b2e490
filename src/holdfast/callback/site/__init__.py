"""A folder for PYTHONPATH: its sitecustomize is what counts."""
