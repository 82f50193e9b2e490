"""The protocol between the loop and what it trains."""
