"""Losses that the training loop minimises, one file each.

Reading order: `loss` (what a loss promises), `plain`, `adversarial`, `maximum_margin`, `cross_lipschitz`, `bounded`,
`stability`, `spectral`.
"""
