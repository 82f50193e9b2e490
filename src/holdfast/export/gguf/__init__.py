"""Make GGUF files of a base model with an adapter, and ask llama.cpp what they compute."""
