"""Exploration of neighbouring regions: lower bounds on the distance to a change of decision that grow with every region.

Reading order: `search` (margins, rows and errors of a region; the loop and its keys), `crossing` (the pattern
beyond a hyperplane), and the two searches: `neighbours` (distances to hyperplanes) and `facets` (distances to facets).
`universal` has radii in every norm from one region, without exploration.
"""
