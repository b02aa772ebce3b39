"""The idea of the paper: linear regions, distances to their hyperplanes, and the bounds that follow; one concept a file.

Read it beside the paper in this order:

1. `region`: the linear region Q(x), its hyperplanes and its affine map (section 2).
2. `hyperplane`: the l_p distance to a hyperplane, with and without a box (lemma 3.1, appendix A.1).
3. `distances`: d_B to the boundary of the region and d_D to the decision hyperplanes (lemmas 3.1 and 3.2).
4. `theorem`: the interval for the robust radius (theorem 3.1), with `witness` for the nearest verified adversarial points.
5. `exploration/`: larger lower bounds from neighbouring regions (appendix A.2).

Tools: `screening` (the nearest hyperplanes, without the rows of the others),
`row_norms/` (dual norms of all rows), `slices/` (regions in a plane, for figures).
"""
