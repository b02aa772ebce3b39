"""The page of trained networks: errors beside the paper's, sizes of linear regions, and what each bound proves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from relucert.reports._markdown import ball, percent, table
from relucert.reports.published import TABLE_1, Key

#: The key of the figures that compare methods; all other keys are norms.
LADDER = "ladder"


@dataclass(frozen=True, kw_only=True)
class TrainedNetwork:
    """A network: data, architecture, scheme, norm and epochs of its training, the command, and its figures.

    `description` is the scheme with what changes its loss. `figures` has errors and regions by norm ("inf", "2"), and under
    "ladder" how many points each method proves.
    """

    data: str
    model: str
    scheme: str
    description: str
    p: float
    epochs: int | None
    command: str
    figures: dict[str, Any]

    @property
    def head(self) -> list[str]:
        """The first cells of every row."""
        return [self.data, self.model, self.description]


@dataclass(frozen=True, kw_only=True)
class Ladder:
    """Networks on which the same methods are compared in the same norm, each with its radius."""

    p: float
    methods: Sequence[str]
    networks: Sequence[tuple[TrainedNetwork, float]]


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """How the networks were evaluated: the number of points, the attack, and the seconds of `auto` for a point."""

    points: int
    attack: str
    seconds: float


def page(networks: Sequence[TrainedNetwork], ladders: Sequence[Ladder], protocol: Protocol) -> str:
    """The figures of all networks as Markdown."""
    lines = [
        "# Trained networks",
        "",
        "Other pages: [bounds](bounds.md), [complete verification](complete.md), [deep networks](deep.md), "
        "[attacks](attacks.md), [benchmarks of the verification competition](vnncomp.md).",
        "",
        "Written by `python -m relucert.experiments.trained evaluate`. TE: test error on the whole test set. The other columns "
        f"are about the first {protocol.points} test points, in percent. PGD: misclassified, or broken by `{protocol.attack}` "
        "within eps, a lower bound of the robust error; CROWN: misclassified or not proved by `crown`, an upper bound. Paper: "
        "TE, lower and upper bound of the same cell of Table 1, trained for 100 epochs, the upper bound by several methods and "
        "a mixed-integer solver. d_B, d_D: mean distances to the boundary of the linear region and to the decision "
        "hyperplanes, of the correctly classified points. Exact: share of these whose distance to the nearest change of "
        "decision the region theorem gives exactly; certified: share of the points that the theorem alone proves correct "
        "within eps (one linear region, in the box). Settings of `mtl-ibp` were fixed before each run: on MNIST those of "
        "the publications, with batch norm after a trial of two epochs on held-out training points; on F-MNIST alpha is a "
        "guess, made when figures of the MNIST network on test points were known, and kept from a run of 6 epochs.",
        "",
        *_errors(networks),
        "",
        "## What MMR does to the linear regions",
        "",
        *_regions(networks),
        "",
        "## What each bound proves",
        "",
        "Shares of the first points, in percent, that are classified correctly and proved; limit: what PGD has not broken. "
        f"`auto` has {protocol.seconds:g} seconds for a point.",
        "",
        *(line for ladder in ladders for line in _ladder(ladder)),
        "## Commands",
        "",
        "```",
        *(network.command for network in networks),
        "```",
        "",
    ]
    return "\n".join(lines)


def _errors(networks: Sequence[TrainedNetwork]) -> list[str]:
    """Test error, PGD error, CROWN error and regions of every network and norm, with the paper's in parentheses."""
    rows = []
    for network in networks:
        for key, found in network.figures.items():
            if key == LADDER:
                continue
            paper = TABLE_1.get(Key(network.data, network.model, network.scheme, float(key)), {})
            digits = {"TE": 2, "LB": 1, "UB": 1}
            quoted = [
                "" if (value := paper.get(name)) is None else f" ({value:.{places}f})"
                for name, places in digits.items()
            ]
            regions = found["regions"]
            rows.append([
                *network.head, f"l_{key}, {found['eps']:.4g}", str(network.epochs),
                f"{100 * found['test_error']:.2f}{quoted[0]}", f"{100 * found['robust_error']:.1f}{quoted[1]}",
                f"{100 * found['crown']['robust_error']:.1f}{quoted[2]}", f"{regions['mean_d_b']:.2g}",
                f"{regions['mean_d_d']:.3g}", f"{100 * regions['exact']:.1f}", f"{100 * regions['certified']:.1f}",
            ])  # fmt: skip
    head = ["data", "net", "scheme", "norm, eps", "epochs", "TE (paper)", "PGD (paper)", "CROWN (paper)", "mean d_B",
            "mean d_D", "exact", "certified"]  # fmt: skip
    return table(head, rows)


def _regions(networks: Sequence[TrainedNetwork]) -> list[str]:
    """Plain training against MMR, pair by pair: how much larger the linear regions are."""
    plain: Mapping[tuple[str, str], TrainedNetwork] = {
        (network.data, network.model): network
        for network in networks
        if network.scheme == "plain" and network.p == math.inf
    }
    rows = []
    for network in networks:
        reference = plain.get((network.data, network.model))
        if reference is None or not network.scheme.startswith("mmr"):
            continue
        key = f"{network.p:g}"
        before, after = reference.figures[key]["regions"], network.figures[key]["regions"]
        rows.append([
            network.data, network.model, f"l_{key}", network.scheme, f"{before['mean_d_b']:.2g}",
            f"{after['mean_d_b']:.2g}", f"{after['mean_d_b'] / before['mean_d_b']:.0f}", f"{before['exact']:.1%}",
            f"{after['exact']:.1%}",
        ])  # fmt: skip
    head = ["data", "net", "norm", "scheme", "mean d_B, plain", "mean d_B", "factor", "exact, plain", "exact"]
    return table(head, rows)


def _ladder(ladder: Ladder) -> list[str]:
    """The points that each method proves, network by network; nothing where no network has such figures."""
    rows = []
    for network, eps in ladder.networks:
        if LADDER not in network.figures:
            continue
        steps = network.figures[LADDER]
        points = steps["limit"]["points"]
        shares = [
            percent(steps[key]["robust"], points) if key in steps else ""
            for key in (*ladder.methods, "together", "limit")
        ]
        rows.append([*network.head, ball(ladder.p, eps), str(points), *shares])
    if not rows:
        return []
    return [
        *table(["data", "net", "scheme", "norm, eps", "points", *ladder.methods, "together", "PGD limit"], rows),
        "",
    ]
