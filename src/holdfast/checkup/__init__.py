"""Judge a machine before a run: findings, the environment that suits it, what the doctor shows."""
