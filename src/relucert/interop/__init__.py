"""Networks in other formats: `load` (any supported format, chosen by the file name), `mat` (the paper's .mat files)."""
