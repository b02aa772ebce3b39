"""Arrays that figures are drawn from: .npz files, grouped by network."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from relucert.records.untrusted import reading

#: Arrays by name.
Arrays = dict[str, np.ndarray]


def read_arrays(file: Path) -> dict[str, Arrays]:
    """The arrays of a file, of which the names are GROUP/NAME, by group; a damaged file is `DamagedData`."""
    groups: dict[str, Arrays] = {}
    with reading(file, "delete the file and run the experiment again"), np.load(file, allow_pickle=False) as stored:
        for name in stored.files:
            group, _, key = name.partition("/")
            groups.setdefault(group, {})[key] = stored[name]
    return groups
