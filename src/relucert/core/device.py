"""`require_device`: the device that a name stands for, if numbers can be sent there and back."""

from __future__ import annotations

import torch

from relucert.core.errors import InvalidInput


def require_device(name: str) -> torch.device:
    """The device of a name; a clear error if this machine does not have it.

    >>> require_device("cpu")
    device(type='cpu')
    """
    try:
        made = torch.zeros(1, device=name)
        made.cpu()  # torch makes tensors without numbers, too: on the device "meta"
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise InvalidInput(
            f"device must be one that torch can use here, such as cpu, got {name!r}: {reason}"
        ) from error
    return made.device
