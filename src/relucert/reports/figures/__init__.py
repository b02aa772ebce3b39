"""The paper's figures from arrays and records: each file has one kind of figure, a function of arrays that returns it.

Reading order: `drawing` (style, colours, PNG and SVG), `regions` (linear regions on a plane), `theorem` (its two cases),
`verifiability` (time and robust error over lambda), `ratios` (attack over optimum), `certified` (accuracy over the radius),
`gradients` and `filters` (what networks look at). Colours are those of Okabe and Ito, which colour-blind readers can tell
apart; figures are as wide as a column, and are read without their colours, too.
"""
