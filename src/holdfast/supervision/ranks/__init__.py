"""`holdfast train` where another launcher started it as one of several ranks."""
