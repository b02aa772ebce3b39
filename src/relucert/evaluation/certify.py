"""Verdicts on a data set's test points at one radius, streamed into records, by one process or several."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Collection, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from relucert.core.ball import Ball
from relucert.core.rounding import require_full_precision
from relucert.core.versions import versions
from relucert.evaluation._stream import Found, Share, Task
from relucert.evaluation.config import CertifyConfig
from relucert.records.answers import decider
from relucert.records.question import save
from relucert.records.record import Record, Verdict, ball_fields
from relucert.records.store import RecordStore
from relucert.verification.certify import decide
from relucert.verification.proofs.prover import FINAL, Claim, Prover
from relucert.verification.recorded import certify_text, decision_of, facts_of
from relucert.verification.registry import VERDICT_SECONDS, budget_of, find
from relucert.verification.verifier import Query, batches


@dataclass(frozen=True)
class Verdicts:
    """The records of the points that were reached, by index, and how many have which verdict.

    `points` is the number of all points; `by` counts the records that each method decided.
    """

    records: list[Record]
    points: int
    counts: dict[str, int]
    by: dict[str, int]
    seconds: float

    @classmethod
    def of(cls, records: Iterable[Record], points: int) -> Verdicts:
        """The summary of records of `points` points."""
        found = sorted(records, key=lambda record: record.index)
        counts = {str(verdict): sum(record.verdict == verdict for record in found) for verdict in Verdict}
        by = Counter(decider(record) for record in found)
        return cls(found, points, counts, dict(by.most_common()), sum(record.seconds or 0.0 for record in found))

    @property
    def robust_error(self) -> tuple[float, float]:
        """Both ends of the robust error: the share of points that are misclassified or have a counterexample, and the share
        that are misclassified or not proved.
        """
        lower = (self.counts["misclassified"] + self.counts["vulnerable"]) / self.points
        return lower, 1 - self.counts["robust"] / self.points

    @property
    def executed(self) -> int:
        """How many points are proved for the network as executed, of those that are robust."""
        return sum(record.arithmetic == "executed" for record in self.records)

    def summary(self) -> dict[str, Any]:
        """The summary without the records, as JSON."""
        reached = {"points": self.points, "reached": len(self.records)}
        ends = {"robust_error": list(self.robust_error)}
        return {**self.counts, "executed": self.executed, **ends, **reached, "by": self.by, "seconds": self.seconds}

    def figures(self) -> dict[str, Any]:
        """The summary as the files of `results/` keep it: the ends of the robust error under two names."""
        lower, upper = self.robust_error
        return self.summary() | {"robust_error": upper, "broken_error": lower}


class CertifyTask(Task[CertifyConfig]):
    """Verdicts on the test points of a data set.

    Verdicts are independent of batch composition, so a run that was stopped anywhere goes on with the points that are missing,
    whatever the batches and the number of workers were.
    """

    def __init__(self, config: CertifyConfig):
        self.method, entry = find(config.method)
        super().__init__(config)
        self.verifier = entry.verifier(self.method)
        box = self.box if config.box else None
        self.ball = Ball(config.norm, config.radius, box)
        self.question = self._ask(
            ball_fields(config.norm, config.radius, box),
            certify_text(self.method, config.arithmetic, config.timeout),
        )

    @torch.no_grad()
    def records(self, only: Collection[int] | None = None, *, fixed: bool = False) -> Generator[Record, None, None]:
        """The records that are there already, then new ones as points are decided; all are stored before they are yielded.

        Points that are open when `run_timeout` is over have no record. With `only` the other points are left out. With `fixed`
        batches are those of a run that was not stopped, and points that have a record are decided again in them: margins are
        the same to the last digit, too, wherever and however often the work was begun.
        """
        config = self.config
        deadline = math.inf if config.run_timeout is None else time.monotonic() + config.run_timeout
        points, known = range(len(self)) if only is None else only, versions()
        keys = {index: self.question.record(index).key for index in points}
        with self.executor() as executor, RecordStore(config.records, writable=True) as store:
            self._inspect(store)
            pieces = torch.tensor(list(keys), dtype=torch.long).split(config.batch if fixed else 1)
            missing = [piece for piece in pieces if not all(keys[int(index)] in store for index in piece)]
            wanted = torch.cat(missing) if missing else pieces[0][:0]
            for key in [key for key in keys.values() if key in store]:
                yield store.record(key)
            share, most = Share(self, deadline), batches(self.verifier)
            with closing(executor.answers(share, wanted, config.batch, most, fixed=fixed)) as answers:
                for index, facts in answers:
                    if keys[index] in store:
                        continue
                    yield save(self.question, store, index, facts, known)

    def prove(self, records: Iterable[Record], folder: Path) -> Counter[str]:
        """Write certificate files of the verdicts in records, and count them by what they are: "none" is no certificate."""
        prover = Prover(self.net, folder)
        with RecordStore(self.config.records) as store:
            for record in records:
                if record.verdict in FINAL:
                    one = slice(record.index, record.index + 1)
                    claim = Claim.of(decision_of(record, store), self.x[one], self.y[one], self.ball, self.net.classes)
                    prover.write(f"{record.index:06d}", claim)
        return prover.written

    @torch.no_grad()
    def solve(self, places: Tensor, deadline: float) -> Iterator[Found]:
        """The index and the facts of the points in some places, each as soon as it is decided; none after the deadline."""
        if time.monotonic() >= deadline:
            return
        x, y = self.x[places], self.y[places]
        self.net.check(x, y)
        self.net.require_eval("a certificate")
        require_full_precision(self.x, "a certificate")
        self.ball.check(x)
        predicted = self.net.predict(x).tolist()
        strict = self.config.arithmetic == "executed"
        query = replace(Query.of(self.net, x, y, self.ball, batch=self.config.batch), strict=strict)
        budget = budget_of(self.method, self.config.timeout, VERDICT_SECONDS, deadline)
        for found in decide(query, self.verifier, budget, self.config.batch):
            place = int(places[found.index])
            facts = facts_of(found, int(y[found.index]), predicted[found.index])
            yield self.numbers[place], facts | {"content": self.contents[place]}  # workers read the data themselves


def verdicts(config: CertifyConfig) -> Verdicts:
    """Certify test points as the configuration says."""
    task = CertifyTask(config)
    with closing(task.records()) as records:
        return Verdicts.of(records, len(task))
