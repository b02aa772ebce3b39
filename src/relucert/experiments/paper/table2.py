"""Table 2: the full MMR against its decision term alone."""

from __future__ import annotations

from relucert.experiments.paper.experiment import Experiment, files_of
from relucert.experiments.paper.l2 import network_of, steps
from relucert.reports.paper.tables import LAYOUTS
from relucert.reports.published import TABLE_2

EXPERIMENT = Experiment(
    name="table2",
    title="Table 2: mean l2 bounds of MMR and of MMR-d_D; FC1, FC10",
    networks=tuple(map(network_of, TABLE_2)),
    hours="days on one core: 12 networks of 300 epochs, KW bounds and the CW attack on 1000 points each",
    steps=steps,
    report=lambda networks, out: files_of(LAYOUTS["table2"].comparison(networks)),
)
