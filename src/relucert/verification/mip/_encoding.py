"""The encoding of a network in float64, shared by the programs of all points, and the first columns of a program."""

from __future__ import annotations

import torch
from torch import Tensor

from relucert.bounding.preactivations import UnitBounds
from relucert.core.ball import Ball
from relucert.networks.network import Network
from relucert.networks.sparse_maps import sparse_maps
from relucert.verification.mip._program import SLACK, Program, Ranges


class Encoding:
    """The graph of a network in float64, and its affine parts as matrices."""

    def __init__(self, double: Network):
        self.double, self.graph = double, double.graph
        self.wires = sparse_maps(double.graph)

    def ranges(self, bounds: UnitBounds, executed: bool) -> dict[int, Ranges]:
        """Pre-activation bounds of a point, with slack for the solver's tolerance and for rounding.

        Rows are off by what the computation in float64 rounds and, if `executed`, by what the network rounds when it runs.
        """
        assert bounds.rounding is not None
        found = {}
        for node in self.graph.switches:
            within, drift = bounds.inputs[node.index], bounds.rounding.before[node.index][0]
            # Twice: coefficients are multiplied out first, and then summed up with the columns.
            rounding = 2 * (drift.sum(0) if executed else drift[0]).numpy()
            low, high = within.lower.flatten().numpy(), within.upper.flatten().numpy()
            found[node.index] = Ranges(low, high, SLACK + rounding, rounding)
        return found

    def program(self, x: Tensor, ball: Ball, scale: float) -> Program:
        """A program with the input of a point alone: the step from x, in units of `scale`, in the box around the ball."""
        low, high = ball.hull(x)
        # Differences of float64 numbers, rounded up.
        up = torch.full_like(x, torch.inf)
        below, above = (torch.nextafter(side, up).flatten().numpy() for side in (x - low, high - x))
        return Program(x.flatten().numpy(), below, above, scale)
