"""Watch runs from a browser, a terminal or a monitoring system: journals are read, nothing is written."""
