"""Roots of branch and bound on deep networks: bounds over whole balls with optimised inner slopes, in float32 if possible."""

from __future__ import annotations

import torch

from relucert.bounding.preactivations import Bounding, UnitBounds
from relucert.bounding.rounding import Margins
from relucert.verification.verifier import Query

ROOT_SHARE = 0.4  # of the seconds of a point, for its root


def deep_bounds(query: Query, method: Bounding) -> tuple[UnitBounds, Margins]:
    """Pre-activation bounds in float64, and margins.

    Where the network is in float32 so is the computation, with its rounding charged: that is twice as fast, and rounding is far
    below what optimised slopes gain.
    """
    net, double, ball, prop = query.net, query.double, query.ball, query.prop
    if net.dtype != torch.float32 or net.graph.max_pools or not prop.fits(torch.float32):
        return method.prove(double, method.start(double, query.wide, ball, net.dtype), query.wide, ball, prop)
    known = method.start(net, query.x, ball, net.dtype)
    units, margins = method.prove(net, known, query.x, ball, prop.to(torch.float32))
    return units.recharged(double, query.wide, ball), Margins.unstacked(margins.stacked().double())
