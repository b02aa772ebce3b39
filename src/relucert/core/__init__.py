"""Everything that needs no network: norms, balls, properties, methods, results and errors.

Reading order: `norms`, `ball` (with `water_level`, `linear_minimum`, `projection`, `sampling`), `rounding`, `properties`,
`methods`, `verdict`, `results`, `errors`, `modes`, `versions`.
"""
