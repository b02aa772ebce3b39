"""What the steps of an epoch have measured: the loss, its parts, and how many examples were wrong."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from relucert.training.losses.loss import Terms
from relucert.training.ranks import Ranks


@dataclass(frozen=True)
class Step:
    """What a step has measured: the loss and its parts, and how many of the labelled examples were wrong."""

    values: dict[str, float]
    labelled: int
    wrong: int
    stopped: bool

    @staticmethod
    def of(terms: Terms, share: float, ranks: Ranks, counts: bool, stopped: bool) -> Step:
        """The measurements of all processes together; `counts` says whether this one's examples are no other one's."""
        named = {"loss": terms.loss, **terms.parts}
        wrong = int((terms.logits.argmax(1) != terms.labels).sum())
        if ranks.size == 1:
            return Step(
                {name: float(value.detach()) for name, value in named.items()}, len(terms.labels), wrong, stopped
            )
        own = [len(terms.labels) * counts, wrong * counts, int(stopped)]
        found = [share * float(value.detach()) for value in named.values()]
        total = ranks.sum(torch.tensor([*own, *found], dtype=torch.float64)).tolist()
        return Step(dict(zip(named, total[3:], strict=True)), round(total[0]), round(total[1]), total[2] > 0)


@dataclass
class Sums:
    """Sums over the steps of the current epoch; saved with the state, so that metrics do not depend on stops."""

    examples: int = 0
    labelled: int = 0
    wrong: int = 0
    terms: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0

    def add(self, step: Step, count: int, seconds: float) -> None:
        self.examples += count
        self.labelled += step.labelled
        self.wrong += step.wrong
        for name, value in step.values.items():
            self.terms[name] = self.terms.get(name, 0.0) + value * count
        self.seconds += seconds

    def means(self) -> dict[str, float]:
        means = {name: total / self.examples for name, total in self.terms.items()}
        return {**means, "train_error": self.wrong / self.labelled, "seconds": self.seconds}
