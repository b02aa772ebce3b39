"""`RadiusMethod`: the interface of everything that finds radii, and the intervals that it yields."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor

from relucert.core.results import RadiusInterval, concatenate
from relucert.verification.verifier import Budget, Query


class RadiusMethod(Protocol):
    """Finds intervals around the distance to the nearest change of decision."""

    def intervals(self, query: Query, budget: Budget, tol: float) -> Iterator[Intervals]:
        """The interval of every input once, some at a time, as soon as they are known.

        The ball of the query is its norm and box with an infinite radius. `tol` is the relative width at which a method that
        narrows intervals may stop. In a strict query lower ends hold for the network as executed in its dtype.
        """
        ...


class Intervals(NamedTuple):
    """The intervals of the inputs at some positions of a query."""

    index: Int[Tensor, " n"]
    found: RadiusInterval

    @staticmethod
    def by_batches(query: Query, size: int, radius: Callable[[Query], RadiusInterval]) -> Iterator[Intervals]:
        """The intervals that a function finds for at most `size` inputs at a time."""
        for index in torch.arange(len(query)).split(size):
            yield Intervals(index, radius(query.restrict(index.to(query.x.device))))

    @staticmethod
    def joined(parts: Iterable[Intervals]) -> RadiusInterval:
        """The intervals of all inputs, in the order of the inputs."""
        every = list(parts)
        order = torch.cat([part.index for part in every]).argsort()
        return concatenate([part.found for part in every])[order]


def unknown(x: Float[Tensor, " batch *input"], name: str) -> RadiusInterval:
    """Intervals of which nothing is known: [0, inf]."""
    zero = x.new_zeros(len(x))
    return RadiusInterval(zero, zero + math.inf, zero > 0, None, zero, [name] * len(x))
