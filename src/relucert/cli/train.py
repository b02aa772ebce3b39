"""`relucert train`: train a network, or go on with a run that was stopped."""

from __future__ import annotations

import json as json_format
from dataclasses import dataclass, fields
from textwrap import wrap

from relucert.core.errors import InvalidInput
from relucert.core.methods import spec
from relucert.training.config import TrainConfig
from relucert.training.old_config import OLD_FIELDS, parameters, with_old_fields
from relucert.training.schemes.registry import SCHEMES, parse_scheme

#: The parameters of schemes, in the order of the help text.
PARAMETERS = {
    "lam": "weight lambda of the regulariser",
    "gamma_b": "distance in pixels beyond which hyperplanes of units cost nothing",
    "gamma_d": "distance in pixels beyond which decision hyperplanes cost nothing",
    "k_b": "(first, last): number of nearest hyperplanes of units in the loss",
    "k_d": "(first, last): number of nearest decision hyperplanes in the loss",
    "lam_1": "weight of the regulariser of l_1",
    "lam_inf": "weight of the regulariser of l_inf",
    "gamma_1": "l_1 distance beyond which hyperplanes cost nothing",
    "gamma_inf": "l_inf distance beyond which hyperplanes cost nothing",
    "share_b": "instead of k_b, as shares of all units, such as (0.1, 0.02)",
    "share_d": "instead of k_d, as shares of all classes, such as (1.0, 1.0)",
    "nearest_after": "share of the run after which only the nearest hyperplanes count",
    "eps": "radius of training, by default --eps (larger for ibp and its kind)",
    "attack_steps": "steps of PGD in training",
    "attack_step": "length of a step of PGD, in units of its radius",
    "attack_eps": "radius of PGD in training, in units of eps",
    "alpha": "weight of intervals against adversarial points, 0 to 1",
    "ratio": "radius of the box around the adversarial point, in units of eps",
    "warm_up": "weight of the regulariser of intervals while the ball grows",
    "kappa": "weight of cross-entropy when the ball has its full radius, 0 to 1",
    "adversarial": "True for the cross-entropy of PGD points",
    "intervals": "weight of interval margins against CROWN's, 0 to 1",
    "l1": "weight of the sum of absolute weights",
    "projections": "number of random projections that estimate the bounds of kw",
}


def description() -> str:
    """The text above the flags in `relucert help train`: all schemes with their parameters."""
    lines = [
        'Schemes, as a name or with parameters: --scheme "mmr(lam=2, gamma_b=0.1)".',
        "Other parameters have the paper's values for data, network and norm.",
    ]
    for name, kind in SCHEMES.items():
        summary = (kind.__doc__ or "").splitlines()[0]
        named = ", ".join(parameter for parameter in PARAMETERS if parameter in parameters(kind))
        first, *rest = [*wrap(summary, 60), *wrap(f"Parameters: {named or 'none'}.", 60, subsequent_indent=" " * 12)]
        lines += [f"  {name:<15}  {first}", *(f"{'':<19}{line}" for line in rest)]
    lines += ["", "Parameters (the paper's spelling lambda, gamma_B, ... works, too):"]
    lines += [f"  {name:<15}  {text}" for name, text in PARAMETERS.items()]
    return "\n".join(lines)


@dataclass(frozen=True, kw_only=True)
class Train(TrainConfig):
    """Train a network, or go on with a run that was stopped in the same folder."""

    scheme: str = "plain"
    """Training scheme, such as plain, at, mmr or kw. `relucert help train` lists all of them with their parameters."""
    json: bool = False
    """Print the last evaluation as JSON, and no progress."""


CONFIG = Train
COMMON = ("data", "model", "scheme", "p", "eps", "epochs", "out")
EXAMPLES = (
    "relucert train --data mnist --model fc1 --scheme mmr --p 2 --epochs 20",
    'relucert train --data digits --scheme "mmr(lambda=2)" --out runs/mmr',
)


def current_flags(arguments: list[str]) -> list[str]:
    """The arguments with flags of earlier versions, such as `--lam 2`, moved into the text of `--scheme`.

    >>> current_flags(["--scheme", "at", "--attack-steps", "7", "--epochs", "2"])
    ['--epochs', '2', '--scheme', 'at(attack_steps=7, eps=None)']
    """
    rest: list[str] = []
    old: dict[str, str | bool] = {}
    text, queue = "plain", list(arguments)
    while queue:
        argument = queue.pop(0)
        flag, equals, value = argument.partition("=")
        name = flag.removeprefix("--").replace("-", "_") if flag.startswith("--") else ""
        if name == "adversarial":
            old[name] = True
        elif name in OLD_FIELDS or name == "scheme":
            if not equals and not queue:
                return list(arguments)  # the parser names the flag without a value
            value = value if equals else queue.pop(0)
            if name == "scheme":
                text = value
            else:
                old[name] = value
        else:
            rest.append(argument)
    if not old:
        return list(arguments)
    scheme = parse_scheme(text)
    for name in old:
        if parameters(scheme).isdisjoint(OLD_FIELDS[name]):
            flag = name.replace("_", "-")
            raise InvalidInput(f"--{flag} must be left out for scheme {scheme.name}, got {old[name]}")
    return [*rest, "--scheme", spec(with_old_fields(scheme, {name: _number(name, old[name]) for name in old}))]


def _number(name: str, value: str | bool) -> float | int | bool:
    if isinstance(value, bool):
        return value
    try:
        return int(value) if name == "attack_steps" else float(value)
    except ValueError:
        raise InvalidInput(f"--{name.replace('_', '-')} must be a number, got {value!r}") from None


def run(config: Train) -> int:
    """Train, and print the last evaluation and the folder of the network."""
    from relucert.cli._next import next_line
    from relucert.cli._text import say
    from relucert.training.loop import train
    from relucert.training.progress import ERROR_OF, Terminal, Watcher
    from relucert.training.ranks import process_group

    plain = TrainConfig(**{field.name: getattr(config, field.name) for field in fields(TrainConfig)})
    with process_group() as ranks:
        try:
            done = train(plain, Watcher() if config.json or ranks.rank > 0 else Terminal(), ranks)
        except KeyboardInterrupt as stop:
            said = str(stop) or "interrupted; the same command goes on there"
            raise KeyboardInterrupt(f"{plain.folder}: {said}") from None
    if ranks.rank > 0:  # the first of several processes has the folder, and speaks
        return 0
    if config.json:
        print(json_format.dumps({"folder": str(done.folder), **done.last}))
        return 0
    last = done.last
    if last:
        said = [f"{name.replace('_', ' ')} {last[name]:.2%}" for name in ERROR_OF if name in last]
        if "pgd_error" in last:
            said.append(
                f"robust error at least {last['pgd_error']:.2%} (PGD, first {last['pgd_points']}, eps {last['eps']:.4g})"
            )
        say(", ".join(said))
    say(f"network: {done.folder}; certify, radius, attack and evaluate take its data, norm and radius from there")
    print(next_line("certify", done.folder))
    return 0
