"""Verdicts and radii: from a query about inputs to an answer that is proved or shown.

The way of one input through `certify(net, x, y, ball, "auto")`, file by file, in reading order:

1. `certify`: checks the arguments, looks the method up and hands batches of inputs to its verifier; `decisions` yields what is
   decided, one input after the other. For several balls `_union` does so ball after ball.
2. `registry`: the methods by name, each with its verifier and its radius method; `Auto` is a list of verifiers, each of which
   sees what those before it have left open.
3. `verifier`: `Query` is network, float64 copy, inputs, balls and property, made once; `Budget` is the time.
   `Verifier.decide(query, budget)` is an iterator of `Decision`s, in the order in which they are made; `Outcome` is what a
   verifier knows of its batch, and where ROBUST and VULNERABLE are made.
4. `_incomplete`: the region theorem (`geometry.theorem`), bounds (`bounding.methods`) and attacks (`attacks`) as verifiers. A
   margin must be positive after rounding was charged (`bounding.rounding`).
5. `bab`: branch and bound, with `_subproblems`, `_counterexamples` and `_leaves` beside it. A counterexample is run through
   the network again (`networks.prediction`).

`specifications` decides the unsafe sets of VNN-LIB files, by `bab.input_splitting`, `bab.envelopes` and `bab`.

`mip` is another complete verifier. `radius` finds the largest radius: by the theorem (`_exploration`), by bounds (`_search`),
by branch and bound (`_narrowing`) or by programs (`mip.distortion`); `_upper` adds an attack. `bounds` gives the
intervals alone. `workers` lets several processes share the inputs.
"""
