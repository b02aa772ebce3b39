"""Max pools made of ReLUs: the same function on every kind of pool, and every bound of the new network holds."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import relucert as rc
from asserts import assert_affine_on_region, assert_sound
from relucert.bounding._spectral import affine_part, node_bound
from relucert.bounding.methods.ibp import IBP
from relucert.bounding.methods.kw import KW
from relucert.bounding.preactivations import Bounding
from relucert.core.ball import Ball
from relucert.core.errors import CheckpointError, InvalidInput, UnsupportedLayer
from relucert.core.properties import class_stays
from relucert.networks.build.rebuilding import describe, rebuild
from relucert.networks.checkpoints import digest, load, save
from relucert.networks.layers.entries import Gather
from relucert.networks.network import Network
from relucert.networks.nodes import Affine, Source
from relucert.networks.unpooled import unpooled
from relucert.regularizers.spectral import lipschitz_estimate
from zoo import inputs, network, randomised


def pooled(pool: nn.Module, *before: nn.Module, shape: tuple[int, ...] = (2, 5, 6), seed: int = 0) -> Network:
    """A pool behind some layers, and a linear layer behind it."""
    module = nn.Sequential(*before, pool, nn.Flatten())
    module.append(nn.Linear(module(torch.zeros(1, *shape)).shape[1], 3))
    return Network(randomised(module, seed).double(), shape).eval()


class Selected(nn.Module):
    """Entries by an index, once as a key and once by its function, some of them twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(4, 3)
        self.register_buffer("key", torch.tensor([[0, 5], [2, -1]]))
        self.register_buffer("row", torch.tensor([3, 0, 3, 1]))

    def forward(self, x: Tensor) -> Tensor:
        z = torch.relu(self.first(x)[:, self.key].flatten(1))
        return self.last(torch.index_select(z, 1, self.row) - z.index_select(-1, self.row).relu())


NETS: dict[str, Callable[[], Network]] = {
    "max pool": lambda: network("max pool"),
    "dead windows": lambda: network("dead windows"),
    "on the input": lambda: pooled(nn.MaxPool2d(2)),
    "padding": lambda: pooled(nn.MaxPool2d(3, 2, 1), nn.Conv2d(2, 2, 3)),
    "ceil mode": lambda: pooled(nn.MaxPool2d(2, 2, ceil_mode=True), nn.Conv2d(2, 2, 2), nn.ReLU()),
    "dilation": lambda: pooled(nn.MaxPool2d(2, 2, 1, dilation=2), nn.Conv2d(2, 2, 1), nn.ReLU()),
    "overlapping": lambda: pooled(nn.MaxPool2d(3, 1), nn.Conv2d(2, 1, 2), nn.LeakyReLU(0.1)),
    "row": lambda: pooled(nn.MaxPool2d((1, 3)), nn.Conv2d(2, 2, 2)),
    "one entry": lambda: pooled(nn.MaxPool2d(1, 2), nn.Conv2d(2, 2, 2)),
    "two pools": lambda: pooled(nn.MaxPool2d(2, 2, 1), nn.MaxPool2d(3, 1), nn.Conv2d(2, 2, 2), nn.ReLU()),
}
nets = pytest.mark.parametrize("name", NETS)
selected = {"selected": lambda: Network(randomised(Selected(), 3).double(), (4,)).eval()}


@nets
def test_the_function_is_the_same(name: str) -> None:
    net = NETS[name]()
    other = unpooled(net)
    x = 4 * inputs(net, 50) - 2
    for found in (other(x), other.logits(x)):
        torch.testing.assert_close(found, net(x), rtol=1e-12, atol=1e-12)
    assert {node.kind for node in other.switches} <= {"relu"}
    assert unpooled(other) is other
    assert other.dtype == torch.float64
    assert not other.training


