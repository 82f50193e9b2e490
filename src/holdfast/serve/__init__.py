"""Serve base and tuned model behind one OpenAI-compatible endpoint on loopback."""
