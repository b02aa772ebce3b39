"""Queries on an accelerator for methods that compute in numpy or with solvers: copied to the CPU, answers copied back."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace

from torch import Tensor

from relucert.core.ball import Ball
from relucert.core.properties import Property
from relucert.core.results import RadiusInterval
from relucert.networks.network import in_double
from relucert.verification.verifier import Decision, Query


def decide_on_cpu(query: Query, decide: Callable[[Query], Iterator[Decision]]) -> Iterator[Decision]:
    """The decisions about the query on the CPU, with tensors on the query's device."""
    device = query.x.device
    return (
        replace(found, witness=_moved(found.witness, device), row_margins=_moved(found.row_margins, device))
        for found in decide(on_cpu(query))
    )


def on_cpu(query: Query) -> Query:
    """The query with network, inputs, ball and property on the CPU."""
    if query.x.device.type == "cpu":
        return query
    net = copy.deepcopy(query.net).cpu()
    return replace(
        query, net=net, double=in_double(net), x=query.x.cpu(), y=query.y.cpu(), ball=_ball(query.ball),
        prop=Property(query.prop.rows.cpu(), query.prop.offsets.cpu()), holds=query.holds.cpu(),
        row_margins=_moved(query.row_margins, "cpu"), units=None,
    )  # fmt: skip


def interval_on(found: RadiusInterval, device: object) -> RadiusInterval:
    """The intervals with all tensors on a device."""
    names = ("lower", "upper", "exact", "witness", "seconds")
    return replace(found, **{name: _moved(getattr(found, name), device) for name in names})


def _ball(ball: Ball) -> Ball:
    eps = ball.eps.cpu() if isinstance(ball.eps, Tensor) else ball.eps
    if ball.box is None:
        return replace(ball, eps=eps)
    lower, upper = (side.cpu() if isinstance(side, Tensor) else side for side in ball.box)
    return replace(ball, eps=eps, box=(lower, upper))


def _moved(value: Tensor | None, device: object) -> Tensor | None:
    return None if value is None else value.to(device)  # pyright: ignore[reportArgumentType, reportCallIssue]
