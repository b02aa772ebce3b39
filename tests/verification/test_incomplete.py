"""A method goes on where the methods that it contains end: with inputs and rows that they have not proved."""

from __future__ import annotations

import math

import pytest
import torch

import relucert as rc
from relucert.bounding.methods.crown import CROWN, Alpha
from relucert.verification._incomplete import proved_margins
from relucert.verification.verifier import Query
from zoo import inputs, network


@torch.no_grad()
@pytest.mark.parametrize(("name", "eps"), [("fc deep", 0.08), ("cnn", 0.08), ("residual", 0.1)])
def test_rows_that_are_not_proved_have_the_margins_of_the_whole_property(name, eps):
    net, ball = network(name), rc.Ball(math.inf, eps)
    x = inputs(net, 12)
    query = Query.of(net, x, net.predict(x), ball)
    crown, alpha = (proved_margins(query, method) for method in (CROWN(), Alpha(steps=5)))
    known = Alpha(steps=5).start(net, x, query.ball, net.dtype)
    whole = Alpha(steps=5).prove(net, known, x, query.ball, query.prop)[1]
    proved = crown.executed > 0
    assert bool(proved.any())
    assert bool((~proved).any())
    # Steps on a row end when it is decided; what the same steps give for all rows of the property is the same.
    early = Alpha(steps=5, early=True).prove(net, known, x, query.ball, query.prop)[1]
    torch.testing.assert_close(alpha.real[~proved], torch.fmax(early.real, crown.real)[~proved])
    assert bool((alpha.real <= whole.real + 1e-7)[~proved].all())
    assert bool((alpha.real >= crown.real).all())
    assert bool(((alpha.real > 0) == (whole.real > 0)).all())
    # An input has the same margins whatever other inputs need.
    alone = proved_margins(query.restrict(torch.tensor([0])), Alpha(steps=5))
    torch.testing.assert_close(alone.real[0], alpha.real[0])
