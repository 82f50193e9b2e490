"""holdfast for Python programs and notebooks. Commands do the work, in processes of their own; nothing is done in a second way here."""
