"""Bounds on units and margins over a ball.

Reading order: `interval`, `relaxation` (linear bounds of a ReLU or max pool), `propagation` (backward, to the input),
`preactivations` (all units), `rounding` (what floating point can do), `methods/` (one file a method), `split_bounds` and
`reduced_network` (subproblems of branch and bound), `spectral` (norms of layers).
"""
