"""What a run trains: the network's parameters, the gains of its batch norms, and the average of the last steps.

Outside a step the network's parameters are raw: with batch norm they are not yet the weights of the network that will be saved.
`evaluated` puts these in their place for a while, `finish` for good.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn

from relucert.networks.network import Network
from relucert.training._folded_norms import FoldedNorms
from relucert.training.ranks import Ranks


class Weights:
    """The weights of a run in progress; `average` is the share of the run, at its end, whose weights are averaged."""

    def __init__(self, net: Network, batch_norm: bool, average: float, total: int):
        self.net = net
        self.norms = FoldedNorms(net) if batch_norm else None
        if self.norms is not None and not self.norms.layers:
            self.norms = None
        self.begin = total if average == 0 else round((1 - average) * total)
        self.averaged: dict[str, Tensor] = {}
        self.count = 0

    def trained(self) -> list[nn.Parameter]:
        """All parameters that the optimiser moves."""
        own = [weight for weight in self.net.parameters() if weight.requires_grad]
        return own if self.norms is None else [*own, *self.norms.gains]

    def in_step(self, x: Tensor) -> AbstractContextManager[None]:
        """Put the weights of a step on a batch into the network for a while."""
        return nullcontext() if self.norms is None else placed(self.net, self.norms.of_batch(x))

    @torch.no_grad()
    def record(self, done: int) -> None:
        """Take the weights after `done` steps into the average, if it has begun."""
        if done <= self.begin:
            return
        self.count += 1
        for name, value in self._folded().items():
            if self.count == 1:
                self.averaged[name] = value.detach().clone()
            else:
                self.averaged[name].lerp_(value.detach(), 1 / self.count)

    def evaluated(self) -> AbstractContextManager[None]:
        """Put the weights of the network that would be saved now into it for a while."""
        if self.count:
            return placed(self.net, self.averaged)
        return nullcontext() if self.norms is None else placed(self.net, self.norms.settled())

    @torch.no_grad()
    def finish(self) -> None:
        """Give the network the weights that are evaluated, for good."""
        found = self.averaged if self.count else {} if self.norms is None else self.norms.settled()
        places = _values(self.net)
        for name, value in found.items():
            places[name].copy_(value)

    def _folded(self) -> dict[str, Tensor]:
        """All parameters and statistics that count, with batch norms folded."""
        found = {name: value for name, value in _values(self.net).items() if value.is_floating_point()}
        return found if self.norms is None else found | self.norms.settled()

    # The state of a run.

    def tensors(self) -> dict[str, Tensor]:
        """Everything beside the network's own state, by name."""
        found = {f"average.{name}": value for name, value in self.averaged.items()}
        if self.norms is not None:
            found |= {f"norms.{name}": value for name, value in self.norms.state_dict().items()}
        return found

    def load(self, tensors: Mapping[str, Tensor], count: int) -> None:
        """Take over what `tensors` gave, with the number of steps that are in the average."""
        device = self.net.device
        self.count = count
        self.averaged = {
            name.removeprefix("average."): value.to(device)
            for name, value in tensors.items() if name.startswith("average.")
        }  # fmt: skip
        if bool(count) != bool(self.averaged):
            raise ValueError("the average must have the steps that the state says")
        if self.norms is not None:
            self.norms.load_state_dict(
                {name.removeprefix("norms."): value for name, value in tensors.items() if name.startswith("norms.")}
            )

    def equalise(self, ranks: Ranks) -> None:
        """Take over the average that the first process has; batch norm is refused where there are several."""
        self.averaged, self.count = ranks.first((self.averaged, self.count))


@contextmanager
def placed(net: Network, values: Mapping[str, Tensor]) -> Iterator[None]:
    """Put tensors in the places of parameters and buffers, by name, and the former ones back afterwards."""
    held = []
    try:
        for name, value in values.items():
            owner, _, last = name.rpartition(".")
            module = net.get_submodule(owner)
            place = module._parameters if last in module._parameters else module._buffers
            held.append((place, last, place[last]))
            place[last] = value  # type: ignore[assignment]
        yield
    finally:
        for place, last, former in reversed(held):
            place[last] = former


def _values(net: Network) -> dict[str, Tensor]:
    """All parameters and buffers of a network by name, also those that modules share."""
    return {
        **dict(net.named_parameters(remove_duplicate=False)),
        **{name: value for name, value in net.named_buffers(remove_duplicate=False) if name != "_like"},
    }
