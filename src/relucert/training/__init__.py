"""One training loop, one file a scheme."""
