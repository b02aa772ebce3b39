"""ONNX files (extra `onnx`): `reading` (a file to a network), `writing` (a network to a file).

A graph becomes the description that checkpoints have (`networks/build/rebuilding.py`), node by node: `_graph` has the values
under construction and the loop over nodes, `_operators` lists the operators, which `_linear`, `_pooling`, `_pointwise` and
`_shaping` translate, and `_constants` computes what depends on no input. Tensors keep their bits.
"""
