"""`radius`: an interval around the distance to the nearest change of decision; `intervals`: one interval after the other."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from relucert.attacks.problem import MINIMAL
from relucert.core.ball import PIXELS, Ball
from relucert.core.errors import Interrupted, InvalidInput
from relucert.core.methods import Method, parse, spec
from relucert.core.norms import check_p
from relucert.core.progress import followed, wanted
from relucert.core.results import RadiusInterval
from relucert.core.rounding import require_full_precision
from relucert.networks.network import as_network, outside_inference
from relucert.networks.scaled import ScaledQuestion, scaled
from relucert.verification._device import interval_on, on_cpu
from relucert.verification._intervals import Intervals, unknown
from relucert.verification._scaled import refuse_executed, scaled_interval
from relucert.verification._upper import attacked
from relucert.verification.registry import RADIUS_SECONDS, budget_of, find
from relucert.verification.verifier import Query

INTERRUPTED = "interrupted: "


@outside_inference
def radius(
    net: nn.Module,
    x: Float[Tensor, " batch *input"],
    y: Int[Tensor, " batch"] | None = None,
    p: float = 2,
    box: Any = PIXELS,
    method: str | Method = "auto",
    attack: str | Method | None = None,
    tol: float = 0.01,
    timeout: float | None = None,
    arithmetic: Literal["real", "executed"] = "real",
    scale: Any = None,
    progress: bool | None = None,
) -> RadiusInterval:
    """For every input an interval around the l_p distance to the nearest input of another class inside the box.

    `lower` is proved and rounded down; `upper` is the recomputed distance of a `witness` that was run through the network,
    inf without one; `exact` where the two meet. Without y the question is about the predicted class (equation 1 of the
    paper); with y a misclassified input has lower = upper = 0, which is not called exact.

    `auto`, the default, goes from CROWN, the `best` attack and, in l2, SDP-CROWN to the exploration of regions and to
    narrowing by branch and bound, until the relative width of an interval is `tol`, or for `timeout` seconds an input, its
    share of its batch's; by default 5 seconds. Lower ends are never below those of `crown`, given the time that CROWN takes.

    With a bounding method (`ibp`, `kw`, `crown`, `alpha`)
    `lower` is the largest radius at which its bound was evaluated and proved a margin, to 1 % of what it can prove, or the
    region theorem's if that is larger. `mip` minimises the radius itself, which is exact up to the tolerances of its solver,
    given time.

    `region` explores the linear regions around x: "region(regions=5)" five neighbours, "region(regions=None)" as many as
    `timeout` seconds an input allow, "region(start='crown')" from the radius that a bound certifies.

    `bab` narrows the interval by branch and bound alone, with the same `tol` and `timeout`, and without a default for the time.

    With a `scale`, one number of at least 0 for every entry of an input, distances are ||(z - x) / scale||_p, and entries of
    scale 0 are fixed; `lower` then speaks of real arithmetic.

    With an `attack` on the nearest points (see `minimal_attack`) the better of its witness and the method's is the upper end.

    `lower` is proved for the stored weights in real arithmetic; `RadiusInterval.arithmetic` says where the proof covers the
    network as executed in its dtype as well, and `arithmetic="executed"` asks for that, of every method but `region`.

    `progress`: whether a bar is shown on standard error; by default after two seconds, if that is a terminal.

    `intervals` takes the same arguments and gives one interval after the other. If the call is interrupted (Ctrl-C), it raises
    `Interrupted`, a `KeyboardInterrupt` whose `result` has the intervals that are known by then; all other inputs have the
    interval [0, inf], and their method begins with "interrupted: ".

    >>> import relucert as rc
    >>> net, data = rc.build("fc1", (1, 8, 8), 10).eval(), rc.dataset("digits")
    >>> found = radius(net, data.x_test[:10], p=2, method="region(regions=5)")
    >>> bool((found.lower > 0).all()), bool((found.lower <= found.upper).all())
    (True, True)
    """
    net = as_network(net, x)
    found: list[Intervals] = []
    try:
        made = intervals(net, x, y, p, box, method, attack, tol, timeout, arithmetic, scale)
        for index, interval in followed(made, len(x), "radii") if wanted(progress) else made:
            found.append(Intervals(torch.tensor([index]), interval))
    except KeyboardInterrupt as stopped:
        raise _interrupted(x, found, spec(find(method)[0])) from stopped
    return Intervals.joined(found) if found else unknown(x[:0], "")


@outside_inference
def intervals(
    net: nn.Module,
    x: Float[Tensor, " batch *input"],
    y: Int[Tensor, " batch"] | None = None,
    p: float = 2,
    box: Any = PIXELS,
    method: str | Method = "auto",
    attack: str | Method | None = None,
    tol: float = 0.01,
    timeout: float | None = None,
    arithmetic: Literal["real", "executed"] = "real",
    scale: Any = None,
) -> Iterator[tuple[int, RadiusInterval]]:
    """The question of `radius`, as an iterator: the position of an input and its interval, each as soon as it is known.

    Intervals are batches of one and come in no particular order. What was yielded is final, so a loop may be left at any time.
    Arguments are checked before the first step.

    >>> import relucert as rc
    >>> net, data = rc.build("fc1", (1, 8, 8), 10).eval(), rc.dataset("digits")
    >>> for index, found in intervals(net, data.x_test[:3], method="crown"):
    ...     print(index, 0 < float(found.lower) <= float(found.upper))
    0 True
    1 True
    2 True
    """
    chosen, entry = find(method)
    p, net = check_p(p), as_network(net, x)
    box = net.box if box is PIXELS else box
    net.check(x, y)
    net.require_eval("a radius")
    require_full_precision(x, "a radius")
    Ball(p, math.inf, box).check(x)
    if not 0 < tol < 1:
        raise InvalidInput(f"tol must be above 0 and below 1, got {tol}")
    budget = budget_of(chosen, timeout, RADIUS_SECONDS)
    if attack is not None:
        parse(attack, MINIMAL).check_norm(p)
    if arithmetic not in ("real", "executed"):
        raise InvalidInput(f"arithmetic must be 'real' or 'executed', got {arithmetic!r}")
    if len(x) == 0:
        return iter(())
    with torch.no_grad():
        labels = net.predict(x) if y is None else y
    if scale is not None:
        refuse_executed(arithmetic)
        question = scaled(net, x, Ball(p, math.inf, box, scale=scale))
        inner = intervals(question.net, question.x, labels, p, question.ball.box, method, attack, tol, timeout)
        return ((i, _of_original(question, i, found, labels)) for i, found in inner)
    query = on_cpu(replace(Query.of(net, x, labels, Ball(p, math.inf, box)), strict=arithmetic == "executed"))
    found = _steps(query, entry.radius(chosen).intervals(query, budget, tol), attack)
    return found if x.device.type == "cpu" else ((index, interval_on(part, x.device)) for index, part in found)


@torch.inference_mode(mode=False)
@torch.no_grad()
def _steps(
    query: Query, parts: Iterator[Intervals], attack: str | Method | None
) -> Iterator[tuple[int, RadiusInterval]]:
    """Input by input, after the attack; every step leaves inference mode."""
    for index, found in parts:
        part = query.restrict(index.to(query.x.device))
        ended = found if attack is None else attacked(part, found, attack)
        # Where the prediction is wrong there is no distance to be exact about.
        ended = replace(ended, exact=ended.exact & part.holds)
        for place, i in enumerate(index.tolist()):
            yield i, ended[place]


def _of_original(question: ScaledQuestion, i: int, found: RadiusInterval, labels: Tensor) -> RadiusInterval:
    """The interval of an input in units of the scale."""
    one = torch.tensor([i], device=question.x.device)
    return scaled_interval(question.restrict(one), found, labels[one])


def _interrupted(x: Tensor, found: list[Intervals], name: str) -> Interrupted[RadiusInterval]:
    """What an interrupted call raises: the intervals so far, and [0, inf] for all other inputs."""
    known = torch.cat([torch.zeros(0, dtype=torch.long), *(part.index for part in found)])
    missing = torch.ones(len(x), dtype=torch.bool).index_fill(0, known, False).nonzero()[:, 0]
    every = [*found, Intervals(missing, unknown(x[missing.to(x.device)], f"{INTERRUPTED}{name}"))]
    return Interrupted(f"interrupted: {len(known)} of {len(x)} intervals are known", Intervals.joined(every))
