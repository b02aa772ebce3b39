"""From an `nn.Module` or the description in a checkpoint to a network.

Reading order: `values` (what a step of a trace reads and makes), `builder` (the graph under construction), `tracing` (from a
module to a graph), `rebuilding` (a network as JSON and tensors, and back). The layers themselves are declared in
`networks/layers/`.
"""
