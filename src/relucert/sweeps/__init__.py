"""Many training runs that differ in some fields, judged on examples that are held out of the training set.

Reading order: `config` (what a sweep is), `space` (what varies), `presets` (the paper's grids), `suggestions` (grid, random,
Optuna), `stopping` (trials that end early), `trial` (one run, measured after some epochs), `journal` (what a sweep keeps in its
folder), `sweep` (the loop).
"""
