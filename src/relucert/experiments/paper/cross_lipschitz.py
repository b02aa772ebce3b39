"""Cross-Lipschitz regularisation beside adversarial training, KW and MMR+at: robust errors of FC1 on MNIST in l2."""

from __future__ import annotations

from collections.abc import Sequence

from relucert.experiments.paper.experiment import Effort, Experiment, files_of
from relucert.experiments.paper.network import PaperNetwork
from relucert.experiments.paper.step import Step
from relucert.experiments.paper.table1 import cascade
from relucert.reports.paper.tables import LAYOUTS
from relucert.reports.published import CROSS_LIPSCHITZ


def steps(network: PaperNetwork, effort: Effort) -> Sequence[Step]:
    """The questions of Table 1."""
    return cascade(network.p, effort)


EXPERIMENT = Experiment(
    name="cross-lipschitz",
    title="Appendix: Cross-Lipschitz regularisation against at, KW and MMR+at; MNIST, FC1, l2",
    networks=tuple(PaperNetwork(**key._asdict()) for key in CROSS_LIPSCHITZ),
    hours="a day on one core: 4 networks of 100 epochs, three of them those of table1",
    steps=steps,
    report=lambda networks, out: files_of(LAYOUTS["cross-lipschitz"].comparison(networks)),
)
