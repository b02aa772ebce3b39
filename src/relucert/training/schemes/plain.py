"""Scheme `plain`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from relucert.training.recipes import Setting
from relucert.training.schemes.scheme import Scheme

if TYPE_CHECKING:
    from relucert.training.losses.loss import Loss


@dataclass(frozen=True, kw_only=True)
class PlainTraining(Scheme):
    """Cross-entropy on the images as they are."""

    name = "plain"

    def loss(self, setting: Setting) -> Loss:
        from relucert.training.losses.plain import Plain

        return Plain()
