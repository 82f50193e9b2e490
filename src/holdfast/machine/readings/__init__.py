"""What a machine is doing while it trains: read again and again, kept in a file of bounded size, judged by signs."""
