"""Certificate files: what `relucert check` needs to derive a verdict again, without this package.

Reading order: `prover` (from a decision to a file), `_rules` (proofs by backward passes whose slopes follow from a rule, with
radii by spectral norms where they help), `_trees` (proofs by branch and bound, with slopes and multipliers for every leaf; one
leaf is what `alpha` proves). Every certificate is run through the checker before it is written. Docs: docs/proofs.md.
"""
