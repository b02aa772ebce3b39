"""Every figure draws what it is given: what stands in the axes is compared with the arrays."""

from __future__ import annotations

import math

import numpy as np
import pytest
from matplotlib.collections import LineCollection, PolyCollection

from relucert.core.errors import DamagedData
from relucert.records.record import Record, ball_fields
from relucert.records.store import RecordStore
from relucert.reports.figures.arrays import read_arrays
from relucert.reports.figures.certified import certified_figure, proved_and_attacked
from relucert.reports.figures.filters import filters_figure
from relucert.reports.figures.gradients import gradients_figure, scaled
from relucert.reports.figures.ratios import ratios_figure
from relucert.reports.figures.regions import RegionsOnPlane, regions_figure
from relucert.reports.figures.theorem import Case, theorem_figure
from relucert.reports.figures.verifiability import verifiability_figure
from relucert.reports.intervals import subjects
from relucert.reports.paper.claims import Verified

SQUARE = np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])


def regions(title="plain", filled=True):
    return RegionsOnPlane.of(
        title,
        {
            "number": np.array(2),
            "boundaries": np.array([[[0.5, 0.0], [0.5, 1.0]]]),
            "vertices": np.stack([SQUARE, SQUARE / 2])[: 2 if filled else 0],
            "count": np.array([4, 3])[: 2 if filled else 0],
            "decisions": np.array([[[0.0, 0.5], [1.0, 0.5]]]),
            "corners": np.array([[0.0, 0.0], [1.0, 1.0]]),
            "inputs": np.array([[0.2, 0.2], [0.8, 0.8], [0.7, 0.2]]),
            "labels": np.array([0, 1, 1]),
        },
    )


@pytest.mark.parametrize("filled", [True, False])
def test_regions_are_filled_where_there_are_polygons(filled):
    figure = regions_figure([regions(filled=filled), regions("MMR", filled)])
    assert [axes.get_title() for axes in figure.axes] == ["plain: 2 regions", "MMR: 2 regions"]
    axes = figure.axes[0]
    polygons = [one for one in axes.collections if type(one) is PolyCollection]
    assert [len(one.get_paths()) for one in polygons] == ([2] if filled else [])
    lines = [one for one in axes.collections if isinstance(one, LineCollection)]
    assert [one.get_segments()[0].tolist() for one in lines] == [[[0.5, 0], [0.5, 1]], [[0, 0.5], [1, 0.5]]]
    assert (axes.get_xlim(), axes.get_ylim()) == ((0, 1), (0, 1))


def case(d_b, d_d):
    return Case(
        point=np.array([0.5, 0.5]), region=SQUARE, d_b=d_b, d_d=d_d, on_region=np.array([0.5, 0.5 - d_b]),
        on_decision=np.array([0.5 + d_d, 0.5]), hyperplane=np.array([[0.5 + d_d, 0.0], [0.5 + d_d, 1.0]]),
        decisions=np.array([[[0.5 + d_d, 0.0], [0.5 + d_d, 1.0]]]),
    )  # fmt: skip


def test_the_theorem_names_its_cases():
    figure = theorem_figure([case(0.1, 0.2), case(0.2, 0.1)])
    titles = [axes.get_title() for axes in figure.axes]
    assert "lower bound" in titles[0]
    assert "exact distance" in titles[1]
    assert [axes.patches[1].radius for axes in figure.axes] == [0.1, 0.1]


def test_verifiability_has_both_panels():
    found = [
        Verified(lam=0.0, minutes=100.0, lower=50.0, upper=100.0, certified=0.0, decided=50.0),
        Verified(lam=2.0, minutes=1.0, lower=5.0, upper=6.0, certified=94.0, decided=99.0),
    ]
    left, right = verifiability_figure(found).axes
    assert left.lines[0].get_ydata().tolist() == [100.0, 1.0]
    assert left.get_yscale() == "log"
    assert [line.get_ydata().tolist() for line in right.lines] == [[100.0, 6.0], [50.0, 5.0]]


def test_ratios_are_sorted_and_counted():
    axes = ratios_figure([1.0, 1.3, 1.15], "CW").axes[0]
    assert axes.lines[0].get_ydata().tolist() == [1.3, 1.15, 1.0]
    assert [text.get_text() for text in axes.texts] == ["2 of 3 at least 1.1", "1 of 3 at least 1.2"]


