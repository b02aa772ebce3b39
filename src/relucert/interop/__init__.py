"""Networks in other formats: `loading` (any file, chosen by its name), `onnx`, `vnnlib` (properties), `mat` (the paper's .mat files), `sklearn`."""
