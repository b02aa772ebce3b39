"""The idea of the paper, one concept a file, to be read beside it.

Reading order: `region` (section 2), `hyperplane` and `distances` (lemmas 3.1 and 3.2), `theorem` (theorem 3.1), `exploration/`
(appendix A.2), `row_norms/`, `slices/`; `witness` keeps the nearest counterexamples.
"""
