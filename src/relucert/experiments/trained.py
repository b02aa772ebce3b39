"""The networks of `results/`: how each was trained, and the page that compares them with the paper.

    python -m relucert.experiments.trained train [NAME ...]     # those that are not there yet, or all the named ones
    python -m relucert.experiments.trained evaluate             # figures of those that have none, then the page

Training is resumable, evaluation keeps its records in the networks' folders, and the page is written from
`evaluation.json` of every folder: nothing on it is typed by hand but what is quoted from the paper.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from pathlib import Path
from typing import Any

from relucert.core.errors import InvalidInput
from relucert.evaluation.certify import verdicts
from relucert.evaluation.config import CertifyConfig, EvaluateConfig
from relucert.evaluation.evaluate import evaluate
from relucert.records.atomic import write_atomically
from relucert.reports import trained as report
from relucert.reports.trained import Ladder, Protocol, TrainedNetwork
from relucert.training.config import TrainConfig
from relucert.training.loop import train
from relucert.training.progress import Terminal
from relucert.training.recipes import RECIPES, default_eps
from relucert.training.run import MODEL_FILE
from relucert.training.schemes.bounded import BoundedTraining
from relucert.training.schemes.expressive import CoefficientTraining

FOLDER = Path("results")
ATTACK = "pgd(steps=40, restarts=10)"
POINTS = 1000
FIGURES = "evaluation.json"

#: Networks on which methods are compared, and in which norm.
LADDERS: dict[str, float] = {
    "mnist-fc1-kw-inf": math.inf,
    "mnist-cnn-mmr+at-inf": math.inf,
    "mnist-cnn-kw-inf": math.inf,
    "mnist-cnn-crown-ibp-inf": math.inf,
    "mnist-cnn-ibp-inf": math.inf,
    "mnist-cnn-plain-inf": 2.0,
    "mnist-cnn-at-inf": 2.0,
    "mnist-cnn-spectral-2": 2.0,
}
METHODS = {
    math.inf: ("ibp", "kw", "crown", "alpha", "moments", "auto"), 2.0: ("crown", "alpha", "lipschitz", "sdp"),
}  # fmt: skip
SECONDS = 30.0  # for a point by auto

#: data, model, scheme, norm, and other fields: epochs, and a larger rate or smaller batches where the epochs are few
RUNS: tuple[tuple[str, str, str, float, dict[str, float]], ...] = (
    ("mnist", "fc1", "plain", math.inf, {"epochs": 20}),
    ("mnist", "fc1", "at(attack_steps=10)", math.inf, {"epochs": 15}),
    ("mnist", "fc1", "mmr", math.inf, {"epochs": 50}),
    ("mnist", "fc1", "mmr+at", math.inf, {"epochs": 20}),
    ("mnist", "fc1", "kw(eps=0.11)", math.inf, {"epochs": 30, "batch": 32, "decay": 0.6}),
    ("mnist", "fc1", "at(attack_steps=10)", 2.0, {"epochs": 12}),
    ("mnist", "fc1", "mmr", 2.0, {"epochs": 40, "rate": 3e-4}),
    ("fmnist", "fc1", "plain", math.inf, {"epochs": 25}),
    ("fmnist", "fc1", "at(attack_steps=10)", math.inf, {"epochs": 80, "decay": 0.7}),
    ("fmnist", "fc1", "mmr+at(attack_steps=10)", math.inf, {"epochs": 40, "rate": 5e-4}),
    ("fmnist", "fc1", "mmr", 2.0, {"epochs": 10, "rate": 5e-4}),
    ("fmnist", "cnn", "mtl-ibp(alpha=0.5)", math.inf, {"epochs": 40}),
    ("mnist", "cnn", "plain", math.inf, {"epochs": 5}),
    ("mnist", "cnn", "at(attack_steps=10)", math.inf, {"epochs": 8}),
    ("mnist", "cnn", "mmr+at", math.inf, {"epochs": 8}),
    ("mnist", "cnn", "kw", math.inf, {"epochs": 5, "batch": 64}),
    ("mnist", "cnn", "crown-ibp(eps=0.15)", math.inf, {"epochs": 30, "batch": 64}),
    (
        "mnist",
        "cnn",
        "ibp(eps=0.11, kappa=0.9, adversarial=True, attack_steps=2)",
        math.inf,
        {"epochs": 75, "batch": 64, "crop": 1},
    ),
    ("mnist", "cnn", "mtl-ibp", math.inf, {"epochs": 40}),
    ("mnist", "cnn", "spectral", 2.0, {"epochs": 15}),
)


def configurations(folder: Path = FOLDER) -> dict[str, TrainConfig]:
    """The runs by the names of their folders."""
    found = {}
    for data, model, scheme, p, given in RUNS:
        config = TrainConfig(data=data, model=model, scheme=scheme, p=p)
        name = config.folder.name
        found[name] = dataclasses.replace(config, **given, out=folder / name)  # type: ignore[arg-type]
    return found


def command(config: TrainConfig) -> str:
    """The command that trains a network of the list."""
    given = {"epochs": config.epochs, "batch": config.batch, "rate": config.rate, "decay": config.decay}
    more = " ".join(
        f"--{name} {value:g}" for name, value in (given | {"crop": config.crop}).items() if value is not None
    )
    text = f'"{config.scheme}"' if "(" in str(config.scheme) else config.scheme
    recipe = "" if config.recipe == RECIPES[0] else f"--recipe {config.recipe} "
    return (
        f"relucert train --data {config.data} --model {config.model} --scheme {text} --p {config.p:g} {recipe}{more} "
        f"--out {config.folder}"
    )


def scheme(config: TrainConfig) -> str:
    """The name of the scheme of a network, and what its loss consists of if it trains against bounds."""
    filled = config.settings.scheme
    if isinstance(filled, CoefficientTraining):
        return f"{filled.name}, {filled.alpha:g} of the loss by intervals"
    if not isinstance(filled, BoundedTraining) or not filled.kappa:
        return filled.name
    return f"{filled.name}, {filled.kappa:g} of the loss {'at PGD points' if filled.adversarial else 'at the inputs'}"


def figures(name: str, config: TrainConfig) -> dict[str, Any]:
    """What is known of a trained network in each norm it is judged in: errors, the region theorem, and CROWN's bound."""
    file = config.folder / FIGURES
    known = json.loads(file.read_text()) if file.exists() else {}
    # A network of plain training is the counterpart of the others in both norms.
    for p in (math.inf, 2.0) if config.scheme == "plain" else (config.p,):
        key = f"{p:g}"
        if key not in known:
            found = evaluate(
                EvaluateConfig(
                    model=config.folder, data=config.data, p=p, points=POINTS, attack=ATTACK, out=_records(config)
                )
            )
            proved = verdicts(
                CertifyConfig(
                    model=config.folder, data=config.data, p=p, points=POINTS, method="crown", out=_records(config)
                )
            )
            known[key] = found.to_json() | {"robust_error": found.robust_error[0], "crown": proved.figures()}
            write_atomically(file, json.dumps(known, indent=2) + "\n")
            print(
                f"{name} l_{p:g}: test error {found.test_error:.2%}, PGD error {found.robust_error[0]:.2%}, CROWN error "
                f"{proved.robust_error[1]:.2%}",
                flush=True,
            )
    return known


