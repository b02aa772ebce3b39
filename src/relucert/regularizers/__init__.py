"""Regularisers: differentiable terms that training adds to the loss, one file each."""
