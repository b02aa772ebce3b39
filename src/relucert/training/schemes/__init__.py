"""Training schemes, one file each: a frozen dataclass of parameters that makes a loss of `training.losses`.

Reading order: `scheme` (what a scheme promises), `plain`, `adversarial`, `maximum_margin`, `cross_lipschitz`, `bounded`,
`stability`, `spectral`; `registry` has all of them by name. Nothing here imports torch until a loss is made, so that the
command line checks parameters at once.
"""
