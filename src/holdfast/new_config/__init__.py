"""A first config: look at machine, rows and model, choose as an expert would, and write it with the reasons."""
