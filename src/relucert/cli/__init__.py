"""The command line: one file a verb; each parses, calls the library and prints."""

from relucert.cli.main import main

__all__ = ["main"]
