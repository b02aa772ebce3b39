"""The data sets of the paper and the digits of scikit-learn, one loader a data set, and data of one's own.

Reading order: `specs` (what each data set is), `load` (`dataset`), `folder`, `download`, `npz`, the loaders, `own`.
This module imports neither torch nor numpy, so that `--help` of the command line is fast; `dataset`, `fetch` and `Dataset` are
imported at their first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from relucert.data.folder import Place, data_folder, locate
from relucert.data.specs import SPECS, Archive, Name, Spec, spec_of

if TYPE_CHECKING:
    from relucert.data._images import Dataset
    from relucert.data._load import dataset, fetch

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


# No submodule may be named `dataset` or `fetch`: importing it would replace the function of that name.
def __getattr__(name: str) -> Any:
    if name in ("dataset", "fetch"):
        from relucert.data import _load

        return getattr(_load, name)
    if name == "Dataset":
        from relucert.data._images import Dataset

        return Dataset
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
