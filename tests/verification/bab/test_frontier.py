"""Leaves come back as they were put in, at the units that were open, and only there."""

from __future__ import annotations

import torch

from relucert.verification.bab._subproblems import Frontier, Leaves
from zoo import network


def test_leaves_come_back_at_open_units():
    net = network("fc deep")
    relus = list(net.switches)
    generator = torch.Generator().manual_seed(0)
    unstable = {node.index: torch.rand(3, *node.shape, generator=generator) < 0.5 for node in relus}
    store = Frontier(relus, unstable, 3, torch.float64)
    owner = torch.tensor([2, 0, 2, 1, 0])

    def drawn(low, high):
        return {
            node.index: torch.randint(low, high, (5, *node.shape), generator=generator) * unstable[node.index][owner]
            for node in relus
        }

    splits = {index: value.to(torch.int8) for index, value in drawn(-1, 2).items()}
    slopes = {index: value.double() / 4 for index, value in drawn(0, 5).items()}
    betas = {index: value.double() for index, value in drawn(0, 9).items()}
    units = torch.arange(10).reshape(5, 2)
    slots = torch.tensor(store.add(owner, Leaves(splits, slopes, betas), units))
    assert store.size() == sum(store.size(point) for point in range(3)) > 0
    order = torch.tensor([3, 0, 4, 1, 2])
    back, candidates = store.take(owner[order], slots[order])
    for before, after in zip((splits, slopes, betas), back, strict=True):
        for index, values in after.items():
            assert torch.equal(values, before[index][order].to(values.dtype))
    assert torch.equal(candidates, units[order])
    again = store.add(owner, Leaves(splits, slopes, betas), units)
    assert sorted(again) == sorted(slots.tolist())  # places are used again
    store.forget(2)
    assert store.size(2) == 0
    assert store.size() > 0
