"""The tables of the paper: what it published, what was measured here, and both side by side."""
