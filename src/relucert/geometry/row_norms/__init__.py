"""The dual norms of all rows of V, which distances are divided by: exact, fast and differentiable.

Reading order: `row_norms` (all networks, and the fast way of plain chains), `product_norms` (products with known rows).
"""
