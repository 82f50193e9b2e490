"""Controlled experiments: replay one step of a run in a throw-away child."""
