"""Where work runs: this process, a pool of processes, or the workers of a Dask cluster.

Reading order: `executor` (the boundary, shaped like `concurrent.futures`), `choice` (which one `--workers` and `--scheduler`
mean), `here`, `processes`, `cluster` (one file for each).
"""
