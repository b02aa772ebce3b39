"""What `relucert reproduce` is given: one dataclass for the library and for the command line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from relucert.core.errors import InvalidInput
from relucert.evaluation.executors.choice import check_choice


@dataclass(frozen=True, kw_only=True)
class ReproduceConfig:
    """An experiment of the paper, and how much of it."""

    name: str
    """The experiment; all: every one of them; list: say what each needs, and do nothing."""
    data: tuple[str, ...] = ()
    """Data sets, such as mnist fmnist. By default all of the experiment."""
    models: tuple[str, ...] = ()
    """Architectures, such as fc1 cnn. By default all of the experiment."""
    schemes: tuple[str, ...] = ()
    """Training schemes, such as plain mmr+at. By default all of the experiment."""
    epochs: int | None = None
    """Epochs of training. Runs that exist already count only if they have as many; by default the paper's, and every run
    that exists counts."""
    points: int | None = None
    """How many test points are evaluated, from the first. By default the paper's: 1000, or all."""
    timeout: float | None = None
    """Seconds that a point may cost the verifier. By default 120 in l_inf, as in the paper, and 20 in l2."""
    workers: int | None = None
    """Processes on this machine that share the points. Each has one thread. None: this process; the verifier starts as many as
    torch has threads where that is faster."""
    scheduler: str | None = None
    """Address of a Dask scheduler, tcp://HOST:8786. Its workers share the points; networks are trained by this process."""
    out: Path = Path("runs/reproduce")
    """Folder of networks, records, tables and figures. What is there already is not done again."""
    runs: Path = Path("results")
    """Folder of runs that are used where they match. So less is trained."""
    existing: bool = False
    """Only networks that are trained already: nothing is trained."""
    queue: bool = False
    """Train what is missing, and nothing else. In order of value for time, each run for its own number of epochs; a run that
    was stopped goes on."""
    hours: float | None = None
    """With --queue: hours after which training stops. The same command goes on; 0 only prints the queue."""
    quick: bool = False
    """The experiment on the digits with tiny settings. It shows that everything runs, in seconds, not hours."""

    def __post_init__(self) -> None:
        for name, holds, rule in (
            ("epochs", self.epochs is None or self.epochs >= 1, "be at least 1"),
            ("points", self.points is None or self.points >= 1, "be at least 1"),
            ("timeout", self.timeout is None or self.timeout > 0, "be a positive number of seconds"),
            ("hours", self.hours is None or self.hours >= 0, "be at least 0"),
        ):
            if not holds:
                raise InvalidInput(f"{name} must {rule}, got {getattr(self, name)!r}")
        check_choice(self.workers, self.scheduler)
        if self.hours is not None and not self.queue:
            raise InvalidInput(f"hours must be left out without queue, whose trainings they limit, got {self.hours:g}")
        if self.quick and self.data not in ((), ("digits",)):
            raise InvalidInput(f"data must be left out with quick, which takes the digits, got {' '.join(self.data)}")
