"""The registry: complete, consistent, and light enough for `--help`."""

from __future__ import annotations

import subprocess
import sys
from typing import get_args

import pytest

from relucert.core.errors import InvalidInput
from relucert.data import SPECS, Name, dataset, fetch, locate, spec_of

HEX_DIGITS = {"md5": 32, "sha256": 64}


def test_names() -> None:
    assert get_args(Name) == tuple(SPECS) == ("digits", "mnist", "fmnist", "gts", "cifar10")
    assert all(spec.name == name for name, spec in SPECS.items())


@pytest.mark.parametrize(
    ("name", "classes", "shape", "train", "test"),
    [
        ("mnist", 10, (1, 28, 28), 60000, 10000),
        ("fmnist", 10, (1, 28, 28), 60000, 10000),
        ("gts", 43, (3, 32, 32), 39209, 12630),
        ("cifar10", 10, (3, 32, 32), 50000, 10000),
    ],
)
def test_facts(name: str, classes: int, shape: tuple[int, ...], train: int, test: int) -> None:
    spec = SPECS[name]
    assert (spec.classes, spec.input_shape, spec.train, spec.test) == (classes, shape, train, test)
    assert len(set(spec.class_names)) == classes


@pytest.mark.parametrize("archive", [a for spec in SPECS.values() for a in spec.archives], ids=lambda a: a.file)
def test_archives_can_be_fetched_and_checked(archive) -> None:
    algorithm, _, digits = archive.digest.partition(":")
    assert len(digits) == HEX_DIGITS[algorithm]
    int(digits, 16)
    assert archive.size > 0
    assert archive.urls
    for url in archive.urls:
        assert url.startswith(("https://", "http://"))
        assert archive.file in url


def test_archives_differ() -> None:
    digests = [archive.digest for spec in SPECS.values() for archive in spec.archives]
    assert len(set(digests)) == len(digests)


@pytest.mark.parametrize("function", [dataset, fetch, locate, spec_of])
@pytest.mark.parametrize("name", ["MNIST", "", None, ["mnist"]])
def test_unknown_name_lists_the_names(function, name) -> None:
    with pytest.raises(InvalidInput, match=r"name must be one of digits, mnist, fmnist, gts, cifar10, got"):
        function(name)


def test_package_is_light() -> None:
    code = (
        "import sys, relucert.data, relucert.cli.data as cli;"
        "relucert.data.locate('digits'); relucert.data.data_folder();"
        "print([m for m in ('torch', 'numpy', 'PIL', 'sklearn') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_functions_stay_functions() -> None:
    """A submodule called `dataset` would take the function's place in the package once imported."""
    import relucert.data

    assert relucert.data.dataset("digits").name == "digits"
    assert relucert.data.dataset("digits").name == "digits"
    assert callable(relucert.data.fetch)
    assert isinstance(relucert.data.dataset("digits"), relucert.data.Dataset)
    with pytest.raises(AttributeError, match="nothing"):
        _ = relucert.data.nothing
