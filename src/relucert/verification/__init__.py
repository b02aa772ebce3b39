"""Verdicts and radii: from a question about inputs to an answer that is proved or shown.

One input through `certify(net, x, y, ball, "auto")`: `certify` checks the arguments, makes the float64 copy of the network and
the property, and hands batches to `cascade`. There every stage (`auto` lists them) sees the inputs that are still open: the
region theorem (`geometry.theorem`), attacks (`attacks`), bounds (`margins`, `bounding.methods`), then branch and bound
(`bab/`). A verdict ROBUST needs a margin above the rounding errors of bound and network (`bounding.rounding`); VULNERABLE
needs a counterexample that was run again (`networks.prediction`). `radius` searches for the largest radius: by the theorem, by
bounds (`search`), by branch and bound (`narrowing`) or by programs (`mip.distortion`).
"""
