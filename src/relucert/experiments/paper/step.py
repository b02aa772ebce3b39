"""One question about the test points of a network of the paper, answered by records."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from relucert.evaluation.attack import AttackTask
from relucert.evaluation.certify import CertifyTask
from relucert.evaluation.config import AttackConfig, CertifyConfig, RadiusConfig
from relucert.evaluation.radius import RadiusTask
from relucert.records.record import Record
from relucert.reports.paper.measured import MeasuredNetwork


class Verb(StrEnum):
    """What is done with the points: attacked within the radius, or as near as possible; verified; their radii found."""

    ATTACK = "attack"
    SMALLEST = "smallest"
    CERTIFY = "certify"
    RADIUS = "radius"


class Only(StrEnum):
    """The points that a step is needed for, by what earlier steps have found out about them."""

    ALL = "all"
    OPEN = "open"
    OPTIMAL = "optimal"


@dataclass(frozen=True, kw_only=True)
class Step:
    """A method and the first `points` test points, all with None; `only` leaves some of these out.

    With `fixed` verifiers take batches as a run that was never stopped, so that margins are the same to the last digit as well;
    what is lost by an interruption is a batch then.

    With `labels` False the question is about the predicted class, as in the paper's mean distances. The order of steps is
    that of a cascade: cheap ones first, then what they leave open. `timeout`: seconds of the verifier for a point.
    """

    verb: Verb
    method: str
    points: int | None = 1000
    labels: bool = True
    only: Only = Only.ALL
    batch: int = 100
    timeout: float | None = None
    fixed: bool = False

    def records(
        self, network: MeasuredNetwork, folder: Path, workers: int | None = None, scheduler: str | None = None
    ) -> Iterator[Record]:
        """The records of the points, of which new ones are stored as they come; `folder` is that of the network's run.

        `workers` processes share the points, or those of the Dask cluster at `scheduler`.
        """
        about = {
            "model": folder, "data": network.key.data, "p": network.key.p, "points": self.points, "method": self.method,
            "batch": self.batch, "workers": workers, "scheduler": scheduler, "out": network.records,
        }  # fmt: skip
        task = self._task(about, network.eps)
        chosen = self._chosen(network, task)
        found = task.records(chosen, fixed=self.fixed) if isinstance(task, CertifyTask) else task.records(chosen)
        with closing(found) as records:
            yield from records

    def _task(self, about: dict[str, Any], eps: float | None) -> CertifyTask | RadiusTask | AttackTask:
        match self.verb:
            case Verb.CERTIFY:
                return CertifyTask(CertifyConfig(**about, eps=eps, timeout=self.timeout))
            case Verb.RADIUS:
                return RadiusTask(RadiusConfig(**about, attack=None, labels=self.labels))
            case Verb.ATTACK:
                return AttackTask(AttackConfig(**about, eps=eps, labels=self.labels))
            case Verb.SMALLEST:
                return AttackTask(AttackConfig(**about, labels=self.labels))

    def _chosen(self, network: MeasuredNetwork, task: CertifyTask | RadiusTask | AttackTask) -> list[int] | None:
        """The points that the step is needed for; None for all.

        Records of this step itself do not count, so that a run which was stopped anywhere ends with the same records.
        """
        if self.only is Only.ALL:
            return None
        own = task.question.record(0).method
        known = network.undecided(lambda record: record.method != own) if self.only is Only.OPEN else network.optima
        return [index for index in known if index < len(task)]
