"""Arrays of the figures: regions of the toy networks, the cases of the theorem, planes, gradients and filters."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import relucert as rc
from relucert.experiments.paper.experiment import Effort
from relucert.experiments.paper.figures import CONVOLUTIONAL, EXPERIMENT, PLANES, arrays
from relucert.experiments.paper.planes import image_plane_arrays, plane_arrays, through_images
from relucert.experiments.paper.toy import POINTS, theorem_arrays, toy_network, toy_plane, toy_points
from relucert.experiments.paper.visible import chosen_images, filters, input_gradients
from relucert.reports.figures.arrays import read_arrays


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The arrays of the figures that need no trained network."""
    out = tmp_path_factory.mktemp("figures")
    (out / "arrays").mkdir()
    arrays({}, out / "arrays", Effort(quick=True))
    return out


def test_the_toy_points_are_two_classes_in_the_square():
    x, y = toy_points()
    assert (len(x), y.bincount().tolist()) == (POINTS, [POINTS // 2, POINTS // 2])
    assert bool(((x > 0) & (x < 1)).all())
    assert torch.equal(x, toy_points()[0])


def test_the_toy_figure_has_all_regions(folder):
    found = read_arrays(folder / "arrays" / "toy.npz")
    assert set(found) == {"plain", "mmr"}
    for scheme, own in found.items():
        net = toy_network(scheme, folder / "arrays", quick=True)  # the run is finished, and loaded
        assert len(own["count"]) == int(own["number"])
        polygons = [vertices[:count] for vertices, count in zip(own["vertices"], own["count"], strict=True)]
        assert sum(map(_area, polygons)) == pytest.approx(1.0)  # the regions fill the square
        inside = torch.tensor(np.array([one.mean(0) for one in polygons]), dtype=torch.float32)
        first = next(iter(net.module.parameters()))
        assert first.shape == (100, 2)
        assert len(torch.unique(inside, dim=0)) == len(polygons)


def _area(polygon):
    x, y = polygon.T
    return 0.5 * abs((x * np.roll(y, -1) - np.roll(x, -1) * y).sum())


def test_the_theorem_has_both_cases(folder):
    net = toy_network("mmr", folder / "arrays", quick=True)
    found = theorem_arrays(net)
    assert found["d_b0"] < found["d_d0"]
    assert found["d_d1"] < found["d_b1"]
    for number in (0, 1):
        point = torch.tensor(found[f"point{number}"], dtype=torch.float32)[None]
        seen = rc.distances(net, point, net.predict(point), p=2.0)
        assert seen.region[0].item() == pytest.approx(float(found[f"d_b{number}"]), rel=1e-4)
        assert seen.decision[0].item() == pytest.approx(float(found[f"d_d{number}"]), rel=1e-4)
        for name in ("b", "d"):
            end = found[f"on_{'region' if name == 'b' else 'decision'}{number}"]
            assert np.linalg.norm(end - found[f"point{number}"]) == pytest.approx(float(found[f"d_{name}{number}"]))
    # Where the decision hyperplane is nearer, its nearest point is a tie of the network.
    logits = net(torch.tensor(found["on_decision1"], dtype=torch.float32)[None])[0]
    assert (logits[0] - logits[1]).item() == pytest.approx(0.0, abs=1e-5)


def test_a_plane_goes_through_images_of_three_classes():
    digits = rc.dataset("digits")
    plane, classes = through_images(digits)
    size = plane.upper - plane.lower
    assert float(size[0]) == pytest.approx(float(size[1]))
    torch.manual_seed(0)
    net = rc.Network(
        torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 12), torch.nn.ReLU(), torch.nn.Linear(12, 10)),
        (1, 8, 8),
    ).eval()
    found = image_plane_arrays(net, digits)
    assert found["labels"].tolist() == classes.tolist() == [0, 1, 2]
    assert int(found["number"]) == len(found["count"]) > 1
    assert found["boundaries"].shape[1:] == (2, 2)
    for label, place in zip(classes, plane.inputs, strict=True):
        image = plane.point(place[None])[0]
        index = (digits.y_train == int(label)).nonzero()[0, 0]
        assert torch.allclose(image, digits.x_train[index], atol=1e-6)


def test_polygons_of_very_many_regions_are_left_out(monkeypatch, folder):
    monkeypatch.setattr("relucert.experiments.paper.planes.MOST_POLYGONS", 2)
    found = plane_arrays(toy_network("plain", folder / "arrays", quick=True), toy_plane())
    assert int(found["number"]) > 2
    assert len(found["vertices"]) == len(found["count"]) == 0
    assert len(found["boundaries"]) > 2


def test_gradients_are_those_of_the_loss():
    digits = rc.dataset("digits")
    torch.manual_seed(0)
    net = rc.build("fc1", (1, 8, 8), 10).eval().double()
    chosen = chosen_images(digits)
    assert digits.y_test[chosen].tolist() == list(range(10))
    found = input_gradients(net, digits)
    x, y = digits.x_test[chosen].double(), digits.y_test[chosen]
    step = torch.zeros_like(x)
    step[:, 0, 3, 3] = 1e-6
    change = torch.nn.functional.cross_entropy(net(x + step), y, reduction="none") - torch.nn.functional.cross_entropy(
        net(x - step), y, reduction="none"
    )
    assert found[:, 0, 3, 3] == pytest.approx((change / 2e-6).detach().numpy(), rel=1e-3, abs=1e-8)


def test_filters_are_those_of_both_convolutions():
    net = rc.build("cnn", (1, 8, 8), 10)
    assert [one.shape for one in filters(net)] == [(16, 1, 4, 4), (32, 16, 4, 4)]


def test_the_networks_are_those_of_the_papers_figures():
    assert {(network.data, network.scheme) for network in CONVOLUTIONAL} == {
        (data, scheme) for data in ("mnist", "gts", "cifar10") for scheme in ("plain", "at", "kw", "mmr", "mmr+at")
    }
    assert all(network.p == math.inf for network in (*PLANES, *CONVOLUTIONAL))


def test_figures_are_drawn_from_arrays_alone(folder):
    files = EXPERIMENT.report([], folder)
    assert set(files) == {f"figure-{name}.{kind}" for name in ("toy", "theorem") for kind in ("png", "svg")}
    assert all(len(content) > 1000 for content in files.values())
