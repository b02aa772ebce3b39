"""The layers that tracing understands, one file a family: nodes, readers, and the way back from a checkpoint.

A layer is declared in one file: the class of its node (a map, its adjoint and absolute value, its rounded operations), the
readers that recognise the layer in a module, and how a checkpoint restores it, collected in the file's `FAMILY`. `table` lists
the families. Reading order: `family` (what a family says), `linear` (with
`convolution`), `normalisation`, `arithmetic`, `shapes`, `resizing`, `pooling`, `activations`, `table`.
"""
