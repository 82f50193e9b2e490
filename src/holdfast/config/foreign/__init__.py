"""Configs, command lines and scripts of other trainers: read, never run, and made into a config of holdfast key by key."""