@pytest.mark.parametrize(("kernel", "relus"), [((2, 2), 3), ((1, 3), 2), ((3, 3), 8), ((5, 6), 29), ((1, 1), 0)])
def test_a_window_of_k_entries_has_one_relu_less(kernel: tuple[int, int], relus: int) -> None:
    windows = (5 // kernel[0]) * (6 // kernel[1])
    other = unpooled(pooled(nn.MaxPool2d(kernel)))
    assert other.hidden_units == 2 * windows * relus
    assert len(other.switches) == math.ceil(math.log2(relus + 1))


def test_windows_that_overlap_share_their_pairs() -> None:
    """In one row of six entries four windows of three: (0, 1), (1, 2), (2, 3), (3, 4), and each with the entry behind."""
    other = unpooled(pooled(nn.MaxPool2d((1, 3), 1), shape=(1, 1, 6)))
    assert [math.prod(node.shape) for node in other.switches] == [4, 4]


def test_a_network_without_pools_is_its_own() -> None:
    net = network("cnn")
    assert unpooled(net) is net


def test_weights_are_those_of_now_and_their_own() -> None:
    net = network("max pool", torch.float32)
    before = unpooled(net)
    x = inputs(net, 4)
    logits = before(x)
    with torch.no_grad():
        for weight in net.parameters():
            weight.mul_(2)
    assert torch.equal(before(x), logits)
    torch.testing.assert_close(unpooled(net)(x), net(x))
    assert unpooled(net).dtype == torch.float32


def test_networks_without_weights_keep_their_dtype() -> None:
    net = Network(nn.Sequential(nn.MaxPool2d(2), nn.Flatten()), (1, 2, 4)).double().eval()
    assert unpooled(net).dtype == net.dtype == torch.float64
    assert torch.equal(unpooled(net)(inputs(net)), net(inputs(net)))


def test_windows_of_padding_alone_are_named() -> None:
    net = Network(nn.Sequential(nn.MaxPool2d(2, 1, 1, 5), nn.ReLU(), nn.Flatten(), nn.Linear(1, 2)), (1, 4, 4))
    with pytest.raises(InvalidInput, match=r"layer '0' \(max_pool2d\) must see an entry in every window, got one of"):
        unpooled(net)


# Gathered entries.


@pytest.mark.parametrize("name", [*NETS, "selected"])
def test_gathering_has_its_adjoint_and_its_norm(name: str) -> None:
    net = unpooled((NETS | selected)[name]())
    generator = torch.Generator().manual_seed(0)
    nodes = [node for node in net.graph if isinstance(node.op, Gather)]
    assert nodes
    for node in nodes:
        op = node.op
        assert isinstance(op, Gather)
        z = torch.randn(3, *op.in_shapes[0], generator=generator, dtype=torch.float64)
        y = torch.randn(3, *node.shape, generator=generator, dtype=torch.float64)
        torch.testing.assert_close((op.linear(z) * y).sum(), (z * op.transpose(y)[0]).sum(), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(Affine.transpose(op, y)[0], op.transpose(y)[0], rtol=1e-12, atol=1e-12)
        size = math.prod(op.in_shapes[0])
        matrix = op.linear(torch.eye(size, dtype=torch.float64).reshape(size, *op.in_shapes[0])).flatten(1)
        exact = float(torch.linalg.matrix_norm(matrix, 2))
        assert exact * (1 - 1e-12) <= node_bound(op, node.shape) <= exact * (1 + 1e-9)


@pytest.mark.parametrize("name", [*NETS, "selected"])
def test_checkpoints_hold_gathered_entries(name: str, tmp_path) -> None:
    net = unpooled((NETS | selected)[name]())
    save(net, tmp_path / "net.safetensors")
    again = load(tmp_path / "net.safetensors")
    assert torch.equal(again(inputs(net)), net(inputs(net)))
    assert digest(again) == digest(net)
    assert [node.kind for node in again.graph] == [node.kind for node in net.graph]


def test_a_table_that_does_not_fit_is_a_damaged_description() -> None:
    description, tensors = describe(selected["selected"]())
    (name,) = [name for name, value in tensors.items() if value.dim() == 1 and not value.is_floating_point()]
    with pytest.raises(CheckpointError, match=r"index must hold places in -4..3, got 0..9"):
        rebuild(description, tensors | {name: torch.tensor([0, 9, 1, 2])})


@pytest.mark.parametrize(
    ("index", "key", "message"),
    [
        (torch.tensor([0, 1]), lambda z, index: z[0:1], "along the batch axis"),
        (torch.tensor([0, 1]), lambda z, index: z[None], "along the batch axis"),
        (torch.tensor([0, 1]), lambda z, index: z[index], "or by an index buffer"),
        (torch.tensor([0, 1]), lambda z, index: z.reshape(-1, 2, 2)[:, index].flatten(1), "flatten the value first"),
        (torch.tensor([True] * 2 + [False] * 2), lambda z, index: z[:, index], "whole numbers, got dtype torch.bool"),
        (torch.tensor([0, 1]), lambda z, index: torch.index_select(z, 0, index), "along the batch axis"),
    ],
)
def test_other_selections_are_named(index: Tensor, key: Callable[[Tensor, Tensor], Tensor], message: str) -> None:
    class Selecting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("index", index)

        def forward(self, z: Tensor) -> Tensor:
            return key(z, self.index)

    with pytest.raises(UnsupportedLayer, match=message):
        Network(Selecting(), (4,))


def test_places_outside_are_named() -> None:
    module = Selected()
    module.row = torch.tensor([0, 1, 4, 2])
    with pytest.raises(InvalidInput, match=r"index must hold places in -4..3, got 0..4"):
        Network(module, (4,))


def test_an_entry_that_is_taken_twice_does_not_move_twice() -> None:
    """The difference of an entry and itself is zero: bounds of linear nodes are exact, whatever is taken where."""
    owner = nn.Linear(2, 2, bias=False).double()
    owner.weight.data = torch.tensor([[1.0, -1.0], [1.0, 1.0]], dtype=torch.float64)

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = owner
            self.register_buffer("index", torch.tensor([0, 0]))

        def forward(self, z: Tensor) -> Tensor:
            return torch.relu(self.inner(z[:, self.index]))

    net = Network(Twice(), (3,)).eval()
    found = rc.bounds(net, torch.full((1, 3), 0.5, dtype=torch.float64), Ball(math.inf, 0.25), "ibp")
    (within,) = found.inputs.values()
    torch.testing.assert_close(within.lower, torch.tensor([[0.0, 0.5]]).double())
    torch.testing.assert_close(within.upper, torch.tensor([[0.0, 1.5]]).double())


# Whatever works on networks works on these.

METHODS: dict[str, Bounding] = {
    "ibp": IBP(), "kw": KW(), "crown": rc.CROWN(), "alpha": rc.Alpha(steps=4), "inner": rc.Alpha(steps=3, inner=3),
    "lipschitz": rc.Lipschitz(), "sdp": rc.SDP(steps=4), "moments": rc.Moments(steps=4, rank=2),
}  # fmt: skip


@pytest.mark.share(4)
@pytest.mark.parametrize("name", [*NETS, "selected"])
@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, math.inf])
def test_every_bound_holds(name: str, p: float) -> None:
    net = unpooled((NETS | selected)[name]())
    x = inputs(net, 3)
    ball = Ball(p, torch.tensor([0.05, 0.2, 0.5]).double(), None if p == 3 else (0.0, 1.0))
    prop = class_stays(net.predict(x), net.classes, dtype=torch.float64)
    points = ball.sample(x, torch.Generator().manual_seed(0), 30)
    for solver in METHODS.values():
        with torch.no_grad():
            bounds, margins = solver.solve(net, x, ball, prop)
        assert_sound(net, x, ball, bounds, prop, margins, points)


