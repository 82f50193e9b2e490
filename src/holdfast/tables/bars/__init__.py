"""Bars of a market (time, open, high, low, close, volume): read, judged, merged with a daily VIX, turned into features."""
