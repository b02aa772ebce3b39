"""Networks from elsewhere, and `load`, which reads every format by its name."""