def test_certified_accuracy_falls_at_every_radius(tmp_path):
    with RecordStore(tmp_path / "r.jsonl", writable=True) as store:
        for index, (lower, upper, predicted) in enumerate([(0.1, 0.3, 1), (0.2, math.inf, 1), (0.5, 0.6, 2)]):
            store.append(
                Record(
                    model="5f", data="digits", split="test", index=index, ball=ball_fields(2, math.inf, (0, 1)),
                    method="radius by kw(budget=1)", label=1, prediction=predicted, lower=lower, upper=upper,
                )
            )  # fmt: skip
    (subject,) = subjects([("a", RecordStore(tmp_path / "r.jsonl"))], 0.1)
    proved, attacked = proved_and_attacked(subject)
    assert proved.tolist() == [0.2, 0.1, -1.0]  # the last one is misclassified
    assert attacked.tolist() == [math.inf, 0.3, -1.0]
    thick, thin = certified_figure({"KW": subject}).axes[0].lines
    assert thick.get_xdata().tolist() == [0.0, 0.1, 0.1, 0.2, 0.2]
    assert thick.get_ydata() == pytest.approx([200 / 3, 200 / 3, 100 / 3, 100 / 3, 0])
    assert thin.get_ydata()[-1] == 0


def test_gradients_have_a_row_for_every_network():
    random = np.random.default_rng(0)
    values = random.normal(size=(2, 1, 4, 4))
    grey = gradients_figure(random.uniform(size=(2, 1, 4, 4)), {"plain": values, "MMR": -values})
    assert [axes.texts[0].get_text() for axes in grey.axes] == ["image", "plain", "MMR"]
    shown = grey.axes[1].images[0]
    assert shown.get_clim() == (-1, 1)  # white is zero, and every image has a scale of its own
    assert np.ma.filled(shown.get_array(), 0)[::4, :16:4] == pytest.approx(values[0, 0] / np.abs(values[0]).max())
    colour = gradients_figure(np.zeros((1, 3, 4, 4)), {"plain": np.zeros((1, 3, 4, 4))})
    assert colour.axes[1].images[0].get_array().shape == (16, 16, 3)
    gradient = random.normal(size=(3, 4, 4))
    limit = 3 * gradient.std()
    assert scaled(gradient) == pytest.approx(np.clip(gradient, -limit, limit) / (2 * limit) + 0.5)


@pytest.mark.parametrize(("channels", "shown", "wide"), [(1, 16, 1), (3, 5, 3)])
def test_filters_of_both_convolutions(channels, shown, wide):
    random = np.random.default_rng(0)
    first = {name: random.normal(size=(16, channels, 4, 4)) for name in ("plain", "MMR")}
    second = {name: random.normal(size=(32, 16, 4, 4)) for name in first}
    figure = filters_figure(first, second)
    assert [axes.texts[0].get_text() for axes in figure.axes] == ["plain", "MMR"] * 2
    top, below = figure.axes[0].images[0], figure.axes[2].images[0]
    assert top.get_array().shape == (48, shown * 48 * wide + (shown - 1) * 4)
    assert below.get_array().shape == (48, 16 * 48 + 15 * 4)
    most = np.abs(first["plain"][:shown]).max()
    assert top.get_clim() == pytest.approx((-most, most))  # a scale for every row
    assert np.ma.filled(top.get_array(), 0)[::12, :48:12] == pytest.approx(first["plain"][0, 0])
    assert np.ma.filled(below.get_array(), 0)[:12:3, 12:24:3] == pytest.approx(second["plain"][0, 1])


def test_arrays_are_grouped_and_damage_is_named(tmp_path):
    np.savez(tmp_path / "a.npz", **{"plain/x": np.zeros(2), "mmr/x": np.ones(2)})
    found = read_arrays(tmp_path / "a.npz")
    assert {name: own["x"].tolist() for name, own in found.items()} == {"plain": [0, 0], "mmr": [1, 1]}
    (tmp_path / "a.npz").write_bytes((tmp_path / "a.npz").read_bytes()[:200])
    with pytest.raises(DamagedData, match="delete the file and run the experiment again"):
        read_arrays(tmp_path / "a.npz")
