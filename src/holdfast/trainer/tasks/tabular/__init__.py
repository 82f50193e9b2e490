"""Task `tabular`: a network learns a column of tables."""
