"""`Runtime`: an ONNX file as onnxruntime executes it, the judge of counterexamples."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import numpy as np

from relucert.core.errors import CheckpointError, FileAccessError, MissingExtra, UnsupportedLayer
from relucert.interop.onnx._graph import first_line

KINDS = {"tensor(float)": np.float32, "tensor(double)": np.float64}


class Runtime:
    """A file with one input and one output, executed with one thread."""

    def __init__(self, path: str | Path):
        try:
            import onnxruntime
        except ImportError as error:
            raise MissingExtra(
                f"running {path} needs the package onnxruntime: pip install 'relucert[onnx]' (import failed: {error})"
            ) from error
        path = Path(path)
        try:
            given = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else str(path)
        except (OSError, EOFError) as error:
            raise FileAccessError(f"{path} cannot be read: {error}") from error
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        try:
            self.session = onnxruntime.InferenceSession(given, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime has errors of its own for every kind of fault
            raise CheckpointError(f"{path} cannot be executed by onnxruntime: {first_line(error)}") from error
        inputs, outputs = self.session.get_inputs(), self.session.get_outputs()
        if len(inputs) != 1 or len(outputs) != 1:
            raise UnsupportedLayer(f"{path} must have one input and one output, got {len(inputs)} and {len(outputs)}")
        if inputs[0].type not in KINDS:
            raise UnsupportedLayer(f"{path} must have an input of float32 or float64, got {inputs[0].type}")
        self.name, self.dtype = inputs[0].name, KINDS[inputs[0].type]
        self.shape = [
            1 if place == 0 or not isinstance(size, int) else size for place, size in enumerate(inputs[0].shape)
        ]

    @property
    def size(self) -> int:
        """The number of entries of an input."""
        return math.prod(self.shape)

    def run(self, x: np.ndarray) -> np.ndarray:
        """The outputs (outputs,) at one input (inputs,), which is rounded to the dtype of the file."""
        given = np.asarray(x).astype(self.dtype).reshape(self.shape)
        (found,) = self.session.run(None, {self.name: given})
        return np.asarray(found).reshape(-1)
