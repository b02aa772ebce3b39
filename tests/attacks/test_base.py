"""The guarantees of every attack, over all attacks, norms, networks and dtypes."""

import math
from itertools import product

import pytest
import torch
from torch import nn

import relucert as rc
from asserts import assert_adversarial
from relucert.core.errors import InvalidInput, WrongMode
from zoo import NETWORKS, inputs, network, randomised

FIXED = [rc.PGD(steps=4, restarts=2), rc.APGD(steps=6, restarts=4), rc.APGD(steps=5, restarts=2, loss="dlr")]
EVERY_NORM = [rc.FAB(steps=4, restarts=2), rc.Best(members=("fab(steps=2, targets=1)",))]
REGIONAL = [rc.RegionAttack(regions=2, iterations=6)]
EUCLIDEAN = [
    rc.CW(searches=3, iterations=10, constant=0.1, rate=0.1),
    rc.DDN(steps=10),
    rc.DDN(steps=6, targets=2),
    rc.Best(members=("ddn(steps=5)", "region(regions=2, iterations=6)")),
]

BOXES = {
    "unit": lambda x: (0.0, 1.0),
    "none": lambda x: None,
    "tensors": lambda x: (x.clamp(max=0.4), x.clamp(min=0.6)),
}
MINIMAL = [
    *product(EVERY_NORM, [1.0, 1.5, 2.0, 3.0, math.inf]),
    *product(REGIONAL, [1.0, 2.0, math.inf]),
    *product(EUCLIDEAN, [2.0]),
]


SURROUNDINGS = [*product(BOXES, [torch.float32, torch.float64])]


def dealt(cases, name):
    """Every case with a box and a dtype, which rotate over pairs of networks so that all occur together."""
    start = NETWORKS.index(name) // 2
    return [(case, *SURROUNDINGS[(start + i) % len(SURROUNDINGS)]) for i, case in enumerate(cases)]


def prop(net, count, mistaken=True):
    """Inputs, the first of them misclassified."""
    x = inputs(net, count)
    y = net.predict(x)
    if mistaken:
        y[0] = (y[0] + 1) % net.classes
    return x, y


def name_of(method):
    return method.name


@pytest.mark.parametrize("name", NETWORKS)
def test_successes_within_a_ball_are_witnesses(name):
    for (method, p), box, dtype in dealt([*product(FIXED, [1.0, 1.5, 2.0, 3.0, math.inf])], name):
        net = network(name, dtype)
        x, y = prop(net, 6)
        eps = torch.linspace(0.0, 0.8, 6, dtype=dtype) * x[0].numel() ** (0 if p == math.inf else 1 / p)
        ball = rc.Ball(p, eps, BOXES[box](x))
        found = rc.attack(net, x, y, ball, method)
        assert_adversarial(net, x, y, ball, found)
        assert float(found.distance[0]) == 0


@pytest.mark.share(2)
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("half", [0, 1])
def test_the_smallest_perturbations_are_witnesses(name, half):
    for (method, p), box, dtype in dealt(MINIMAL, name)[half::2]:
        net = network(name, dtype)
        x, y = prop(net, 4)
        sides = BOXES[box](x)
        found = rc.minimal_attack(net, x, y, p, sides, method)
        assert_adversarial(net, x, y, rc.Ball(p, math.inf, sides), found)
        assert float(found.distance[0]) == 0
        assert torch.equal(found.x[~found.success], x[~found.success])


