"""Everything that needs no network: norms, balls, properties, methods, results and errors.

Reading order: `norms`, `ball` (with `linear_minimum` and `offsets`), `rounding`, `properties`, `methods`, `verdict`, `results`,
`errors`, `versions`, `pieces` (functions of many rows, some at a time), `products` (fast float32 products),
`interrupts` (Ctrl-C that waits).
"""
