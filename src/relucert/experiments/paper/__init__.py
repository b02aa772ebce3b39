"""The paper's tables and figures as named experiments, each a value: networks, questions about them, and what to draw.

Reading order: `experiment` (what an experiment is), `network` (a network of the paper: its configuration, and runs that
exist already), `step` (one question about its test points), then the experiments, one file each: `table1`, `table2`, `table3`,
`bounds`, `l2`, `cross_lipschitz`, `cw`, `lambdas`, `figures` (with `toy`, `planes`, `visible`: arrays that figures are drawn
from); `registry` has all of them by name, `reproduce` runs them, `config` is the configuration of a run.
"""
