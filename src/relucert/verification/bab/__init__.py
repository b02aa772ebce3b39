"""Branch and bound over ReLU splits, complete for every supported network, and over input boxes (`input_splitting`, `boxes`).

Reading order: `bab` (the search), `subproblems` (what is bounded, and what is open), `counterexamples` (attacks inside the
search), `leaves` (convex programs of subproblems with nothing left to split).
"""
