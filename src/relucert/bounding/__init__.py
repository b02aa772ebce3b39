"""Bounds on units and margins over a ball.

Reading order: `interval`, `relaxation` (linear bounds of a ReLU or max pool), `propagation` (backward, to the input),
`preactivations` (all units), `rounding` (what floating point can do), `dual_ascent` (optimised slopes and multipliers),
`ball_relaxation` and `moment_relaxation` (ReLUs that share a ball), `methods/` (one file a method), `split_bounds` and
`reduced_network` (subproblems of branch and bound), `spectral` (norms of layers).
"""
