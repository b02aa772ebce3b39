"""The 1797 handwritten digits of scikit-learn: 8 x 8 pixels with 17 grey levels."""

from __future__ import annotations

import numpy as np

EVERY = 5


def arrays() -> dict[str, np.ndarray]:
    """The digits with a fixed split: every fifth example of each class, in scikit-learn's order, is a test example.

    The split has 1442 training and 355 test examples with equal class frequencies and uses no random generator. The same
    writers occur in both parts.

    >>> {key: array.shape for key, array in arrays().items()}
    {'x_train': (1442, 8, 8), 'y_train': (1442,), 'x_test': (355, 8, 8), 'y_test': (355,)}
    """
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    x, y = images.reshape(-1, 8, 8).astype(np.uint8), labels.astype(np.int64)
    # The number of earlier examples of the same class, from running counts (N, classes).
    rank = np.cumsum(y[:, None] == np.arange(10), axis=0)[np.arange(len(y)), y] - 1
    test = rank % EVERY == EVERY - 1
    return {"x_train": x[~test], "y_train": y[~test], "x_test": x[test], "y_test": y[test]}
