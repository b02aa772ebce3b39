"""Lists of configurations: what to train, what to ask, and which page of `reports/` to write from the figures.

Reading order: `trained` (the networks of `results/`), `complete` (complete verification), `deep` (the same of deep
networks), `bounds` and `attacks` (methods compared), `others` (networks that others have published), `demo`; `paper/` has
the paper's tables and figures by name.
"""
