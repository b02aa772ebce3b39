"""The data sets of the paper, and the digits that come with scikit-learn: one loader a data set.

What is imported here at once needs neither torch nor numpy, so that the command line can name the data sets in its
`--help`; `dataset`, `fetch` and `Dataset` are imported when they are first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from relucert.data.folder import Place, data_folder, locate
from relucert.data.specs import SPECS, Archive, Name, Spec, spec_of

if TYPE_CHECKING:
    from relucert.data.images import Dataset
    from relucert.data.load import dataset, fetch

__all__ = [
    "SPECS",
    "Archive",
    "Dataset",
    "Name",
    "Place",
    "Spec",
    "data_folder",
    "dataset",
    "fetch",
    "locate",
    "spec_of",
]


# No submodule may be called `dataset` or `fetch`: importing it would overwrite the function of that name here.
def __getattr__(name: str) -> Any:
    if name in ("dataset", "fetch"):
        from relucert.data import load

        return getattr(load, name)
    if name == "Dataset":
        from relucert.data.images import Dataset

        return Dataset
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