@pytest.mark.parametrize("method", FIXED + EVERY_NORM[:1] + REGIONAL + EUCLIDEAN, ids=name_of)
class TestOddInputs:
    @staticmethod
    def run(net, x, y, method, box=(0.0, 1.0)):
        ball = rc.Ball(2, 1.0 if method in FIXED else math.inf, box)
        if method in FIXED:
            found = rc.attack(net, x, y, ball, method)
        else:
            found = rc.minimal_attack(net, x, y, 2, box, method)
        assert_adversarial(net, x, net.predict(x) if y is None else y, ball, found)
        return found

    def test_without_labels_the_predicted_class_is_attacked(self, method):
        net = network("fc1")
        x, y = prop(net, 5, mistaken=False)
        assert torch.equal(self.run(net, x, None, method).x, self.run(net, x, y, method).x)

    def test_the_seed_decides_and_nothing_else(self, method):
        net = network("cnn", torch.float32)
        x, y = prop(net, 5)
        torch.manual_seed(0)
        first = self.run(net, x, y, method)
        torch.manual_seed(1)
        assert torch.equal(first.x, self.run(net, x, y, method).x)

    def test_constant_images_at_corners_of_the_box(self, method):
        net = network("fc1", torch.float32)
        x = torch.stack([torch.full(net.input_shape, level) for level in (0.0, 1.0, 0.5)])
        self.run(net, x, None, method)

    def test_a_box_that_leaves_no_room(self, method):
        net = network("fc1")
        x, y = prop(net, 3)
        found = self.run(net, x, y, method, (x, x))
        assert found.success.tolist() == [True, False, False]

    def test_saturated_logits(self, method):
        net = network("linear", torch.float32)
        with torch.no_grad():
            net.module[0].weight.mul_(1e4)
            net.module[0].bias.mul_(1e4)
        x, y = prop(net, 4, mistaken=False)
        box = (-1.0, 2.0)
        if method not in FIXED and not isinstance(method, rc.CW):  # a tanh and a dozen steps of Adam need not arrive
            assert bool(self.run(net, x, y, method, box).success.all())
        self.run(net, x, y, method, box)

    def test_dead_networks_have_no_adversarial_points(self, method):
        net = network("fc")
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.zero_()
            net.module[-1].bias[0] = 1.0
        x = inputs(net, 3)
        found = self.run(net, x, None, method)
        assert not bool(found.success.any())
        assert torch.equal(found.x, x)

    def test_two_classes(self, method):
        net = rc.Network(randomised(nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 2)), 3), (5,)).eval()
        self.run(net, *prop(net, 4), method)

    def test_batches_of_one_and_none(self, method):
        net = network("leaky", torch.float32)
        x, y = prop(net, 1, mistaken=False)
        self.run(net, x, y, method)
        assert len(self.run(net, x[:0], y[:0], method)) == 0

    def test_batches_of_one_class(self, method):
        net = network("fc1", torch.float32)
        x = inputs(net, 40)
        y = net.predict(x)
        same = x[y == y.mode().values][:4]
        assert len(same) > 1
        self.run(net, same, None, method)

    def test_a_batch_that_is_misclassified_as_a_whole(self, method):
        net = network("fc1")
        x, y = prop(net, 3, mistaken=False)
        assert self.run(net, x, (y + 1) % net.classes, method).distance.tolist() == [0, 0, 0]


@pytest.mark.parametrize("method", [rc.DDN(steps=15), rc.DDN(steps=15, targets=2), rc.FAB(steps=8), EUCLIDEAN[0]])
def test_deterministic_attacks_are_independent_of_batch_composition(method):
    net = network("fc1")
    x, y = prop(net, 7)
    together = rc.minimal_attack(net, x, y, method=method)
    for i in range(7):
        alone = rc.minimal_attack(net, x[i : i + 1], y[i : i + 1], method=method)
        torch.testing.assert_close(alone.distance, together.distance[i : i + 1], rtol=1e-6, atol=0)


def test_bad_input_is_named():
    net = network("fc")
    x = inputs(net, 4)
    for arguments, message in [
        ({"x": x + 2}, "box"),
        ({"x": x[:, :2]}, "shape"),
        ({"y": torch.tensor([0, 1, 2, 9])}, "y must lie in"),
        ({"p": 0.5}, "p must be a number of at least 1"),
        ({"method": "magic"}, "method must be one of best, cw, ddn, fab, region, got 'magic'"),
        ({"method": "pgd"}, "method must be one of"),
        ({"method": "cw", "p": 1}, "p of cw must be 2, got 1"),
        ({"method": "ddn", "p": math.inf}, "p of ddn must be 2, got inf"),
        ({"method": "region", "p": 3}, "p of region must be 1, 2 or inf, got 3"),
        ({"method": "best(members=('fab', 'cw'))", "p": 1}, "p of cw must be 2, got 1"),
        ({"method": "best(members=())"}, "members of best must be at least one"),
        ({"method": "best(members=('pgd',))"}, "method must be one of"),
        ({"method": "cw(searches=0)"}, "searches of cw must be at least 1, got 0"),
        ({"method": "ddn(gamma=1.0)"}, "gamma of ddn must be between 0 and 1, got 1.0"),
        ({"method": "fab(targets=0)"}, "targets of fab must be at least 1, or None for all, got 0"),
        ({"method": "region(regions=0)"}, "regions of region must be at least 1, got 0"),
    ]:
        with pytest.raises(InvalidInput, match=message.replace("(", r"\(").replace(")", r"\)")):
            rc.minimal_attack(net, **{"x": x, **arguments})
    with pytest.raises(InvalidInput, match="restarts of apgd must be at least 1, got 0"):
        rc.attack(net, x, None, rc.Ball(2, 0.1), "apgd(restarts=0)")
    with pytest.raises(WrongMode, match="eval mode"):
        rc.minimal_attack(network("residual").train(), inputs(network("residual")))
