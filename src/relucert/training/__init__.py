"""Training of networks whose robustness can be proved: one loop, and one file a scheme.

Reading order: `config` (what a run is), `recipes` (the paper's settings, the defaults), `schedules` (quantities that change
over a run), `schemes` (the parameters of each scheme), `losses` (what each scheme minimises), `example_losses` (the same for
loops of one's own), `examples` (data), `models` (networks), `loop` (the steps), `ranks` (several processes), `run` and `saving`
(the files of a run), `tensorboard`, `problem` (`rc.train`), `old_config` (files of earlier versions).
"""
