"""The dual norms of all rows of V, which distances are divided by: exact, fast and differentiable.

Reading order: `row_norms` (all networks, and the fast way of plain chains), `chain_rows` (what rows of chains are made of),
`column_norms` (layers of any graph that see windows), `_product_norms` (products with known rows), `_gram_norms` (lengths
without rows), `norm_bounds` (cheap bounds on all norms), `chosen_norms` (exact norms of some rows).
"""
