"""Training of networks whose robustness can be proved: one loop, and one file a scheme.

Reading order: `config` (what a run is), `recipes` (the paper's settings, the defaults), `schedules` (quantities that change
over a run), `schemes` (the parameters of each scheme), `losses` (what each scheme minimises), `loop` (the steps), `run` and
`saving` (the files of a run), `old_config` (files of earlier versions).
"""
