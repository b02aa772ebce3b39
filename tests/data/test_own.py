"""Data of one's own: folders of images, arrays and tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from relucert.core.errors import DamagedData, InvalidInput, MissingData, RelucertError
from relucert.data import dataset

PIXELS = np.arange(6 * 5 * 4 * 3, dtype=np.uint8).reshape(6, 5, 4, 3)


def _save(folder: Path, names: list[str], images: np.ndarray = PIXELS) -> None:
    for name, image in zip(names, images, strict=False):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / name)


@pytest.mark.parametrize(
    ("folders", "names", "labels"),
    [
        (["b", "a"], ("a", "b"), [0, 0, 0, 1, 1, 1]),
        (["10", "2"], (*"0123456789", "10"), [10, 10, 10, 2, 2, 2]),
        (["007", "000"], tuple("01234567"), [0, 0, 0, 7, 7, 7]),
    ],
)
def test_subfolders_are_classes(tmp_path: Path, folders, names, labels) -> None:
    _save(tmp_path, [f"{folder}/{i}.png" for folder in sorted(folders) for i in range(3)])
    data = dataset(f"{tmp_path}/")
    assert data.class_names == names
    assert data.y_test.tolist() == labels
    assert data.box == (0.0, 1.0)
    assert torch.equal(data.x_test * 255, torch.from_numpy(PIXELS).permute(0, 3, 1, 2).float())


def test_a_table_of_labels(tmp_path: Path) -> None:
    _save(tmp_path, ["one.png", "two.bmp", "three.ppm"])
    (tmp_path / "labels.csv").write_text("label,file\ncat,two.bmp\nant,one.png\ncat,three.ppm\n")
    data = dataset(str(tmp_path))
    assert data.y_test.tolist() == [1, 0, 1]
    assert torch.equal(data.x_test[1] * 255, torch.from_numpy(PIXELS[0]).permute(2, 0, 1).float())


def test_train_and_test_folders(tmp_path: Path) -> None:
    _save(tmp_path, ["train/a/0.png", "train/b/1.png", "test/b/0.png"])
    data = dataset(str(tmp_path))
    assert (len(data.y_train), data.y_test.tolist(), data.classes) == (2, [1], 2)


def test_an_input_shape_converts_images(tmp_path: Path) -> None:
    _save(tmp_path, ["a/0.png", "a/1.jpg"])
    Image.fromarray(np.zeros((9, 9, 4), np.uint8), "RGBA").save(tmp_path / "a" / "2.png")
    Image.fromarray(np.full((3, 3), 255, np.uint8)).save(tmp_path / "a" / "3.png")
    with pytest.raises(DamagedData, match="--input-shape"):
        dataset(str(tmp_path))
    data = dataset(str(tmp_path), input_shape=(1, 8, 8))
    assert data.x_test.shape == (4, 1, 8, 8)
    assert float(data.x_test[3].min()) == 1.0


@pytest.mark.parametrize("layout", ["N H W", "N H W 3", "N 3 H W", "flat"])
def test_bytes_are_images(tmp_path: Path, layout: str) -> None:
    grey, colour = PIXELS[..., 0], PIXELS
    stored = {"N H W": grey, "N H W 3": colour, "N 3 H W": colour.transpose(0, 3, 1, 2), "flat": grey.reshape(6, -1)}[
        layout
    ]
    np.savez(tmp_path / "own.npz", x=stored, y=np.array([0, 1, 2, 0, 1, 2]))
    data = dataset(str(tmp_path / "own.npz"), input_shape=(1, 5, 4) if layout == "flat" else None)
    truth = grey[:, None] if layout in ("N H W", "flat") else colour.transpose(0, 3, 1, 2)
    assert torch.equal(data.x_test * 255, torch.from_numpy(truth.copy()).float())
    assert data.classes == 3


def test_numbers_are_taken_as_they_are(tmp_path: Path) -> None:
    x, y = np.linspace(-3, 3, 12).reshape(4, 3), np.array(["no", "yes", "no", "no"])
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    data = dataset(f"{tmp_path / 'x.npy'},{tmp_path / 'y.npy'}")
    assert torch.equal(data.x_test, torch.from_numpy(x).float())
    assert (data.box, data.input_shape, data.y_test.tolist()) == (None, (3,), [0, 1, 0, 0])


@pytest.mark.parametrize(("low", "box"), [(0.0, (0.0, 1.0)), (-0.1, None)])
def test_images_of_floats_have_a_box_if_they_lie_in_it(tmp_path: Path, low: float, box) -> None:
    np.savez(tmp_path / "own.npz", x_test=np.linspace(low, 1, 32).reshape(2, 1, 4, 4), y_test=np.array([0, 1]))
    assert dataset(str(tmp_path / "own.npz")).box == box


@pytest.mark.parametrize(
    "text",
    [
        "a,b,label\n1,2.5,x\n-3,4e-2,y\n",
        "label,a,b\nx,1,2.5\ny,-3,4e-2\n",
        "1,2.5,x\n-3,4e-2,y\n",
        "a,b,c\n1,2.5,x\n-3,4e-2,y\n",
    ],
)
def test_tables_of_features(tmp_path: Path, text: str) -> None:
    (tmp_path / "own.csv").write_text(text)
    data = dataset(str(tmp_path / "own.csv"))
    assert torch.equal(data.x_test, torch.tensor([[1, 2.5], [-3, 4e-2]]))
    assert (data.class_names, data.y_test.tolist(), data.box) == (("x", "y"), [0, 1], None)
    assert data.spec.columns == (("a", "b") if "a" in text else ())


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of sources that are wrong in one way each."""
    folder = tmp_path_factory.mktemp("wrong")
    x, y = np.zeros((2, 3)), np.array([0, 1])
    np.savez(folder / "none.npz", a=x)
    np.savez(folder / "count.npz", x=x, y=y[:1])
    np.savez(folder / "negative.npz", x=x, y=-y)
    np.savez(folder / "objects.npz", x=np.array([{}, {}], object), y=y)
    np.savez(folder / "infinite.npz", x=x + np.inf, y=y)
    np.savez(folder / "large.npz", x=x + 1e300, y=y)
    np.savez(folder / "channels.npz", x=np.zeros((2, 4, 4, 2), np.uint8), y=y)
    (folder / "torn.npz").write_bytes((folder / "none.npz").read_bytes()[:50])
    (folder / "short.csv").write_text("a,b\n")
    (folder / "ragged.csv").write_text("1,2,x\n1,x\n")
    (folder / "words.csv").write_text("a,b,label\n1,two,x\n")
    (folder / "bytes.csv").write_bytes(b"\xff\xfe\x00")
    (folder / "empty").mkdir()
    (folder / "sizes" / "a").mkdir(parents=True)
    _save(folder / "sizes" / "a", ["0.png"])
    Image.fromarray(np.zeros((2, 2, 3), np.uint8)).save(folder / "sizes" / "a" / "1.png")
    (folder / "text" / "a").mkdir(parents=True)
    (folder / "text" / "a" / "0.png").write_text("no image")
    (folder / "deep" / "a").mkdir(parents=True)
    Image.fromarray(np.zeros((2, 2), np.uint16)).save(folder / "deep" / "a" / "0.png")
    (folder / "outside").mkdir()
    (folder / "outside" / "labels.csv").write_text("file,label\n../sizes/a/0.png,x\n")
    (folder / "columns").mkdir()
    (folder / "columns" / "labels.csv").write_text("name,kind\n0.png,x\n")
    (folder / "notes.txt").write_text("no data")
    return folder


