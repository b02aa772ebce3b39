"""`python -m relucert.checker DIR --network NET`: check all certificates of a folder. `relucert check` is the same."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

from relucert.checker.arithmetic import Outward, Rational, Refused
from relucert.checker.check import Certificate, check
from relucert.checker.network import read


def run(folder: Path, network: Path, exact: bool = False) -> int:
    """Print a line for every certificate and a summary; 0 if all are CHECKED, 1 if one is not, 2 if nothing can be checked."""
    num = Rational() if exact else Outward()
    try:
        net = read(network, num)
    except (Refused, OSError, ValueError, KeyError) as error:
        print(f"relucert: error: {network} cannot be read: {error}", file=sys.stderr)
        return 2
    paths, counts, started = sorted(folder.glob("*.npz")), Counter[str](), time.monotonic()
    for path in paths:
        header = {}
        try:
            certificate = Certificate.read(path)
            header = certificate.header
            if header.get("verdict") == "none":
                word, text = "NO CERTIFICATE", str(header.get("reason"))
            else:
                word, text = "CHECKED", check(certificate, net, num)
        except Refused as error:
            word, text = "NOT CHECKED", str(error)
        except Exception as error:  # a damaged certificate may break anything, and must break nothing else
            word, text = "NOT CHECKED", f"the certificate makes no sense: {type(error).__name__}: {error}"
        counts[word] += 1
        ball = f"l_{header.get('p')} {header.get('eps')}, class {header.get('label')}, input {str(header.get('point'))[:12]}"
        print(f"{path.name}: {word}: {text}; {ball}", flush=True)
    words = ", ".join(f"{count} {word}" for word, count in counts.most_common())
    print(
        f"{len(paths)} files: {words or 'nothing to check'}; network {net.digest[:12]}, {time.monotonic() - started:.1f} s"
    )
    return 1 if counts["NOT CHECKED"] else 0 if paths else 2


def main() -> int:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(prog="relucert.checker", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--network", type=Path, required=True)
    parser.add_argument("--exact", action="store_true", help="rational numbers instead of float64: for small networks")
    given = parser.parse_args()
    return run(given.folder, given.network, given.exact)


if __name__ == "__main__":
    sys.exit(main())
