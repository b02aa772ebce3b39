"""What the paper says in its text, sentence by sentence, beside our figures: the CW attack, and verification over lambda."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from relucert.records.record import Verdict
from relucert.reports.paper.comparison import Cell, Comparison, Row, Section
from relucert.reports.paper.measured import CW as CW_ATTACK
from relucert.reports.paper.measured import THEOREM, MeasuredNetwork, answers
from relucert.reports.published import CW, LAMBDA

#: CW counts as longer than the optimum from these factors on.
FACTORS = {"10": 1.1, "20": 1.2}


class Verified(NamedTuple):
    """A network of the lambda experiment: the weight of MMR, minutes of verification, the robust error, points decided.

    Minutes are for 1000 points: those of the points that were verified, scaled. Errors and shares are in percent.
    """

    lam: float
    minutes: float
    lower: float
    upper: float
    certified: float
    decided: float


def verified(network: MeasuredNetwork, lam: float) -> Verified | None:
    """The figures of a network of the lambda experiment; None before it was verified."""
    subject, ends = network.judged, network.errors()
    seconds = network.seconds(lambda record: record.method.startswith("certify by "))
    if subject is None or ends is None or seconds is None:
        return None
    total = len(subject.points)
    verdicts = [point.verdict(subject.eps) for point in subject.points]
    return Verified(
        lam=lam, minutes=seconds / 60 * 1000 / total, lower=ends[0], upper=ends[1],
        certified=100 * verdicts.count(Verdict.ROBUST) / total,
        decided=100 * (1 - verdicts.count(Verdict.UNKNOWN) / total),
    )  # fmt: skip


def lambda_comparison(found: Mapping[str, Sequence[Verified]]) -> Comparison:
    """What the paper says of verification over lambda, and the figures of every lambda, by data set."""
    sections = [Section(title="MNIST", rows=_rows(LAMBDA, _lambda_figures(found.get("mnist", ()))))]
    sections += [
        Section(title=data, rows=_rows(dict.fromkeys(LAMBDA), _lambda_figures(every)))
        for data, every in found.items() if data != "mnist"
    ]  # fmt: skip
    notes = [
        "The paper: MIP by Gurobi, 120 s a point, minutes of its machine; ours: `auto`, minutes of one process scaled to 1000 "
        "points. Compare factors, not minutes."
    ]
    for data, every in found.items():
        lines = [
            f"- lambda {one.lam:g}: {one.minutes:.3g} minutes for 1000 points, robust error {one.lower:.1f} to "
            f"{one.upper:.1f} %"
            for one in sorted(every)
        ]
        notes.append("\n".join([f"{data}:", "", *lines]))
    return Comparison(
        name="lambda", title="Verifiability over lambda", heads=("figure",), columns=("value",), sections=tuple(sections),
        notes=notes,
    )  # fmt: skip


def _lambda_figures(every: Sequence[Verified]) -> dict[str, float]:
    plain = next((one for one in every if one.lam == 0), None)
    trained = [one for one in every if one.lam > 0]
    found: dict[str, float] = {}
    if plain is not None:
        found |= {
            "minutes for 1000 points, plain": plain.minutes,
            "UB, plain, percent": plain.upper,
            "points certified, plain, percent": plain.certified,
        }
    if trained:
        found |= {
            "minutes for 1000 points, MMR, fewest": min(one.minutes for one in trained),
            "minutes for 1000 points, MMR, most": max(one.minutes for one in trained),
            "points decided, MMR, fewest, percent": min(one.decided for one in trained),
            "points decided, MMR, most, percent": max(one.decided for one in trained),
        }
    if plain is not None and trained:
        fewest = min(one.minutes for one in trained)
        found |= {"time of plain over that of MMR, largest factor": plain.minutes / fewest} if fewest else {}
    return found


def cw_comparison(networks: Mapping[str, MeasuredNetwork]) -> Comparison:
    """What the paper says of the CW attack against proved optima on GTS, and ours, by data set."""
    gts = networks.get("gts")
    sections = [Section(title="GTS", rows=_rows(CW, {} if gts is None else cw_figures(gts)))]
    sections += [
        Section(title=data, rows=_rows(dict.fromkeys(CW), cw_figures(network)))
        for data, network in networks.items() if data != "gts"
    ]  # fmt: skip
    return Comparison(
        name="cw", title="The CW attack against proved optima", heads=("figure",), columns=("value",),
        sections=tuple(sections),
        notes=["FC1 trained with MMR in l_2. Shares are of the points with a proved optimum that CW was run on."],
    )  # fmt: skip


def cw_figures(network: MeasuredNetwork) -> dict[str, float]:
    """The figures of the paper's paragraph, from the records of a network."""
    subject = network.subject(lambda record: answers(record, THEOREM), labels=False)
    if subject is None:
        return {}
    found: dict[str, float] = {
        "test points": len(subject.points),
        "points with a proved optimum": len(network.optima),
    }
    ratios = network.ratios()
    for name, factor in FACTORS.items() if ratios else ():
        longer = sum(ratio >= factor for ratio in ratios)
        found |= {
            f"CW at least {name} % longer, points": longer,
            f"CW at least {name} % longer, percent": 100 * longer / len(ratios),
        }
    found |= {"largest difference, percent": 100 * (ratios[0] - 1)} if ratios else {}
    for name, seconds in (
        ("seconds of CW", network.seconds(lambda record: answers(record, CW_ATTACK))),
        ("seconds of the theorem", network.seconds(lambda record: answers(record, THEOREM))),
    ):
        found |= {} if seconds is None else {name: seconds}
    return found


def _rows(paper: Mapping[str, float | None], ours: Mapping[str, float]) -> tuple[Row, ...]:
    return tuple(
        Row(labels=(name,), cells=(Cell(paper=value, ours=ours.get(name), digits=_digits(name)),))
        for name, value in paper.items()
    )


def _digits(name: str) -> int:
    return 0 if "points" in name and "percent" not in name and "minutes" not in name else 1
