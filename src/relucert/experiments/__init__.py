"""Lists of configurations and how their table is drawn."""
