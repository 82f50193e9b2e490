"""What is done after an attempt has ended. Pure: no clock, no files, no processes."""
