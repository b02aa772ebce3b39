"""`python -m relucert` is the command line."""

from __future__ import annotations

import sys

from relucert.cli import main

if __name__ == "__main__":
    sys.exit(main())
