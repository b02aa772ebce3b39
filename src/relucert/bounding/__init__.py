"""Bounds on units and margins over a ball.

Reading order: `interval`, `relaxation` (linear bounds of a ReLU or max pool), `propagation` (backward, to the input),
`preactivations` (all units), `rounding` (what floating point can do), `_dual_ascent` (optimised slopes and multipliers),
`inner_slopes` (the same for pre-activation bounds),
`_ball_relaxation` and `_moment_relaxation` (ReLUs that share a ball), `methods/` (one file a method), `split_bounds` and
`reduced_network` (subproblems of branch and bound), `_spectral` (norms of layers), `_gradient_bounds` and `_relaxed_rows`
(bounds with gradients, for training), `projected` (margins estimated by random projections, for training).
"""
