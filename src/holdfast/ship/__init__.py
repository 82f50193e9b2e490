"""Ship a result: prove it better, export it and prove the export equal, serve it, keep a list of what was shipped."""
