"""From region to region: lower bounds on the distance to a change of decision that grow with every region explored.

Reading order: `neighbours` (the search and its keys), `crossing` (the pattern behind a face), `facets` (distances to facets).
"""
