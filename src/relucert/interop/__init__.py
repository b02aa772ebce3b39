"""Networks and properties in other formats.

`loading` (any file with a network, chosen by its name), `onnx`, `mat` (the paper's .mat files), `sklearn`; `vnnlib` (properties).
"""
