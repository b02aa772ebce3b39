"""The dual norms of all rows of V, which distances are divided by: exact, fast and differentiable.

Reading order: `row_norms` (which way is taken), `chain_norms` (plain chains of layers), `product_norms` (their products).
"""