#: Wrong sources, the error of each, and what its message must say.
WRONG = [
    ("missing.npz", MissingData, "exists"),
    ("none.npz", DamagedData, "must hold the arrays x and y, or x_test and y_test, got a"),
    ("count.npz", DamagedData, r"x \(2, 3\) and y \(1,\)"),
    ("negative.npz", DamagedData, "whole numbers from 0"),
    ("objects.npz", DamagedData, r"x must have a dtype of numbers or booleans, got '\|O'"),
    ("infinite.npz", DamagedData, "finite"),
    ("large.npz", DamagedData, "finite"),
    ("channels.npz", DamagedData, "images"),
    ("torn.npz", DamagedData, "damaged"),
    ("short.csv", DamagedData, "two lines"),
    ("ragged.csv", DamagedData, "line 2 must have 3 columns, got 2"),
    ("words.csv", DamagedData, "line 2 must hold numbers besides its label, got 'two'"),
    ("bytes.csv", DamagedData, "comma-separated"),
    ("empty", MissingData, "labels.csv"),
    ("sizes", DamagedData, r"1.png must have the size .*--input-shape"),
    ("text", DamagedData, "0.png must be a PNG"),
    ("deep", DamagedData, "8 bits a channel"),
    ("outside", DamagedData, "its own folder"),
    ("columns", DamagedData, "file and label"),
    ("a.npy,b.npy,c.npy", MissingData, "exists"),
    ("notes.txt", InvalidInput, "must be a folder"),
]


@pytest.mark.parametrize(("source", "error", "said"), WRONG)
def test_wrong_sources_are_refused_by_name(wrong: Path, source: str, error: type[RelucertError], said: str) -> None:
    with pytest.raises(error, match=said):
        dataset(",".join(str(wrong / part) for part in source.split(",")))


def test_own_test_data_cannot_train(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", x=np.zeros((2, 3)), y=np.array([0, 1]))
    with pytest.raises(MissingData, match="must hold training data"):
        _ = dataset(str(tmp_path / "own.npz")).x_train


def test_a_published_set_has_its_own_shape() -> None:
    with pytest.raises(
        InvalidInput, match=r"input_shape must be left out for digits, or be \(1, 8, 8\), got \(1, 4, 4\)"
    ):
        dataset("digits", input_shape=(1, 4, 4))
