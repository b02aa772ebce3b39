"""Figures and records in, tables and pages out: no network is loaded and nothing is computed again. No torch here.

A page is a function of values, which `experiments/` fills from its configurations and from the JSON files of `results/`.
Reading order: `markdown` (tables), `published` (figures of the paper), `paper/` (tables with these and ours), `figures/`
(pictures), then one file a page: `trained`, `complete`, `deep`,
`bounds`, `attacks`; `demo` is the table on the terminal. The HTML report of records: `intervals` (what all records of a point
say together), `sprites` (pictures), `page`, with markup, style and scripts in `assets/`; `config` is its configuration.
"""
