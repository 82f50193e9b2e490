"""`python -m holdfast VERB ...` is the same as `holdfast VERB ...`."""

from holdfast.cli import entry

if __name__ == "__main__":
    entry()
