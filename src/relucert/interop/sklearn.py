"""`from_sklearn`: pipelines of scikit-learn as networks, with inputs in the units of the table.

Scalers become shifts and factors in front of the network, in float64 as scikit-learn computes, so that a ball around a row is
measured in the units of its columns. A column of categories has no neighbourhood: it is an input of 0 and 1 for each of its
categories (`sklearn_inputs` makes these), to be kept fixed by the box.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from relucert.core.errors import InvalidInput, UnsupportedLayer
from relucert.networks.layers.arithmetic import ScaleLayer, ShiftLayer
from relucert.networks.layers.entries import GatherLayer
from relucert.networks.network import Network

Array = np.ndarray[Any, Any]


def from_sklearn(model: Any) -> Network:
    """The network of a fitted estimator or pipeline, in float64; inputs are rows of the table in their own units.

    Scalers: StandardScaler, MinMaxScaler, MaxAbsScaler, RobustScaler, PCA; ColumnTransformer of these and of OneHotEncoder.
    Estimators: MLPClassifier and MLPRegressor with ReLUs, LogisticRegression, LinearSVC and other linear models. Logit i is
    the class `model.classes_[i]`; of two classes the first has logit 0. Inputs have no box: balls have none
    unless they are given the ranges of the columns.

    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> rows, labels = np.array([[20.0, 3000.0], [30.0, 2000.0], [60.0, 1000.0], [70.0, 1500.0]]), np.array([0, 0, 1, 1])
    >>> model = make_pipeline(StandardScaler(), LogisticRegression()).fit(rows, labels)
    >>> from_sklearn(model).predict(torch.tensor(rows)).tolist() == model.predict(rows).tolist()
    True
    """
    reading = _Reading()
    *before, last = reading.steps(model)
    width = _columns(before[0] if before else last)
    layers: list[nn.Module] = []
    for step in before:
        made, width = reading.transformer(step, width)
        layers += made
    start = reading.width if reading.width is not None else _columns(before[0] if before else last)
    layers += reading.estimator(last)
    if reading.refused:
        raise UnsupportedLayer(
            f"model has parts that are not supported: {'; '.join(reading.refused)}. Supported are "
            f"{', '.join([*_SCALERS, *_ESTIMATORS, 'ColumnTransformer', 'OneHotEncoder'])}: fit the model with these"
        )
    net = Network(nn.Sequential(*layers).double(), (start,)).eval()
    net.box = None
    return net


def sklearn_inputs(model: Any, rows: Any) -> Tensor:
    """The inputs of the network of a model for rows of the table: numbers as they are, 0 and 1 for every category."""
    *before, last = _Reading().steps(model)
    first = before[0] if before else last
    if type(first).__name__ != "ColumnTransformer":
        return torch.as_tensor(np.asarray(rows, dtype=np.float64))
    parts = []
    for transformer, columns in _parts(first):
        chosen = _taken(rows, columns)
        coded = type(transformer).__name__ == "OneHotEncoder"
        found = transformer.transform(chosen) if coded else chosen
        parts.append(np.asarray(found.todense() if hasattr(found, "todense") else found, dtype=np.float64))
    return torch.as_tensor(np.concatenate(parts, 1))


def _columns(step: Any) -> int:
    """The number of columns that a fitted step reads."""
    if not hasattr(step, "n_features_in_"):
        raise InvalidInput(f"model must be fitted, got {type(step).__name__} that is not")
    return int(step.n_features_in_)


def _tensor(values: Any) -> Tensor:
    return torch.as_tensor(np.array(values, dtype=np.float64))


def _scaled(values: Any, divide: bool) -> list[nn.Module]:
    return [] if values is None else [ScaleLayer(_tensor(values), divide)]


def _shifted(values: Any, sign: int) -> list[nn.Module]:
    return [] if values is None else [ShiftLayer(_tensor(values), sign)]


def _linear(weight: Any, offset: Any) -> nn.Linear:
    matrix, bias = _tensor(np.atleast_2d(weight)), _tensor(np.atleast_1d(offset))
    layer = nn.Linear(matrix.shape[1], matrix.shape[0], dtype=torch.float64)
    layer.weight.data, layer.bias.data = matrix, bias.expand(len(matrix)).clone()
    return layer


def _standard(step: Any) -> list[nn.Module]:
    mean, scale = (step.mean_ if step.with_mean else None), (step.scale_ if step.with_std else None)
    return _shifted(mean, -1) + _scaled(scale, True)


def _robust(step: Any) -> list[nn.Module]:
    return _shifted(step.center_, -1) + _scaled(step.scale_, True)


def _min_max(step: Any) -> list[nn.Module]:
    low, high = map(float, step.feature_range)
    cut = [nn.Hardtanh(low, high)] if step.clip else []
    return _scaled(step.scale_, False) + _shifted(step.min_, 1) + cut


def _max_abs(step: Any) -> list[nn.Module]:
    return _scaled(step.scale_, True)


def _pca(step: Any) -> list[nn.Module]:
    turned = _linear(step.components_, np.zeros(len(step.components_)))
    whitened = _scaled(np.sqrt(step.explained_variance_), True) if step.whiten else []
    return [*_shifted(step.mean_, -1), turned, *whitened]


_SCALERS: dict[str, Callable[[Any], list[nn.Module]]] = {
    "StandardScaler": _standard,
    "MinMaxScaler": _min_max,
    "MaxAbsScaler": _max_abs,
    "RobustScaler": _robust,
    "PCA": _pca,
}


def _perceptron(step: Any) -> list[nn.Module]:
    if step.activation not in ("relu", "identity"):
        raise _Refused(f"activation must be 'relu' or 'identity', got {step.activation!r}")
    linear = [_linear(np.asarray(w).T, b) for w, b in zip(step.coefs_, step.intercepts_, strict=True)]
    if hasattr(step, "classes_"):
        if step.out_activation_ == "logistic" and linear[-1].out_features > 1:
            raise _Refused("several labels at once are not supported: fit one model for each")
        linear[-1] = _two(linear[-1])
    layers: list[nn.Module] = [linear[0]]
    for layer in linear[1:]:
        layers += [nn.ReLU(), layer] if step.activation == "relu" else [layer]
    return layers


def _two(layer: nn.Linear) -> nn.Linear:
    """The logits 0 and z of two classes for the one output z, which is positive for the second."""
    if layer.out_features != 1:
        return layer
    weight, offset = layer.weight.detach().numpy(), layer.bias.detach().numpy()
    return _linear(np.concatenate([np.zeros_like(weight), weight]), np.concatenate([np.zeros(1), offset]))


def _model(step: Any) -> list[nn.Module]:
    layer = _linear(step.coef_, step.intercept_)
    return [_two(layer)] if hasattr(step, "classes_") else [layer]


_ESTIMATORS: dict[str, Callable[[Any], list[nn.Module]]] = {
    "MLPClassifier": _perceptron,
    "MLPRegressor": _perceptron,
    "LogisticRegression": _model,
    "LogisticRegressionCV": _model,
    "LinearSVC": _model,
    "RidgeClassifier": _model,
    "Perceptron": _model,
    "SGDClassifier": _model,
    "LinearRegression": _model,
    "Ridge": _model,
    "Lasso": _model,
    "LinearSVR": _model,
}


class _Refused(Exception):
    pass


class _Side(nn.Module):
    """Transformers of chosen columns, side by side."""

    def __init__(self, parts: Sequence[nn.Module]):
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, z: Tensor) -> Tensor:
        return torch.cat([part(z) for part in self.parts], 1)


class _Reading:
    """Steps of a pipeline as layers; what is refused is collected."""

    def __init__(self) -> None:
        self.refused: list[str] = []
        self.width: int | None = None  # of the input, where categories make it wider than the table

    def steps(self, model: Any) -> list[Any]:
        """The steps of a pipeline, those of inner pipelines too, without those that do nothing."""
        if not hasattr(model, "steps"):
            return [model]
        inner = [step for _, step in model.steps if step is not None and step != "passthrough"]
        if not inner:
            raise InvalidInput("model must have an estimator at its end, got a pipeline without steps")
        return [part for step in inner for part in self.steps(step)]

    def transformer(self, step: Any, width: int) -> tuple[list[nn.Module], int]:
        """The layers of a step in front of the estimator, and the number of its columns."""
        name = type(step).__name__
        _columns(step)
        if name == "ColumnTransformer":
            return self._side_by_side(step)
        if name not in _SCALERS:
            self.refused.append(f"{name} is not an affine map of numbers")
            return [], width
        layers = self._made(_SCALERS[name], step)
        return layers, len(step.components_) if name == "PCA" and layers else width

    def estimator(self, step: Any) -> list[nn.Module]:
        """The layers of the last step."""
        name = type(step).__name__
        if name not in _ESTIMATORS:
            self.refused.append(f"{name} at the end is not a linear model or a network of ReLUs")
            return []
        _columns(step)
        return self._made(_ESTIMATORS[name], step)

    def _made(self, read: Callable[[Any], list[nn.Module]], step: Any) -> list[nn.Module]:
        try:
            return read(step)
        except _Refused as error:
            self.refused.append(f"{type(step).__name__}: {error}")
            return []

    def _side_by_side(self, step: Any) -> tuple[list[nn.Module], int]:
        """A ColumnTransformer: inputs stand in the order of its parts, categories as 0 and 1."""
        parts, start, width = [], 0, 0
        for transformer, columns in _parts(step):
            coded = type(transformer).__name__ == "OneHotEncoder"
            count = len(transformer.get_feature_names_out()) if coded else len(columns)
            layers: list[nn.Module] = [GatherLayer(torch.arange(start, start + count))]
            made = count
            for inner in [] if coded or transformer == "passthrough" else self.steps(transformer):
                more, made = self.transformer(inner, made)
                layers += more
            parts.append(nn.Sequential(*layers))
            start, width = start + count, width + made
        self.width = start
        return [_Side(parts)], width


def _parts(step: Any) -> list[tuple[Any, list[Any]]]:
    """The fitted transformers of a ColumnTransformer with their columns, without those that are dropped."""
    found = []
    for _, transformer, columns in step.transformers_:
        if transformer == "drop":
            continue
        # The remainder is fitted as a transformer that returns what it is given.
        plain = type(transformer).__name__ == "FunctionTransformer" and transformer.func is None
        found.append(("passthrough" if plain else transformer, _listed(columns, step)))
    return [(transformer, columns) for transformer, columns in found if columns]


def _listed(columns: Any, step: Any) -> list[Any]:
    if isinstance(columns, slice):
        return list(range(step.n_features_in_))[columns]
    if isinstance(columns, str | int):
        return [columns]
    chosen = np.asarray(columns)
    return chosen.nonzero()[0].tolist() if chosen.dtype == bool else chosen.tolist()


def _taken(rows: Any, columns: list[Any]) -> Any:
    if hasattr(rows, "iloc"):
        return rows[columns] if columns and isinstance(columns[0], str) else rows.iloc[:, columns]
    return np.asarray(rows, dtype=object)[:, columns]
