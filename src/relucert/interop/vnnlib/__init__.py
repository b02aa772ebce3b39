"""VNN-LIB files: `specification` (what a file says), `reading` (version 1.0; 2.0 with the extra `vnnlib`), `writing`.

A file describes the unsafe set of a network: inputs in boxes whose outputs satisfy linear inequalities, joined by `and` and
`or`. `_expressions` splits the text into expressions with lines, `_formulas` turns these into disjuncts of linear inequalities.
"""
