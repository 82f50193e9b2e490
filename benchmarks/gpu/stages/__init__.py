"""What each stage of confidence.py does: a module with `run(place)`, which answers the stage's questions one by one as they are known."""
