"""The German traffic signs: two .zip archives of PPM images and one with the test labels.

The whole image, not only the annotated region of interest, is resized to 32 x 32 with Pillow's bilinear filter.
Training images are ordered by class and then as the class's table lists them, test images as their table lists them.
"""

from __future__ import annotations

import csv
import io
import math
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image

from relucert.core.errors import DamagedData
from relucert.data._progress import progress
from relucert.data._zipped import member, open_zip
from relucert.data.specs import Spec

TRAINING, TEST, TRUTH = "GTSRB_Final_Training_Images.zip", "GTSRB_Final_Test_Images.zip", "GTSRB_Final_Test_GT.zip"
LARGEST_MEMBER = 16 * 2**20  # bytes; the largest official image has 250 x 250 pixels
LARGEST_IMAGE = 2**22  # pixels


def _table(archive: zipfile.ZipFile, path: Path, name: str) -> list[tuple[str, int]]:
    """File names and classes of an annotation table, in the order of the table."""
    text = member(archive, path, name, largest=LARGEST_MEMBER)
    try:
        rows = csv.DictReader(io.StringIO(text.decode("ascii")), delimiter=";")
        return [(row["Filename"], int(row["ClassId"])) for row in rows]
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        raise DamagedData(f"{path}: {name} must be a table with Filename and a whole ClassId: {error!r}") from error


def _images(archive: zipfile.ZipFile, path: Path, names: list[str], spec: Spec, split: str) -> np.ndarray:
    """Images (N, 32, 32, 3) of the named members, whose number must be that of the split."""
    if len(names) != spec.count(split):
        raise DamagedData(f"{path} must list {spec.count(split)} images, got {len(names)}")
    channels, height, width = spec.input_shape
    images = np.empty((len(names), height, width, channels), np.uint8)
    with progress(f"reading {spec.name} ({split})", len(names)) as at:
        for row, name in enumerate(names):
            content = member(archive, path, name, largest=LARGEST_MEMBER)
            try:
                # Restrict the decoder to PPM.
                with Image.open(io.BytesIO(content), formats=("PPM",)) as image:
                    if math.prod(image.size) > LARGEST_IMAGE:
                        raise ValueError(f"it must have at most {LARGEST_IMAGE} pixels, got {image.size}")
                    small = image.convert("RGB").resize((width, height), Image.Resampling.BILINEAR)
            except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
                raise DamagedData(f"{path}: {name} is not a PPM image: {error}") from error
            images[row] = np.asarray(small)
            at(row + 1)
    return images


def read(spec: Spec, files: Mapping[str, Path]) -> dict[str, np.ndarray]:
    """The four arrays of the data set."""
    training, test, truth = (files[name] for name in (TRAINING, TEST, TRUTH))
    arrays, names, labels = {}, [], []
    with open_zip(training) as archive:
        for label in range(spec.classes):
            folder = f"GTSRB/Final_Training/Images/{label:05d}"
            for name, stated in _table(archive, training, f"{folder}/GT-{label:05d}.csv"):
                if stated != label:
                    raise DamagedData(f"{training}: {folder}/{name} must be of class {label}, got {stated}")
                names.append(f"{folder}/{name}")
                labels.append(label)
        arrays["x_train"] = _images(archive, training, names, spec, "train")
    arrays["y_train"] = np.array(labels, np.int64)
    with open_zip(truth) as archive:
        rows = _table(archive, truth, "GT-final_test.csv")
    with open_zip(test) as archive:
        names = [f"GTSRB/Final_Test/Images/{name}" for name, _ in rows]
        arrays["x_test"] = _images(archive, test, names, spec, "test")
    arrays["y_test"] = np.array([label for _, label in rows], np.int64)
    return arrays
