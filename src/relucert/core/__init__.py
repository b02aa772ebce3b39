"""Norms, balls, properties, results, records and errors: everything that needs no network."""
