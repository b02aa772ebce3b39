"""Colours: no unit reads two entries of one colour, columns have the entries of rows, whatever the network is made of."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relucert.networks.colouring import Colouring, push_columns
from relucert.networks.linear_map import LinearMap
from relucert.networks.network import Network
from zoo import NETWORKS, inputs, network, randomised


def widths_of(net: Network) -> tuple[tuple[int, ...], ...]:
    return tuple(windows.widths for windows in net.graph.windows)


SWITCHING = [name for name in NETWORKS if name != "linear"]


@pytest.mark.parametrize("name", SWITCHING)
def test_windows_hold_all_that_units_read(name: str) -> None:
    """Of the Jacobian of every switching node, with random weights: a row that is not zero lies within the widths."""
    net = network(name)
    assert len(net.graph.windows) == len(net.switches)
    for node, widths in zip(net.switches, widths_of(net), strict=True):
        ones = LinearMap(net.graph, net.pattern(inputs(net, 8)))
        size = len(torch.zeros(node.shape).flatten())
        rows = ones.pull_back(
            node.index, torch.eye(size, dtype=net.dtype).reshape(1, size, *node.shape).expand(8, -1, *node.shape)
        )
        used = (rows != 0).any(0)
        for axis, width in enumerate(widths):
            along = used.movedim(axis + 1, 1).reshape(size, net.input_shape[axis], -1).any(2)
            places = torch.arange(along.shape[1])
            first = torch.where(along, places, len(places)).amin(1)
            last = torch.where(along, places, -1).amax(1)
            assert int((last - first + 1).max()) <= width <= net.input_shape[axis]


def test_widths_of_plain_windows() -> None:
    module = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, groups=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 2, (3, 1), dilation=(2, 1)),
        nn.ReLU(), nn.Flatten(), nn.Linear(2 * 6 * 10, 3), nn.ReLU(), nn.Linear(3, 2),
    )  # fmt: skip
    net = Network(randomised(module, 0), (2, 20, 20)).eval()
    assert widths_of(net) == ((1, 3, 3), (1, 4, 4), (2, 12, 4), (2, 20, 20))


class Shifted(nn.Module):
    """Two branches whose windows lie side by side, and one that turns the image over."""

    def __init__(self):
        super().__init__()
        self.conv, self.out = nn.Conv2d(1, 1, 3, bias=False), nn.Linear(36, 2)

    def forward(self, x: Tensor) -> Tensor:
        z = F.relu(self.conv(F.pad(x, (4, 0, 0, 0))) + self.conv(F.pad(x, (0, 4, 0, 0))))
        return self.out(F.relu(z[:, :, :6, :6] + z.transpose(2, 3)[:, :, :6, :6]).flatten(1))


def test_widths_do_not_depend_on_the_weights() -> None:
    net = Network(randomised(Shifted(), 0), (1, 8, 8)).eval()
    assert widths_of(net)[0] == (1, 3, 7)
    with torch.no_grad():
        net.module.conv.weight.zero_()  # type: ignore[union-attr]
    again = Network(net.module, (1, 8, 8)).eval()
    assert widths_of(again) == widths_of(net)


def test_colours_repeat_along_every_axis() -> None:
    colouring = Colouring((2, 5, 7), (2, 3, 4))
    assert colouring.count == 24
    colours = colouring.colours
    assert torch.equal(colours[:, 3:], colours[:, :-3])
    assert torch.equal(colours[..., 4:], colours[..., :-4])
    assert len(colours[:, :3, :4].unique()) == 24
    like = torch.zeros(0, dtype=torch.float64)
    columns = torch.cat([colouring.columns(start, start + 7, like) for start in range(0, 24, 7)], 1)
    assert columns.shape == (1, 24, 2, 5, 7)
    assert bool((columns.sum(1) == 1).all())


@pytest.mark.parametrize("name", SWITCHING)
def test_columns_have_the_entries_of_rows(name: str) -> None:
    net = network(name)
    linear = LinearMap(net.graph, net.pattern(inputs(net, 3)))
    for node, widths in zip(net.switches, widths_of(net), strict=True):
        colouring = Colouring(net.input_shape, widths)
        size = len(torch.zeros(node.shape).flatten())
        units = torch.eye(size, dtype=net.dtype).reshape(1, size, *node.shape).expand(3, -1, *node.shape)
        rows = linear.pull_back(node.index, units).flatten(2)
        columns = push_columns(linear, colouring.columns(0, colouring.count, rows), [node.index])[node.index]
        found = columns.expand(3, *columns.shape[1:]).flatten(2).transpose(1, 2)
        # Every entry of a row is in the column of its colour; no other entry of the row has that colour.
        expected = torch.zeros_like(found).index_add(2, colouring.colours.flatten(), rows)
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)
        assert torch.equal((expected != 0).sum(2), (rows != 0).sum(2))
