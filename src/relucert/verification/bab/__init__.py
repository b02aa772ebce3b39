"""Branch and bound over ReLU splits, complete for every supported network.

Reading order: `bab` (the search), `subproblems` (what is bounded), `frontier` (open subproblems), `counterexamples` (attacks
inside the search), `leaves` (programs of fully split subproblems), `tree` (open subproblems kept for a smaller ball).
"""
