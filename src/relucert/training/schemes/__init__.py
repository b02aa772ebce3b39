"""Training schemes: a scheme is a loss, one file each."""
