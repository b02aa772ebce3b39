"""The checker of proofs: re-derives every bound of a certificate file, and imports nothing of the rest but numpy.

Read in this order: `arithmetic` (sums charged for rounding, or rational numbers), `network` (weights as exact numbers, layers
as affine maps with an adjoint), `minima` (of a layer's terms over a box or a ball, and the inputs of a certificate), `bounds`
(intervals and backward passes), `check` (the file, and whether it is a proof). The format, and what is trusted: docs/proofs.md.
"""
