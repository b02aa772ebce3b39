"""A data set and methods in, records out."""
