"""Networks and properties in other formats.

`loading` (any network, chosen by the file's name), `onnx`, `mat` (the paper's .mat files), `sklearn`, `vnnlib` (properties).
"""
