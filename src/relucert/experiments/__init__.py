"""Lists of configurations: what to train, what to ask, and which page of `reports/` to write from the figures.

Reading order: `trained` (the networks of `results/`), `complete` (complete verification), `bounds` and `attacks` (methods
compared), `others` (networks that others have published), `demo`.
"""