@pytest.mark.parametrize("name", ["dead windows", "padding", "selected"])
def test_regions_and_norms_know_gathered_entries(name: str) -> None:
    net = unpooled((NETS | selected)[name]())
    x = inputs(net, 3)
    assert_affine_on_region(net, x, x)
    estimate = float(lipschitz_estimate(net, iterations=100).detach())
    local = torch.func.vmap(torch.func.jacrev(lambda one: net(one[None])[0]))(x).flatten(2)
    assert bool((torch.linalg.matrix_norm(local, 2) <= estimate * (1 + 1e-9)).all())
    part = affine_part(net.graph, len(net.graph) - 1)
    assert part is not None


@pytest.mark.parametrize("name", ["max pool", "dead windows", "row"])
@pytest.mark.parametrize("method", ["region", "crown", "sdp", "bab", "mip", "auto"])
def test_verdicts_are_those_of_the_network_with_pools(name: str, method: str) -> None:
    net = NETS[name]()
    x = inputs(net, 3)
    y, p = net.predict(x), math.inf
    ball = Ball(p, torch.tensor([0.005, 0.03, 0.1]).double())
    truth = rc.certify(net, x, y, ball, "mip").verdict
    found = rc.certify(unpooled(net), x, y, ball, method).verdict
    assert rc.Verdict.UNKNOWN not in truth
    assert all(one in (other, rc.Verdict.UNKNOWN) for one, other in zip(found, truth, strict=True))
    if method in ("bab", "mip", "auto"):
        assert found == truth


def test_places_are_read_where_they_are_now() -> None:
    owner = nn.Module()
    owner.register_buffer("index", torch.tensor([1, 0]))
    op = Gather(Source(owner, "index"), (2,))
    z = torch.tensor([[1.0, 2.0]])
    assert op.apply(z).tolist() == [[2.0, 1.0]]
    owner.index = torch.tensor([[-1], [-1]])
    assert op.apply(z).tolist() == [[[2.0], [2.0]]]
    assert op.most() == 2
