"""The paper's tables about networks: which figures stand in which row and column, and how ours follow from records.

The shape of a table is that of the paper's: rows and columns are read off the published figures. Digits, which are not in the
paper, stand below in the rows of the first data set.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from relucert.reports import published
from relucert.reports.paper.comparison import Cell, Comparison, Row, Section
from relucert.reports.paper.measured import CW, IMPROVED, KW, THEOREM, MeasuredNetwork
from relucert.reports.published import Key, PublishedTable

#: How data sets are called in the tables.
TITLES = {
    "mnist": "MNIST",
    "fmnist": "F-MNIST",
    "gts": "GTS",
    "cifar10": "CIFAR-10",
    "digits": "digits (not in the paper)",
}
NAMES = {"inf": "l_inf", "2": "l_2"}

#: A figure of a network from its test error and its records; None where it is not known.
Measure = Callable[[MeasuredNetwork], float | None]


def _end(ends: tuple[float, float] | None, place: int) -> float | None:
    return None if ends is None or math.isnan(ends[place]) else ends[place]


def _test_error(network: MeasuredNetwork) -> float | None:
    return 100 * network.test_error


#: What must be known of the points over which distances are averaged.
_BOTH, _LOWER = (KW, THEOREM, CW), (KW, THEOREM, IMPROVED)

#: Robust errors, and mean distances.
ERRORS: dict[str, Measure] = {
    "TE": _test_error,
    "LB": lambda network: _end(network.errors(), 0),
    "UB": lambda network: _end(network.errors(), 1),
}
DISTANCES: dict[str, Measure] = {
    "TE": _test_error,
    "LB": lambda network: _end(network.distances(_BOTH), 0),
    "UB": lambda network: _end(network.distances(_BOTH), 1),
}
OPTIMA: dict[str, Measure] = {
    "TE": _test_error,
    "optimal": MeasuredNetwork.share_optimal,
    "opt vs LB": MeasuredNetwork.optimum_excess,
}
LOWER: dict[str, Measure] = {
    "TE": _test_error,
    "KW": lambda network: _end(network.distances(_LOWER, KW), 0),
    "theorem": lambda network: _end(network.distances(_LOWER, THEOREM), 0),
    "improved": lambda network: _end(network.distances(_LOWER, IMPROVED), 0),
}


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A table: its published figures, how ours are measured, and which fields of a network label its rows and columns.

    `digits` has the decimals of single figures where they are not `places`.
    """

    name: str
    title: str
    paper: PublishedTable
    measures: Mapping[str, Measure]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    digits: Mapping[str, int]
    notes: tuple[str, ...] = ()

    def comparison(self, networks: Iterable[MeasuredNetwork]) -> Comparison:
        """The table of the paper with our figures of these networks; cells without one have a dash."""
        ours = {network.key: network for network in networks}
        columns = list(
            dict.fromkeys((self._labels(key, self.columns), name) for key in self.paper for name in self.paper[key])
        )
        data = list(dict.fromkeys(key.data for key in self.paper))
        sections = [self._section(one, data[0], columns, ours) for one in data]
        if any(key.data == "digits" for key in ours):
            sections.append(self._section("digits", data[0], columns, ours))
        return Comparison(
            name=self.name, title=self.title, heads=tuple(map(_head, self.rows)), sections=tuple(sections),
            columns=tuple(" ".join([*labels, name]) for labels, name in columns), notes=(*self.notes, *_notes(ours.values())),
        )  # fmt: skip

    def _section(
        self, data: str, first: str, columns: list[tuple[tuple[str, ...], str]], ours: Mapping[Key, MeasuredNetwork]
    ) -> Section:
        """The rows of a data set; those of the first one for digits."""
        pattern = [key for key in self.paper if key.data == (first if data == "digits" else data)]
        rows: dict[tuple[str, ...], dict[tuple[tuple[str, ...], str], Cell]] = {}
        for key in pattern:
            own = key._replace(data=data)
            network = ours.get(own)
            for name in self.paper[key]:
                cell = Cell(
                    paper=self.paper.get(own, {}).get(name),
                    ours=None if network is None else self.measures[name](network),
                    digits=self.digits.get(name, 2),
                )
                rows.setdefault(self._labels(own, self.rows), {})[self._labels(own, self.columns), name] = cell
        empty = Cell(paper=None, ours=None)
        return Section(
            title=TITLES.get(data, data),
            rows=tuple(
                Row(labels=labels, cells=tuple(cells.get(column, empty) for column in columns))
                for labels, cells in rows.items()
            ),
        )

    def _labels(self, key: Key, fields: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(label(getattr(key, field)) for field in fields)


def label(value: str | float) -> str:
    """The value of a field as tables print it.

    >>> label(float("inf")), label("rs"), label("fc10")
    ('l_inf', 'Xiao et al', 'FC10')
    """
    if not isinstance(value, str):
        return NAMES.get(f"{value:g}", f"l_{value:g}")
    special = {"rs": "Xiao et al", "kw": "KW", "mmr": "MMR", "mmr+at": "MMR+at", "mmr-dd": "MMR-d_D"}
    if value in special:
        return special[value]
    return value.upper() if value.startswith(("fc", "cnn")) else value


def _head(field: str) -> str:
    return "model" if field == "model" else "training"


def _notes(networks: Iterable[MeasuredNetwork]) -> list[str]:
    """Where every network of ours comes from, how many points it was judged on, and which of them are undecided."""
    lines = []
    for network in sorted(networks, key=lambda network: network.name):
        subject = network.judged
        points = 0 if subject is None else len(subject.points)
        open_ = network.undecided() if network.eps is not None and subject is not None and subject.radii else []
        said = f"- {network.name}: {network.source}, {network.epochs} epochs, {points} points"
        if left_out := network.left_out(_BOTH):
            said += f", {left_out} of them without a counterexample by CW and left out of means"
        if subject is not None and subject.radii:
            said += "".join(f", {count} {verdict} by {by}" for (verdict, by), count in network.deciders().items())
            said += f", {sum(subject.seconds.values()):.0f} s"
        if open_:
            said += f"; {len(open_)} undecided at {network.eps:.4g}: {', '.join(map(str, open_))}"
        lines.append(f"{said}. `{network.command}`")
    return ["\n".join(["Our networks:", "", *lines])] if lines else []


_COLUMNS = "TE: test error on the whole test set. LB, UB: "
_ROBUST = (
    f"{_COLUMNS}lower and upper bound of the robust error in percent. Lower: misclassified, or with a counterexample by any "
    "attack or verifier. Upper: all that no method proves."
)
_DISTANCE = (
    f"{_COLUMNS}mean lower and upper bounds of the l_2 distance to another class than the predicted one, misclassified "
    "points included, points for which CW finds no other class left out."
)

LAYOUTS = {
    layout.name: layout
    for layout in (
        Layout(
            name="table1", title="Table 1: robustness by training scheme", paper=published.TABLE_1, measures=ERRORS,
            rows=("scheme",), columns=("p", "model"), digits={"LB": 1, "UB": 1},
            notes=(
                f"{_ROBUST} l_inf: the first 1000 test points; l_2: all; fewer where `points` says so.",
                "Paper: figures of Xiao et al. are as they report them; KW on the CNN in l_inf on MNIST, F-MNIST and CIFAR-10 "
                "are networks of Wong and Kolter; MMR+at on the CNN in l_2 on MNIST is of epoch 50.",
            ),
        ),
        Layout(
            name="table2", title="Table 2: the full MMR against its decision term alone", paper=published.TABLE_2,
            measures=DISTANCES, rows=("model",), columns=("scheme",), digits={}, notes=(_DISTANCE,),
        ),
        Layout(
            name="table3", title="Table 3: points with a proved optimum", paper=published.TABLE_3, measures=OPTIMA,
            rows=("model",), columns=("scheme",), digits={},
            notes=(
                "Percent. Optimal: points whose smallest perturbation in l_2 the region theorem proves. opt vs LB: by how much "
                "that exceeds the bound of Wong and Kolter, on average.",
            ),
        ),
        Layout(
            name="bounds", title="Lower bounds by the region theorem", paper=published.BOUNDS, measures=LOWER,
            rows=("model", "scheme"), columns=(), digits={},
            notes=(
                "Means over the first 1000 points, misclassified ones included: Wong and Kolter, the region theorem with the "
                "box, and the theorem with up to five neighbouring regions.",
            ),
        ),
        Layout(
            name="l2", title="Average l_2 distances by training scheme", paper=published.L2, measures=DISTANCES,
            rows=("scheme",), columns=("model",), digits={}, notes=(_DISTANCE,),
        ),
        Layout(
            name="l2-cifar10", title="Average l_2 distances on CIFAR-10", paper=published.L2_CIFAR10, measures=DISTANCES,
            rows=("scheme",), columns=("model",), digits={}, notes=(_DISTANCE,),
        ),
        Layout(
            name="cross-lipschitz", title="Cross-Lipschitz regularisation", paper=published.CROSS_LIPSCHITZ,
            measures=ERRORS, rows=("scheme",), columns=("model",), digits={"LB": 1, "UB": 1}, notes=(f"{_ROBUST} l_2 0.3.",),
        ),
    )
}  # fmt: skip
