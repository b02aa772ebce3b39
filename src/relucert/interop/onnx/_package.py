"""The package `onnx`, which is optional."""

from __future__ import annotations

from typing import Any

from relucert.core.errors import MissingExtra


def onnx_package(purpose: str) -> Any:
    """The package `onnx`; an error that names the extra if it is missing."""
    try:
        import onnx
        import onnx.external_data_helper
        import onnx.helper
        import onnx.numpy_helper
        import onnx.reference
    except ImportError as error:
        raise MissingExtra(
            f"{purpose} needs the package onnx: pip install 'relucert[onnx]' (import failed: {error})"
        ) from error
    return onnx
