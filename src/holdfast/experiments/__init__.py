"""The lab: replay one step of a run in a throw-away child, one change at a time."""
