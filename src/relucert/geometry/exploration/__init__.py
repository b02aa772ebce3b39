"""Exploration of neighbouring regions: lower bounds on the distance to a change of decision that grow with every region.

Reading order: `search` (margins, rows and errors of a region; the loop and its keys), `crossing` (the pattern beyond a
hyperplane), `separation` (distances to intersections of half spaces, proved by one combined half space), and three searches:
`neighbours` (distances to hyperplanes), `facets` (distances to facets) and `arrangement` (one hidden layer: sets of flipped
units; with `layer`, its hyperplanes and decisions, and `screening`, the keys of many sets at once).
`universal` has radii in every norm from one region, without exploration.
"""
