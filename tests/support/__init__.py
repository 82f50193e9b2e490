"""What several test files share and pytest does not collect."""
