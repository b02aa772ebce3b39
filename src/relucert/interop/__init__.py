"""Networks in other formats: `loading` (any supported format, chosen by the file name), `onnx`, `mat` (the paper's .mat files)."""
