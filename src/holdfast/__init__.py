"""holdfast makes fine-tuning runs finish. Importing this loads nothing: neither torch nor any other package."""

__version__ = "0.1.0"
