"""The linear regions of a piecewise affine classifier: the idea of the paper, one concept a file."""
