"""Other programs' checkpoints: found, and proven whole without running anything that is in them."""
