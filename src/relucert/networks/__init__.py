"""Networks as graphs of affine and switching nodes.

Reading order: `nodes` (their two kinds), `traversal` (the graph, and rules that go through it), `network`, `layers/` (the
layers that are understood), `build/` (from a module to a graph), `linear_map` (the affine map of a fixed activation pattern),
`affine_map` (affine maps between switching nodes, and plain chains), `patches`, `local_rows`, `windows` and `conv_rows` (rows
of plain chains and of convolutions), `prediction` (when a decision counts as changed), `execution` (what is assumed of torch),
`unpooled`, `architectures`, `checkpoints`.
"""
