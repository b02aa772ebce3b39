"""Training schemes, one file a scheme: a loss, and a frozen dataclass of its parameters that makes it.

Reading order: `scheme` (what a scheme promises), `plain`, `adversarial`, `maximum_margin`, `cross_lipschitz`, `bounded`,
`stability`, `spectral`; `registry` has all of them by name.
"""
