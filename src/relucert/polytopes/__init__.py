"""Linear and quadratic programs over polytopes in numpy, whose answers are proved from multipliers, never believed.

Reading order: `certificates` (rows and limits, lower bounds by duality), `farkas` (emptiness), `polytope` (the distance to a
face), then the solvers `least_distance`, `least_distances`, `linear_distance`, `power_distance`, `highs` (the adapter for
linear and mixed-integer programs), and `interior` (a point inside a face).
"""
