"""What people look at: reports, pages, sentences."""
