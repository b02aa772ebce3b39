"""Rows of single units on their receptive fields: the same norms as rows pulled back through the graph."""

from __future__ import annotations

import pytest
import torch

import zoo
from geometry.test_screening import three_convolutions
from relucert.geometry.region import LinearRegion
from relucert.networks.affine_map import chain
from relucert.networks.windows import Units, WindowRows


@pytest.mark.parametrize(("name", "depth"), [("cnn", 1), ("cnn colour", 1), ("three", 1), ("three", 2)])
def test_window_rows_are_the_rows(name: str, depth: int) -> None:
    net = three_convolutions() if name == "three" else zoo.network(name)
    x = zoo.inputs(net, 3)
    steps = chain(net.graph)
    assert steps is not None
    region = LinearRegion.at(net, x)
    work = WindowRows(steps[: depth + 1], net.input_shape)
    count = region.hyperplanes[depth].count
    units = Units(torch.arange(3).repeat_interleave(count), torch.arange(count).repeat(3), steps[depth].shape)  # type: ignore[arg-type]
    slopes = [net.relus[place].op.gate(region.patterns[place], x.dtype) for place in range(depth)]
    rows = work.rows(units, work.factors(), work.tables(slopes)) * units.pick(work.inside(x), work.grids[0])
    start = sum(hyperplanes.count for hyperplanes in region.hyperplanes[:depth])
    expected = region.rows(torch.arange(start, start + count).expand(3, -1)).flatten(0, 1).flatten(1)
    for q in (1, 2, torch.inf):
        torch.testing.assert_close(rows.norm(q, 1), expected.norm(q, 1))
