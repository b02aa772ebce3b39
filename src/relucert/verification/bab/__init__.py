"""Branch and bound over ReLU splits, complete for every supported network, over boxes of inputs, and over one layer of ReLUs.

Reading order: `bab` (the search), `subproblems` (what is bounded, and what is open), `counterexamples` (attacks inside the
search), `leaves` (convex programs of subproblems with nothing left to split). For `input_splitting`: `boxes`. For `envelopes`:
`layer_margin` (what is proved), `envelope_program` (the linear program that the solver gets).
"""
