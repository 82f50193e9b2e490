"""What `verify`, `export` and the A/B page show."""