def ladder(name: str, config: TrainConfig, known: dict[str, Any]) -> None:
    """Add what each method proves of a network to its figures: shares of points, and what all of them prove together."""
    p, points = LADDERS[name], POINTS
    steps: dict[str, Any] = known.setdefault("ladder", {})
    proved: set[int] = set()
    for method in METHODS[p]:
        if method == "moments" and config.model != "fc1":
            continue  # made for one layer of ReLUs
        found = verdicts(
            CertifyConfig(
                model=config.folder, data=config.data, p=p, points=points, method=method, out=_records(config),
                timeout=SECONDS if method == "auto" else None, workers=2, batch=50,
            )
        )  # fmt: skip
        proved |= {record.index for record in found.records if record.verdict == "robust"}
        steps[method] = found.figures()
        print(
            f"{name} l_{p:g}: {method} proves {found.counts['robust']} of {points}, {found.seconds:.0f} s", flush=True
        )
    falsified = evaluate(
        EvaluateConfig(
            model=config.folder,
            data=config.data,
            p=p,
            points=points,
            attack=ATTACK,
            regions=False,
            out=_records(config),
        )
    )
    steps["together"] = {"robust": len(proved), "points": points}
    steps["limit"] = {"robust": round((1 - falsified.robust_error[0]) * points), "points": points}
    write_atomically(config.folder / FIGURES, json.dumps(known, indent=2) + "\n")


def _records(config: TrainConfig) -> Path:
    """Where single points are recorded: outside the repository's results, which have the summaries."""
    folder = Path("runs") / "records"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{config.folder.name}.jsonl"


def page(known: dict[str, tuple[TrainConfig, dict[str, Any]]]) -> str:
    """The configurations and figures of all networks as Markdown."""
    networks = {name: trained_network(config, figures) for name, (config, figures) in known.items()}
    ladders = []
    for p, methods in METHODS.items():
        rungs = [networks[name] for name, norm in LADDERS.items() if norm == p and name in networks]
        radii = [(network, eps) for network in rungs if (eps := default_eps(network.data, p)) is not None]
        ladders.append(Ladder(p=p, methods=methods, networks=radii))
    return report.page(list(networks.values()), ladders, Protocol(points=POINTS, attack=ATTACK, seconds=SECONDS))


def trained_network(config: TrainConfig, figures: dict[str, Any]) -> TrainedNetwork:
    """A network of the page, from its configuration and its figures."""
    return TrainedNetwork(
        data=config.data, model=config.model, scheme=config.settings.scheme.name, description=scheme(config), p=config.p,
        epochs=config.epochs, command=command(config), figures=figures,
    )  # fmt: skip


def main(arguments: list[str]) -> None:
    """Train what is missing, or evaluate what is there and write the page."""
    known = configurations()
    verb, names = (arguments[0] if arguments else "", arguments[1:])
    if verb not in ("train", "evaluate") or not set(names) <= set(known):
        raise InvalidInput(
            f"usage: train [NAME ...] or evaluate, where NAME is one of {', '.join(known)}, got {' '.join(arguments)!r}"
        )
    if verb == "train":
        for name in names or known:
            train(known[name], Terminal())
        return
    there = {name: config for name, config in known.items() if (config.folder / MODEL_FILE).exists()}
    found = {name: (config, figures(name, config)) for name, config in there.items()}
    for name, (config, one) in found.items():
        if name in LADDERS and "ladder" not in one:
            ladder(name, config, one)
    write_atomically(FOLDER / "README.md", page(found))
    missing = [name for name in known if name not in there]
    print(
        f"{FOLDER / 'README.md'} has {len(found)} networks"
        + (f"; not trained yet: {', '.join(missing)}" if missing else "")
    )


if __name__ == "__main__":
    main(sys.argv[1:])
