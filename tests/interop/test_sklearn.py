"""Networks of scikit-learn's pipelines decide as the pipelines do, in the units of the table."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    MaxAbsScaler,
    MinMaxScaler,
    OneHotEncoder,
    PolynomialFeatures,
    RobustScaler,
    StandardScaler,
)
from sklearn.svm import LinearSVC

import relucert as rc
from relucert.core.errors import InvalidInput, UnsupportedLayer
from relucert.interop.sklearn import from_sklearn, sklearn_inputs

RANDOM = np.random.default_rng(0)
ROWS = RANDOM.standard_normal((80, 4)) * [1.0, 10.0, 1000.0, 0.01] + [0.0, 50.0, -300.0, 0.02]
TWO = (ROWS[:, 0] + (ROWS[:, 1] - 50) / 10 > 0).astype(int)
THREE = TWO + (ROWS[:, 2] > 100)
MLP = {"hidden_layer_sizes": (8, 5), "max_iter": 30, "random_state": 0}

CLASSIFIERS = {
    "mlp": lambda: make_pipeline(StandardScaler(), MLPClassifier(**MLP)),
    "mlp without activation": lambda: make_pipeline(StandardScaler(), MLPClassifier(**MLP, activation="identity")),
    "logistic": lambda: make_pipeline(MinMaxScaler((-1, 2)), LogisticRegression()),
    "svc": lambda: make_pipeline(RobustScaler(), LinearSVC()),
    "max abs": lambda: make_pipeline(MaxAbsScaler(), LogisticRegression()),
    "clipped": lambda: make_pipeline(MinMaxScaler(clip=True), LogisticRegression()),
    "pca": lambda: make_pipeline(StandardScaler(), PCA(3, whiten=True), LogisticRegression()),
    "half scaled": lambda: make_pipeline(StandardScaler(with_mean=False), "passthrough", LogisticRegression()),
    "alone": lambda: LogisticRegression(max_iter=20),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CLASSIFIERS)
@pytest.mark.parametrize("labels", [TWO, THREE + 5], ids=["two", "three"])
def test_classifiers_decide_as_the_pipeline(name: str, labels: np.ndarray) -> None:
    model = CLASSIFIERS[name]().fit(ROWS, labels)
    net = from_sklearn(model)
    rows = np.concatenate([ROWS, 3 * ROWS])
    x = sklearn_inputs(model, rows)
    assert x.dtype == net.dtype == torch.float64
    assert net.input_shape == (4,)
    assert (model.classes_[net.predict(x).numpy()] == model.predict(rows)).all()
    if hasattr(model, "decision_function"):
        scores = model.decision_function(rows)
        found = net(x).detach().numpy()
        expected = np.stack([np.zeros(len(rows)), scores], 1) if scores.ndim == 1 else scores
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.filterwarnings("ignore")
def test_tables_have_no_box_by_default(tmp_path) -> None:
    net = from_sklearn(make_pipeline(StandardScaler(), LogisticRegression()).fit(ROWS, TWO))
    x = torch.tensor(ROWS[:3])
    y = net.predict(x)
    assert net.box is None
    assert rc.certify(net, x, y, rc.Ball(2, 1e-6), "crown").verdict == [rc.Verdict.ROBUST] * 3
    assert torch.equal(rc.radius(net, x, method="crown").lower, rc.radius(net, x, box=None, method="crown").lower)
    assert torch.equal(rc.minimal_attack(net, x).x, rc.minimal_attack(net, x, box=None).x)
    with pytest.raises(
        InvalidInput, match=r"x must lie in the box of Ball\(2, 0.1, box=\(0, 1\)\) \(None for no box\)"
    ):
        rc.certify(net, x, y, rc.Ball(2, 0.1, (0.0, 1.0)))
    for name in ("net.safetensors", "net.onnx"):
        rc.save(net, tmp_path / name)
        assert rc.load(tmp_path / name).box is None


@pytest.mark.filterwarnings("ignore")
def test_regressors_have_ranges_in_the_units_of_the_table() -> None:
    for model in (
        make_pipeline(StandardScaler(), MLPRegressor(**MLP)),
        make_pipeline(MinMaxScaler(), LinearRegression()),
    ):
        model.fit(ROWS, 3 * ROWS[:, 0] + ROWS[:, 1])
        net, x = from_sklearn(model), torch.tensor(ROWS[:5])
        assert net.classes == 1
        np.testing.assert_allclose(net(x).detach().numpy()[:, 0], model.predict(ROWS[:5]), rtol=1e-9)
        found = rc.output_range(net, x, rc.Ball(math.inf, 0.5, box=None))
        moved = ROWS[:5] + RANDOM.uniform(-0.5, 0.5, (200, 5, 4))
        values = model.predict(moved.reshape(-1, 4)).reshape(200, 5)
        assert (values >= found.lower.numpy()[:, 0] - 1e-9).all()
        assert (values <= found.upper.numpy()[:, 0] + 1e-9).all()
        with pytest.raises(InvalidInput, match="at least two logits, got 1 output"):
            rc.certify(net, x, torch.zeros(5, dtype=torch.long), rc.Ball(2, 0.1, None))


@pytest.mark.filterwarnings("ignore")
def test_categories_are_fixed_inputs() -> None:
    colour = np.array(["red", "green", "blue"])[RANDOM.integers(0, 3, 80)]
    table = np.empty((80, 4), dtype=object)
    table[:, 0], table[:, 1], table[:, 2], table[:, 3] = ROWS[:, 0], colour, ROWS[:, 2], ROWS[:, 3]
    labels = ((colour == "red") ^ (ROWS[:, 0] > 0)).astype(int)
    columns = ColumnTransformer(
        [("scaled", StandardScaler(), [0, 2]), ("coded", OneHotEncoder(), [1])], remainder="passthrough"
    )
    model = make_pipeline(columns, MLPClassifier(**(MLP | {"max_iter": 200}))).fit(table, labels)
    net, x = from_sklearn(model), sklearn_inputs(model, table)
    assert net.input_shape == (6,)
    assert (net.predict(x).numpy() == model.predict(table)).all()
    assert set(x[:, 2:5].unique().tolist()) == {0.0, 1.0}
    lower, upper = torch.full_like(x, -math.inf), torch.full_like(x, math.inf)
    lower[:, 2:5] = upper[:, 2:5] = x[:, 2:5]
    found = rc.attack(net, x, None, rc.Ball(math.inf, 2.0, (lower, upper)))
    assert bool(found.success.any())
    assert torch.equal(found.x[:, 2:5], x[:, 2:5])
    certificate = rc.certify(net, x[:5], net.predict(x[:5]), rc.Ball(math.inf, 1e-6, (lower[:5], upper[:5])), "crown")
    assert rc.Verdict.ROBUST in certificate.verdict


@pytest.mark.filterwarnings("ignore")
def test_all_parts_that_are_refused_are_named_at_once() -> None:
    model = make_pipeline(PolynomialFeatures(), StandardScaler(), RandomForestClassifier(3)).fit(ROWS, TWO)
    with pytest.raises(UnsupportedLayer) as caught:
        from_sklearn(model)
    for part in ("PolynomialFeatures is not an affine map", "RandomForestClassifier at the end", "MLPClassifier"):
        assert part in str(caught.value)
    with pytest.raises(UnsupportedLayer, match="activation must be 'relu' or 'identity', got 'tanh'"):
        from_sklearn(MLPClassifier(**MLP, activation="tanh").fit(ROWS, TWO))
    with pytest.raises(InvalidInput, match="model must be fitted, got LogisticRegression that is not"):
        from_sklearn(LogisticRegression())
    with pytest.raises(InvalidInput, match="model must be fitted, got int that is not"):
        from_sklearn(3)
