"""`Prover`: from verdicts to certificate files, one for each input.

A certificate holds nothing that the verdict's method computed: it is a proof of its own, from the cheapest kind that proves the
same. ROBUST inputs get steps, with radii if `sdp` or `lipschitz` decided, then trees of branch and bound for the rows that
steps leave open; VULNERABLE inputs their witness. Before a file is written the checker reads it; what it does not accept
becomes an entry without a certificate, and says why.
"""

from __future__ import annotations

import io
import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from relucert.checker.arithmetic import Outward, Refused, require
from relucert.checker.check import FORMAT, VERSION, Certificate, check, digest
from relucert.checker.minima import Ball as CheckedBall
from relucert.checker.network import read
from relucert.core.ball import Ball
from relucert.core.errors import InvalidInput
from relucert.core.results import Certificate as Certificates
from relucert.core.verdict import Verdict
from relucert.networks.checkpoints import save
from relucert.networks.network import Network
from relucert.records.atomic import atomic_write
from relucert.verification.proofs._rules import StepProof, radius_proofs, step_proofs
from relucert.verification.proofs._trees import shortened, tree_proof
from relucert.verification.verifier import Decision, Query

#: Verdicts that have certificates.
FINAL = (Verdict.ROBUST, Verdict.VULNERABLE)
#: The network of a folder of certificates, as the checker reads it.
NETWORK = "network.safetensors"
#: By how much margins of trees must exceed zero, in parts of the size of the logits: room for shorter slopes and rounding.
_SLACKS = (1e-4, 1e-6)


@dataclass(frozen=True, eq=False)
class Claim:
    """A verdict about one input: x (1, *input), label (1,), its ball, the method, and what the proof covers."""

    x: Tensor
    y: Tensor
    ball: Ball
    verdict: Verdict
    method: str
    executed: bool
    rivals: Sequence[int]
    witness: Tensor | None = None

    @classmethod
    def of(cls, found: Decision, x: Tensor, y: Tensor, ball: Ball, classes: int) -> Claim:
        """The claim of a decision that the class of x (1, *input) stays y (1,), or does not."""
        rivals = [rival for rival in range(classes) if rival != int(y[0])]
        return cls(x, y, ball, found.verdict, found.method, found.executed > 0, rivals, found.witness)


