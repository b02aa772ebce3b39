"""Regularisers: differentiable functions of the weights that training adds to the loss, one file each.

`mmr` is the paper's maximum margin regulariser, `cross_lipschitz` the one it is compared with, `spectral` an estimate of the
Lipschitz constant.
"""
