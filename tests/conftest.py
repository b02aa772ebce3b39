"""Fixtures for all tests: a data folder of their own, and the real data sets where a developer has them."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from typechecking import install

SOURCE = Path(__file__).resolve().parents[1] / "src"
#: Modules that answer wrong shapes with an error of their own, which tests expect: what they accept is checked.
_REFUSING = {
    "attacks.problem", "core.ball", "core.norms", "core.properties", "core.results", "geometry.distances",
    "geometry.hyperplane", "geometry.theorem", "regularizers.cross_lipschitz", "regularizers.mmr", "verification.bounds",
    "verification.certify", "verification.radius",
}  # fmt: skip


def _shaped() -> list[str]:
    """The modules with shape annotations, which are checked at every call while tests run."""
    files = [file for file in (SOURCE / "relucert").rglob("*.py") if "[Tensor, " in file.read_text()]
    names = {".".join(file.relative_to(SOURCE).with_suffix("").parts) for file in files}
    return sorted(names)


install(_shaped(), {f"relucert.{name}" for name in _REFUSING})

from relucert.data import Dataset, dataset  # noqa: E402
from sharing import taken  # noqa: E402

# Two workers share the cores, and a result must not depend on how many there are.
torch.set_num_threads(1)
# A shell lets its background jobs ignore SIGINT, and so would the processes that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of the cases of a test with the mark `share(n)` about one in n runs in `make test`; the others become slow."""
    numbers: Counter[str] = Counter()
    for item in items:
        share = item.get_closest_marker("share")
        if share is not None:
            test = item.nodeid.partition("[")[0]
            sizes = [len(mark.args[1]) for mark in item.iter_markers("parametrize")]  # the last one varies fastest
            if not taken(numbers[test], sizes, share.args[0]):
                item.add_marker("slow")
            numbers[test] += 1


@pytest.fixture(scope="session", autouse=True)
def _own_data_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test reads or fills the data folder of whoever runs it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RELUCERT_DATA", str(tmp_path_factory.mktemp("data")))
        yield


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with material that is not part of the repository."""
    if not SHARED.is_dir():
        pytest.skip("needs ../shared, which lies beside the repository and is not part of it")
    return SHARED


class RealData:
    """The real data sets, unpacked on first use into a folder that outlives the test run."""

    def __init__(self, shared: Path, folder: Path) -> None:
        self._unpack = shared / "data" / "unpack"
        self._folder = folder
        self._loaded: dict[str, Dataset] = {}

    def folder(self, name: str) -> Path:
        """A data folder, to be used as RELUCERT_DATA, that has the data set."""
        if not self._unpack.is_file():
            pytest.skip("needs ../shared/data, which lies beside the repository and is not part of it")
        target = self._folder / f"{name}.npz"
        if not target.is_file():
            # Other workers may be at it too: each writes a folder of its own, and renaming is atomic.
            with tempfile.TemporaryDirectory(dir=self._folder) as own:
                subprocess.run([sys.executable, self._unpack, own, name], check=True, stdout=subprocess.DEVNULL)
                (Path(own) / target.name).replace(target)
        return self._folder

    def __call__(self, name: str) -> Dataset:
        """The data set; the same object throughout the test run."""
        if name not in self._loaded:
            self._loaded[name] = dataset(name, self.folder(name))
        return self._loaded[name]


@pytest.fixture(scope="session")
def real_data(shared: Path, pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> RealData:
    """`real_data("mnist")` is the real Dataset, `real_data.folder("mnist")` a data folder with it; skips without it."""
    cache = getattr(pytestconfig, "cache", None)
    return RealData(shared, cache.mkdir("relucert-data") if cache else tmp_path_factory.mktemp("relucert-data"))
