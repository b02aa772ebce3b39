"""What a sweep tries next: the points of a grid, random points, or what Optuna suggests.

The suggestion for trial number n follows from the seed, n and the trials before, so a sweep that was stopped goes on as it
would have.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any, Literal

from relucert.core.errors import InvalidInput, MissingExtra
from relucert.sweeps._space import Choices, Domain, Value
from relucert.sweeps.journal import Trial

Search = Literal["grid", "random", "optuna"]
#: Given the trials so far: the values of the next one, None if there are no more.
Suggest = Callable[[Sequence[Trial]], dict[str, Value] | None]

REPEATS = 200  # random points that are drawn before a space counts as used up


def suggestions(search: Search, space: dict[str, Domain], seed: int) -> Suggest:
    """How a sweep chooses its trials."""
    if search == "grid":
        return _grid(space)
    return _random(space, seed) if search == "random" else _optuna(space, seed)


def grid_size(space: dict[str, Domain]) -> int:
    """The number of points of a grid; intervals have none."""
    size = 1
    for name, domain in space.items():
        if not isinstance(domain, Choices):
            raise InvalidInput(
                f"vary must list the values of {name} for a grid, got an interval: search random or optuna"
            )
        size *= len(domain.values)
    return size


def _grid(space: dict[str, Domain]) -> Suggest:
    grid_size(space)
    points = itertools.product(*(domain.values for domain in space.values() if isinstance(domain, Choices)))
    every: list[dict[str, Value]] = [dict(zip(space, point, strict=True)) for point in points]
    return lambda past: every[len(past)] if len(past) < len(every) else None


def _random(space: dict[str, Domain], seed: int) -> Suggest:
    def suggest(past: Sequence[Trial]) -> dict[str, Value] | None:
        draw = random.Random(f"{seed} {len(past)}")
        known = [trial.values for trial in past]
        for _ in range(REPEATS):
            values = {name: _drawn(domain, draw) for name, domain in space.items()}
            if values not in known:
                return values
        return None

    return suggest


def _drawn(domain: Domain, draw: random.Random) -> Value:
    return draw.choice(domain.values) if isinstance(domain, Choices) else domain.at(draw.random())


def _optuna(space: dict[str, Domain], seed: int) -> Suggest:
    """Suggestions for two objectives, error and certified error, by Optuna's tree-structured Parzen estimator.

    A trial that was stopped early counts with the figures it had, one that failed does not count.
    """
    try:
        import optuna
    except ImportError as error:
        raise MissingExtra("search optuna needs the extra sweep: pip install 'relucert[sweep]'") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    distributions = {name: _distribution(domain, optuna.distributions) for name, domain in space.items()}

    def suggest(past: Sequence[Trial]) -> dict[str, Value] | None:
        sampler = optuna.samplers.TPESampler(seed=random.Random(f"{seed} {len(past)}").getrandbits(31))
        study = optuna.create_study(directions=["minimize", "minimize"], sampler=sampler)
        for trial in past:
            if trial.last is not None:
                values = [trial.last.error, trial.last.certified_error]
                made = optuna.trial.create_trial(params=trial.values, distributions=distributions, values=values)
                study.add_trial(made)
        return study.ask(distributions).params

    return suggest


def _distribution(domain: Domain, kinds: Any) -> Any:
    if isinstance(domain, Choices):
        return kinds.CategoricalDistribution(domain.values)
    if domain.whole:
        return kinds.IntDistribution(int(domain.low), int(domain.high))
    return kinds.FloatDistribution(domain.low, domain.high, log=domain.log)
