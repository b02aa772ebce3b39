"""An experiment of the paper as a value."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from relucert.experiments.paper.network import PaperNetwork
from relucert.experiments.paper.step import Step
from relucert.records.atomic import write_atomically
from relucert.reports.paper.comparison import Comparison
from relucert.reports.paper.measured import MeasuredNetwork

#: Test points of a quick run.
QUICK_POINTS = 8
#: Files by name: texts, or bytes of pictures.
Files = dict[str, str | bytes]


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How much is done: test points and seconds for a point where they are not the paper's, and whether tiny settings do."""

    points: int | None = None
    timeout: float | None = None
    quick: bool = False


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A table or a figure of the paper: networks, questions about each of them, and what is drawn from the answers.

    Args:
        name: of the command line.
        title: what it is, in a line.
        networks: those of the paper.
        hours: about how long all of it takes, in words.
        steps: the questions about a network, in order.
        report: the files to write, by name, from all networks that have been evaluated.
        arrays: computes what figures are drawn from and no record holds, into a folder, from the folders of runs by the names
            of networks; what is there already is kept.
    """

    name: str
    title: str
    networks: tuple[PaperNetwork, ...]
    hours: str
    steps: Callable[[PaperNetwork, Effort], Sequence[Step]]
    report: Callable[[Sequence[MeasuredNetwork], Path], Files]
    arrays: Callable[[Mapping[str, Path], Path, Effort], None] | None = None

    @property
    def data(self) -> tuple[str, ...]:
        """The data sets that it needs."""
        return tuple(dict.fromkeys(network.data for network in self.networks))

    def on_digits(self) -> tuple[PaperNetwork, ...]:
        """The networks of the quick run: every architecture, scheme and norm of the experiment, on the digits."""
        small = [network.on_digits() for network in self.networks]
        return tuple({network.name: network for network in small}.values())

    def write(self, networks: Sequence[MeasuredNetwork], out: Path) -> list[Path]:
        """Write the files of the report below `out` and return them."""
        names = {network.name for network in (*self.networks, *self.on_digits())}
        files = self.report([network for network in networks if network.name in names], out)
        for name, content in files.items():
            write_atomically(out / name, content)
        return [out / name for name in files]


def no_steps(network: PaperNetwork, effort: Effort) -> Sequence[Step]:
    """No question about the test points."""
    return ()


def files_of(*comparisons: Comparison) -> Files:
    """The files of tables."""
    return {name: text for comparison in comparisons for name, text in comparison.files().items()}
