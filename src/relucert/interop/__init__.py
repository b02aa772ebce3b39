"""Networks in other formats: `loading` (any of them, chosen by the file name), `onnx`, `mat` (the paper's .mat files)."""