@dataclass(eq=False)
class Prover:
    """Writes the certificates of one network into a folder; a tree may take so many `seconds`."""

    net: Network
    folder: Path
    seconds: float = 60.0
    written: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        save(self.net, self.folder / NETWORK)
        self.num, self.refusal = Outward(), ""
        try:
            self.known = read(self.folder / NETWORK, self.num)
        except Refused as error:
            self.refusal = str(error)

    def write(self, name: str, claim: Claim) -> str:
        """Write the certificate of an input, or the entry that says why there is none; the answer is its verdict or "none"."""
        certificate = self._certificate(claim)
        outcome = certificate.header["verdict"]
        buffer = io.BytesIO()
        header = np.frombuffer(json.dumps(certificate.header, allow_nan=False).encode(), dtype=np.uint8)
        np.savez_compressed(buffer, **{"header": header, **certificate.arrays})  # pyright: ignore[reportArgumentType]
        with atomic_write(self.folder / f"{name}.npz") as file:
            file.write(buffer.getvalue())
        self.written[outcome] += 1
        return outcome

    def _certificate(self, claim: Claim) -> Certificate:
        """The first certificate that the checker accepts; without one, the entry with the reason."""
        reason = self.refusal
        try:
            header, arrays = self._about(claim)
        except InvalidInput as error:
            return Certificate({"format": FORMAT, "version": VERSION, "verdict": "none", "reason": str(error)}, {})
        if claim.verdict not in FINAL:
            reason = f"the input is {claim.verdict}"
        # A witness that changes the class as executed is claimed in both arithmetics, a proof in what it covers.
        wide = claim.executed or claim.verdict is Verdict.VULNERABLE
        for arithmetic in () if reason else (self.known.dtype, "real") if wide else ("real",):
            try:
                for extra, more in self._proofs(claim, arithmetic):
                    certificate = Certificate(header | extra | {"arithmetic": arithmetic}, arrays | more)
                    try:
                        check(certificate, self.known, self.num)
                    except Refused as error:
                        reason = str(error)
                    else:
                        return certificate
            except Refused as error:
                reason = str(error)
        plain = {name: arrays[name] for name in ("x", "lower", "upper")}
        return Certificate(header | {"verdict": "none", "claimed": str(claim.verdict), "reason": reason}, plain)

    def _about(self, claim: Claim) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """What every certificate says: the question."""
        ball, x = claim.ball, claim.x
        if ball.scale is not None:
            raise InvalidInput("a ball with a scale has no certificate")
        sides = ball.beside(x).bounds(x)
        given = x[0].cpu().numpy()
        label = int(claim.y[0])
        p = float(ball.p)
        header = {
            "format": FORMAT, "version": VERSION, "verdict": str(claim.verdict), "method": claim.method,
            "network": self.known.digest if not self.refusal else "", "point": digest(given, label), "label": label,
            "rivals": list(claim.rivals), "p": f"{p:g}", "eps": _radius(ball),
        }  # fmt: skip
        lower, upper = (_compact(side[0].cpu().numpy()) for side in sides)
        return header, {"x": given, "lower": lower, "upper": upper}

    def _proofs(self, claim: Claim, arithmetic: str) -> Iterator[tuple[dict[str, Any], dict[str, np.ndarray]]]:
        """What the checker needs besides the question: candidates, the smallest first."""
        if claim.verdict is Verdict.VULNERABLE:
            assert claim.witness is not None
            yield {}, {"witness": claim.witness.cpu().numpy().ravel()}
            return
        query = replace(
            Query.of(self.net, claim.x, claim.y, claim.ball, torch.tensor([list(claim.rivals)])),
            strict=arithmetic != "real",
        )
        rows, ball, executed = query.prop.rows[0].double().numpy(), self._ball(query), arithmetic
        about = self.known, ball, None if executed == "real" else executed, rows
        known: list[StepProof] = []
        with_radii = "sdp" in claim.method or "lipschitz" in claim.method
        for proofs in (radius_proofs, step_proofs) if with_radii else (step_proofs,):
            for found in proofs(*about):
                known.append(found)
                if found.proved.all():
                    yield found.header() | {"trees": []}, {}
                    return
        found = max(known, key=lambda proof: int(proof.proved.sum()))
        open_ = np.flatnonzero(~found.proved).tolist()
        size, none = float(np.max(found.bounds.size(len(self.known.nodes) - 1))), True
        for slack in _SLACKS:
            arrays = tree_proof(query, found.bounds, open_, slack * size, self.seconds)
            if arrays is not None:
                said = found.header() | {"trees": open_}
                yield said, shortened(arrays)
                yield said, arrays
                none = False
        require(not none, f"no proof that this format can hold was found in {self.seconds:g} s")

    def _ball(self, query: Query) -> CheckedBall:
        """The ball of the one input of a query, as the checker sees it."""
        given = query.x[0].cpu().numpy().ravel()
        lower, upper = (side[0].double().cpu().numpy().ravel() for side in query.ball.bounds(query.x))
        return CheckedBall(self.num, query.p, _radius(query.ball), given, lower, upper)


def write_proofs(
    query: Query, balls: Sequence[Ball], found: Certificates, folder: Path, seconds: float = 60.0
) -> Counter[str]:
    """Write certificate files of all verdicts about the inputs of a query, and count them by what they are.

    They are named by the positions of the inputs; of several balls each has a file where an input is robust in all of them. The
    search for the trees of an input takes at most so many seconds.
    """
    prover = Prover(query.net, folder, seconds)
    for place, verdict in enumerate(found.verdict):
        rivals = (query.prop.rows[place] < 0).nonzero()[:, 1].tolist()
        witness = None if found.witness is None or verdict is Verdict.ROBUST else found.witness[place]
        one, executed = slice(place, place + 1), found.arithmetic[place] == "executed"
        for number, ball in enumerate(balls):
            if verdict is Verdict.ROBUST or (verdict is Verdict.VULNERABLE and number == found.ball[place]):
                about = query.x[one], query.y[one], ball.restrict(place)
                claim = Claim(*about, verdict, found.method[place], executed, rivals, witness)
                prover.write(f"{place:06d}" if len(balls) == 1 else f"{place:06d}-{number}", claim)
    return prover.written


def _radius(ball: Ball) -> float:
    """The radius of a ball around one input; one that covers the whole box is none that a certificate can name."""
    eps = float(ball.eps.reshape(-1)[0]) if isinstance(ball.eps, Tensor) else float(ball.eps)
    if not math.isfinite(eps):
        raise InvalidInput("an infinite radius has no certificate")
    return eps


def _compact(side: np.ndarray) -> np.ndarray:
    """A side of the box, as one number where it is constant."""
    return side.ravel()[:1].reshape(()) if (side == side.ravel()[0]).all() else side.ravel()
