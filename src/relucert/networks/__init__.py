"""Networks as graphs of affine and switching nodes.

Reading order: `affine` and `switching` (the two kinds of nodes), `graph`, `traversal` (rules that go through the graph),
`network`, `layers/` (the layers that are understood), `build/` (from a module to a graph), `linear_map` (the affine map of a
fixed activation pattern), `affine_map` (the affine map between switching nodes), `chains`, `patches` and `local_rows` (rows of
plain chains and of convolutions), `prediction` (when a decision counts as changed), `unpooled`, `architectures`, `checkpoints`.
"""
