"""Export an adapter, prove the export equal, keep a list of what was shipped."""
