"""Who works on blocks of rows: threads, processes, a Ray cluster; and the one pass of a run's build."""
