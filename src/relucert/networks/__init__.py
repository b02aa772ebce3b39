"""The graph of affine and switching nodes, the architectures of the paper, and checkpoints."""
