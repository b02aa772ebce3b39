"""The checker of proofs: re-derives every bound of a certificate file, and imports nothing of the rest but numpy.

Read in this order: `arithmetic` (sums charged for rounding, or rational numbers), `network` (weights as exact numbers, layers
as affine maps with an adjoint), `ball` (the minimum of a linear function), `bounds` (intervals and backward passes), `check`
(the file, and whether it is a proof). The format of the files and what has to be trusted: docs/proofs.md.
"""
