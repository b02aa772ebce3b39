"""Two-dimensional slices through input space: the linear regions and decisions in a plane.

Reading order: `plane`, `polygons` (exact cells), `slices`.
"""
