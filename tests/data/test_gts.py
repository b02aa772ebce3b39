"""The traffic signs' archives: PPM images of any size and tables, in the makers' order."""

from __future__ import annotations

import io
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from data.official import gts_members, ppm, table, write_zips
from relucert.core.errors import DamagedData
from relucert.data import SPECS, Spec
from relucert.data.gts import TEST, TRAINING, TRUTH, read

TRAIN_LABELS = sorted([*range(43), 5, 5, 17])
TEST_LABELS = [16, 1, 38, 33, 11, 42, 0]
SPEC = replace(SPECS["gts"], train=len(TRAIN_LABELS), test=len(TEST_LABELS))
IMAGES = "GTSRB/Final_Training/Images"


@pytest.fixture(scope="module")
def images() -> dict[str, list[np.ndarray]]:
    rng = np.random.default_rng(0)

    def some(count: int) -> list[np.ndarray]:
        sides = rng.integers(15, 80, (count, 2))
        return [rng.integers(0, 256, (*side, 3), np.uint8) for side in sides]

    return {"train": some(len(TRAIN_LABELS)), "test": some(len(TEST_LABELS))}


@pytest.fixture
def members(images) -> dict[str, dict[str, bytes]]:
    return gts_members(images, {"train": TRAIN_LABELS, "test": TEST_LABELS})


def convert(tmp_path: Path, members: dict[str, dict[str, bytes]], spec: Spec = SPEC) -> dict[str, np.ndarray]:
    return read(spec, write_zips(tmp_path, members))


def test_archives_give_the_arrays_in_order(images, members, tmp_path: Path) -> None:
    found = convert(tmp_path, members)
    for split, labels in (("train", TRAIN_LABELS), ("test", TEST_LABELS)):
        small = [np.asarray(Image.fromarray(i).resize((32, 32), Image.Resampling.BILINEAR)) for i in images[split]]
        assert found[f"x_{split}"].dtype == np.uint8
        assert found[f"y_{split}"].dtype == np.int64
        np.testing.assert_array_equal(found[f"x_{split}"], np.stack(small))
        assert found[f"y_{split}"].tolist() == labels
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(members)


def test_images_of_the_right_size_are_kept_as_they_are(members, tmp_path: Path) -> None:
    image = np.random.default_rng(1).integers(0, 256, (32, 32, 3), np.uint8)
    members[TEST]["GTSRB/Final_Test/Images/00002.ppm"] = ppm(image)
    np.testing.assert_array_equal(convert(tmp_path, members)["x_test"][2], image)


def test_the_table_orders_the_test_images(members, tmp_path: Path) -> None:
    first = convert(tmp_path / "a", members)
    rows = [(f"{n:05d}.ppm", TEST_LABELS[n]) for n in (3, 0, 6, 1, 5, 2, 4)]
    members[TRUTH]["GT-final_test.csv"] = table(rows)
    found = convert(tmp_path / "b", members)
    np.testing.assert_array_equal(found["x_test"], first["x_test"][[3, 0, 6, 1, 5, 2, 4]])
    assert found["y_test"].tolist() == [label for _, label in rows]


def png() -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (20, 20)).save(out, format="PNG")
    return out.getvalue()


GT7 = f"{IMAGES}/00007/GT-00007.csv"
FAULTS = {
    "no table": (TRAINING, lambda m: m.pop(GT7), f"must hold {GT7}"),
    "no image": (TRAINING, lambda m: m.pop(f"{IMAGES}/00003/00000_00000.ppm"), "must hold .*00003/00000_00000.ppm"),
    "class of another folder": (
        TRAINING,
        lambda m: m.update({GT7: table([("00000_00000.ppm", 8)])}),
        "00007/00000_00000.ppm must be of class 7, got 8",
    ),
    "an image less": (TRAINING, lambda m: m.update({GT7: table([])}), "must list 46 images, got 45"),
    "cut image": (
        TRAINING,
        lambda m: m.update({f"{IMAGES}/00003/00000_00000.ppm": m[f"{IMAGES}/00003/00000_00000.ppm"][:99]}),
        "00003/00000_00000.ppm is not a PPM image",
    ),
    "empty image": (TEST, lambda m: m.update({"GTSRB/Final_Test/Images/00001.ppm": b""}), "is not a PPM image"),
    "other format": (TEST, lambda m: m.update({"GTSRB/Final_Test/Images/00001.ppm": png()}), "is not a PPM image"),
    "huge image": (
        TEST,
        lambda m: m.update({"GTSRB/Final_Test/Images/00001.ppm": b"P6 60000 60000 255\n"}),
        "is not a PPM image",
    ),
    "huge member": (
        TEST,
        lambda m: m.update({"GTSRB/Final_Test/Images/00001.ppm": bytes(17 * 2**20)}),
        "must have at most 16777216 bytes, got 17825792",
    ),
    "path": (TRUTH, lambda m: m.update({"GT-final_test.csv": table([("../x.ppm", 1)] * 7)}), "must hold .*x.ppm"),
    "no classes": (TRUTH, lambda m: m.update({"GT-final_test.csv": b"Filename;Width\n0.ppm;3\n"}), "ClassId"),
    "short row": (TRUTH, lambda m: m.update({"GT-final_test.csv": table([]) + b"00000.ppm;3\n"}), "ClassId"),
    "class is text": (TRUTH, lambda m: m.update({"GT-final_test.csv": b"Filename;ClassId\n0.ppm;x\n"}), "ClassId"),
    "not ascii": (TRUTH, lambda m: m.update({"GT-final_test.csv": b"Filename;ClassId\n\xff;1\n"}), "ClassId"),
    "truth is empty": (TRUTH, lambda m: m.update({"GT-final_test.csv": b""}), "must list 7 images, got 0"),
    "truth is missing": (TRUTH, lambda m: m.clear(), "must hold GT-final_test.csv"),
}


@pytest.mark.parametrize("case", FAULTS)
def test_damage_is_named(case: str, members, tmp_path: Path) -> None:
    archive, spoil, message = FAULTS[case]
    spoil(members[archive])
    with pytest.raises(DamagedData, match=message) as caught:
        convert(tmp_path, members)
    # The number of test images is counted in the table, and missed in the images' archive.
    blamed = TEST if case in ("path", "truth is empty") else archive
    assert str(tmp_path / blamed) in str(caught.value)


@pytest.mark.parametrize("archive", [TRAINING, TEST, TRUTH])
def test_truncated_archives_are_damaged(archive: str, members, tmp_path: Path) -> None:
    files = write_zips(tmp_path, members)
    whole = files[archive].read_bytes()
    for length in (0, len(whole) // 2, len(whole) - 1):
        files[archive].write_bytes(whole[:length])
        with pytest.raises(DamagedData, match=f"{archive} is damaged"):
            read(SPEC, files)


def test_changed_pixels_are_damaged(members, tmp_path: Path) -> None:
    files = write_zips(tmp_path, members)
    with zipfile.ZipFile(files[TEST]) as archive:
        info = archive.getinfo("GTSRB/Final_Test/Images/00004.ppm")
    content = bytearray(files[TEST].read_bytes())
    content[info.header_offset + 30 + len(info.filename) + info.compress_size // 2] ^= 1
    files[TEST].write_bytes(content)
    with pytest.raises(DamagedData, match=f"{TEST} is damaged"):
        read(SPEC, files)
