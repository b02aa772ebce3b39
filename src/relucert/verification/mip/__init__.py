"""Networks as mixed-integer programs, and proofs of what a solver claims.

Reading order: `mip` (the method), `encoding`, `wiring` and `program` (the network as rows and columns), `problem`, `scaling`,
`solver` (HiGHS) and `scip`, `tightening` (bounds by multipliers), `lp_tree` (proofs), `distortion` (radii).
"""
