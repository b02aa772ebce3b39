"""`python -m relucert.checker DIR --network NET`: check all certificates of a folder. `relucert check` is the same."""

from __future__ import annotations

import argparse
import json as json_format
import sys
import time
from collections import Counter
from pathlib import Path

from relucert.checker.arithmetic import Outward, Rational, Refused
from relucert.checker.check import Certificate, check
from relucert.checker.network import read


def run(folder: Path, network: Path, exact: bool = False, json: bool = False) -> int:
    """Print a line for every certificate and a summary: 0 if all are CHECKED, 1 if one is not, 2 if there are none to check."""
    num, counts, started = Rational() if exact else Outward(), Counter[str](), time.monotonic()
    try:
        net = read(network, num)
    except Exception as error:  # whatever the file is
        print(f"relucert: error: {network} cannot be read: {error}", file=sys.stderr)
        return 2
    for path in sorted(folder.glob("*.npz")):
        said, word = {}, "NOT CHECKED"
        try:
            certificate = Certificate.read(path)
            said = certificate.header
            if said.get("verdict") == "none":
                word, text = "NO CERTIFICATE", str(said.get("reason"))
            else:
                text = check(certificate, net, num)
                word = "CHECKED"
        except Refused as error:
            text = str(error)
        except Exception as error:  # a damaged certificate may break anything, and must break nothing else
            text = f"the certificate makes no sense: {type(error).__name__}: {error}"
        counts[word] += 1
        claim = {name: said.get(name) for name in ("p", "eps", "label", "point")}
        about = f"l_{claim['p']} {claim['eps']}, class {claim['label']}, input {str(claim['point'])[:12]}"
        line = f"{path.name}: {word}: {text}; {about}"
        line = "".join(
            letter if letter.isprintable() else "?" for letter in line
        )  # files cannot write lines of their own
        print(
            json_format.dumps({"file": path.name, "result": word, "text": text, **claim}) if json else line, flush=True
        )
    words = ", ".join(f"{count} {word}" for word, count in counts.most_common()) or "nothing to check"
    seconds = time.monotonic() - started
    line = f"{counts.total()} files: {words}; network {net.digest[:12]}, {seconds:.1f} s"
    print(json_format.dumps({"summary": {**counts, "network": net.digest, "seconds": seconds}}) if json else line)
    return 1 if counts["NOT CHECKED"] else 0 if counts else 2


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="relucert.checker", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--network", type=Path, required=True)
    parser.add_argument("--exact", action="store_true", help="rational numbers instead of float64: for small networks")
    parser.add_argument("--json", action="store_true", help="JSON, a line for every certificate and the summary")
    sys.exit(run(**vars(parser.parse_args())))
