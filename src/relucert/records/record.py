"""`Record`: the result of one method for one example, its key, and its line of JSON."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from typing import Any

from relucert.core.errors import DamagedData, InvalidInput
from relucert.core.verdict import Verdict as Verdict
from relucert.records.untrusted import bounded_json

SCHEMA = 5
"""The version of the fields of a line; older ones, which lack the fields of `_ADDED`, can be read."""

_ADDED = {2: ("by",), 3: ("reason", "claim"), 4: ("arithmetic", "executed", "rounding"), 5: ("content",)}
_LATER = {"arithmetic", "executed", "rounding"}  # where a line lacks one of these, it contradicts no other record
_NUMBERS = ("lower", "upper", "margin", "executed", "rounding", "seconds")
_SLACK = 1e-5  # distances of counterexamples are rounded up, in float32 by parts in a million

LONGEST_LINE = 2**20
"""Bytes of a line, with its end."""

LINE_START = b'{"schema":'
"""The first bytes of every line, in every version."""

_KEY_FIELDS = ("model", "data", "split", "index", "ball", "method")
_CHECKED = re.compile(r'(.*),"check":"([0-9a-f]{16})"\}', re.DOTALL)
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class Record:
    """The result of one method for one example: key fields identify the question, facts are the answer.

    Key: `model` (hash of the network), `data`, `split`, `index` (of the example), `ball` (`ball_fields`), `method`
    (`relucert.core.methods.spec`), `content` (`content_digest` of the input and the label; None in lines that were written
    before there was one). Facts: `label`, `prediction`, `verdict`, `lower` and `upper` (of the radius), `margin`
    (proved over the ball, in real arithmetic), `executed` (the same for the network as it runs in its dtype), `rounding` (what
    the margin was charged), `arithmetic` (what the proof of the verdict robust or of `lower` covers, "executed" or
    "real"), `by` (which of several methods decided), `reason` (why the verdict is unknown), `claim` (a solver that reports the
    example as robust without a checked proof; only with the verdict unknown), `seconds`, `versions` (package -> version),
    `arrays` (name -> sha256 of an array in the sidecar file); None is "not computed". Numbers may be infinite, never NaN.
    Records are equal if all fields but `seconds` and `versions` are. Facts that contradict each other are refused: a verdict
    and its margin, the ends of the radius, a counterexample outside the ball.

    >>> ball = ball_fields(p=2, eps=0.5, box=(0, 1))
    >>> record = Record(
    ...     model="5f1e", data="digits", split="test", index=7, ball=ball, method="ibp", label=3, prediction=3,
    ...     verdict="robust", margin=0.25, seconds=0.1,
    ... )
    >>> record.verdict, record.ball
    (<Verdict.ROBUST: 'robust'>, {'p': 2.0, 'eps': 0.5, 'box': [0.0, 1.0]})
    >>> Record.from_line(record.to_line()) == record
    True
    """

    model: str
    data: str
    split: str
    index: int
    ball: dict[str, Any]
    method: str
    content: str | None = None
    label: int | None = None
    prediction: int | None = None
    verdict: Verdict | None = None
    lower: float | None = None
    upper: float | None = None
    margin: float | None = None
    executed: float | None = None
    rounding: float | None = None
    arithmetic: str | None = None
    by: str | None = None
    reason: str | None = None
    claim: str | None = None
    seconds: float | None = field(default=None, compare=False)
    versions: dict[str, str] = field(default_factory=dict, compare=False)
    arrays: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        found: dict[str, Any] = {
            name: _text(name, getattr(self, name)) for name in ("model", "data", "split", "method")
        }
        found["index"] = _count("index", self.index)
        found["ball"] = _canonical_ball(self.ball)
        for name in ("label", "prediction"):
            found[name] = None if getattr(self, name) is None else _count(name, getattr(self, name))
        for name in _NUMBERS:
            found[name] = None if getattr(self, name) is None else _number(name, getattr(self, name))
        for name in ("arithmetic", "by", "reason", "claim"):
            found[name] = None if getattr(self, name) is None else _text(name, getattr(self, name))
        found["verdict"] = None if self.verdict is None else Verdict(self.verdict)
        if found["claim"] is not None and found["verdict"] is not Verdict.UNKNOWN:
            raise InvalidInput(f"claim must be left out unless the verdict is unknown, got {self.claim!r}")
        if found["arithmetic"] not in (None, "executed", "real"):
            raise InvalidInput(f"arithmetic must be 'executed', 'real' or None, got {self.arithmetic!r}")
        proof = found["verdict"] is Verdict.ROBUST or (found["verdict"] is None and found["lower"] is not None)
        if found["arithmetic"] is not None and not proof:
            raise InvalidInput(f"arithmetic must be left out unless the verdict is robust, got {self.arithmetic!r}")
        if self.content is not None and not (isinstance(self.content, str) and _SHA256.fullmatch(self.content)):
            raise InvalidInput(f"content must be a sha256 in hexadecimal or None, got {self.content!r}")
        found["versions"] = _texts("versions", self.versions)
        found["arrays"] = _texts("arrays", self.arrays)
        for name, value in found["arrays"].items():
            if not _SHA256.fullmatch(value):
                raise InvalidInput(f"arrays[{name!r}] must be a sha256 in hexadecimal, got {value!r}")
        for name in ("lower", "upper", "rounding", "seconds"):
            if found[name] is not None and found[name] < 0:
                raise InvalidInput(f"{name} must be at least 0, got {found[name]}")
        if found["lower"] is not None and found["upper"] is not None and found["lower"] > found["upper"]:
            raise InvalidInput(f"lower must not exceed upper, got {found['lower']} and {found['upper']}")
        for name, value in found.items():
            object.__setattr__(self, name, value)
        self._refuse_contradictions()

    def _refuse_contradictions(self) -> None:
        """Raise where the verdict contradicts another fact."""
        eps, verdict = float(self.ball["eps"]), self.verdict
        margin, executed = self.margin, self.executed
        lower, upper = self.lower or 0.0, math.inf if self.upper is None else self.upper  # inf: no counterexample
        known = self.label is not None and self.prediction is not None
        same = self.label == self.prediction
        rules = {
            Verdict.ROBUST: (
                ("margin", margin is None or margin >= 0, "not be negative"),
                ("executed", executed is None or self.arithmetic != "executed" or executed > 0, "be positive"),
                ("upper", upper > eps or math.isinf(upper), "lie outside the ball"),
                ("prediction", not known or same, "be the label"),
            ),
            Verdict.VULNERABLE: (
                ("margin", margin is None or margin <= 0, "not be positive"),
                ("upper", self.upper is None or upper <= eps * (1 + _SLACK), "lie in the ball"),
                ("lower", lower <= eps, "not exceed the ball"),
            ),
            Verdict.MISCLASSIFIED: (("prediction", not known or not same, "not be the label"),),
        }
        for name, holds, rule in rules.get(verdict, ()) if verdict is not None else ():
            if not holds:
                where = f" (eps {eps})" if "ball" in rule else ""
                raise InvalidInput(
                    f"{name} must {rule}{where} where the verdict is {verdict}, got {getattr(self, name)}"
                )

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def key(self) -> str:
        """The first 32 hexadecimal digits of the sha256 of the key fields' canonical JSON."""
        return self._hash(_KEY_FIELDS if self.content is None else (*_KEY_FIELDS, "content"))

    @property
    def question(self) -> str:
        """The key without the digest of input and label: that of all records of the same question by name."""
        return self._hash(_KEY_FIELDS)

    @property
    def lacks(self) -> list[str]:
        """What a record of an older version of relucert lacks, in words."""
        return ["a digest of input and label"] if self.content is None else []

    def _hash(self, names: tuple[str, ...]) -> str:
        named = {name: getattr(self, name) for name in names}
        return hashlib.sha256(_json(named, sort_keys=True).encode()).hexdigest()[:32]

    def differences(self, other: Record) -> list[str]:
        """The names of the compared fields in which two records differ.

        Fields that lines of older schemas lack contradict nothing where one of the records has none.
        """
        pairs = [(f.name, getattr(self, f.name), getattr(other, f.name)) for f in fields(self) if f.compare]
        return [name for name, a, b in pairs if a != b and not (name in _LATER and (a is None or b is None))]

    def to_line(self) -> str:
        """One line of strict JSON without its line end: schema, key, all fields, and a checksum of the text before it.

        Infinite numbers are the strings "inf" and "-inf".
        """
        facts = {f.name: getattr(self, f.name) for f in fields(self)}
        for name in _NUMBERS:
            facts[name] = None if facts[name] is None else _finite_or_text(facts[name])
        for name in ("versions", "arrays"):
            facts[name] = dict(sorted(facts[name].items()))
        body = _json({"schema": SCHEMA, "key": self.key, **facts})[:-1]
        return f'{body},"check":"{_check(body)}"}}'

    @classmethod
    def from_line(cls, line: str) -> Record:
        """Parse a line written by `to_line`; anything else is an error.

        A line that is truncated or changed is `DamagedData`. A line of a newer schema is `InvalidInput`, because two records
        may differ in a field that this version does not know.
        """
        match = _CHECKED.fullmatch(line)
        if match is None or _check(match[1]) != match[2]:
            raise DamagedData("the checksum does not fit the line")
        try:
            stored = bounded_json(line, "the line", longest=LONGEST_LINE, deepest=4)
            schema = stored.pop("schema")
        except (DamagedData, KeyError, TypeError, AttributeError) as error:
            raise DamagedData(f"the line is not a record: {error}") from error
        if type(schema) is not int:
            raise DamagedData("the line is not a record: its schema must be a whole number")
        if not 1 <= schema <= SCHEMA:
            raise InvalidInput(
                f"schema must be at most {SCHEMA}, got {schema!r}: the line is of another version of relucert, read it with "
                "that"
            )
        for version, names in _ADDED.items():
            if schema < version:
                stored |= {name: None for name in names if name not in stored}
        known = {f.name for f in fields(cls)} | {"key", "check"}
        if stored.keys() != known:
            raise DamagedData(f"the line has wrong fields: {', '.join(sorted(stored.keys() ^ known))}")
        key = stored.pop("key")
        del stored["check"]
        for name in _NUMBERS:
            if isinstance(stored[name], str) and stored[name] in ("inf", "-inf"):
                stored[name] = float(stored[name])
        try:
            record = cls(**stored)
        except InvalidInput as error:
            raise DamagedData(f"the line is not a record: {error}") from error
        if record.key != key:
            raise DamagedData(f"the key must be {record.key}, got {key!r}")
        return record


def content_digest(array: Any, label: int) -> str:
    """The `content` of a record: the sha256 of an input's dtype, shape and bytes and of its label, in hexadecimal.

    >>> import numpy as np
    >>> content_digest(np.zeros(2), 1) == content_digest(np.zeros(2), 1) != content_digest(np.zeros(2), 2)
    True
    """
    total = hashlib.sha256(_json([array.dtype.str, list(array.shape), _count("label", label)]).encode())
    total.update(array.tobytes())
    return total.hexdigest()


def ball_fields(p: float, eps: float, box: Any = None) -> dict[str, Any]:
    """The `ball` of a record for one example: p, eps and box in a canonical form for JSON.

    Numbers become floats and infinity the string "inf" (`float` reads both). `box` is None, two numbers, or two arrays or
    tensors on the CPU, of which the sha256 is kept. Equal numbers give equal keys; 0.1 in float32 is another number.

    >>> ball_fields(p=float("inf"), eps=0.1, box=(0, 1))
    {'p': 'inf', 'eps': 0.1, 'box': [0.0, 1.0]}
    """
    if box is not None and not isinstance(box, str):
        box = _canonical_box(box)
    return _canonical_ball({"p": p, "eps": eps, "box": box})


def _canonical_box(box: Any) -> list[Any] | str:
    if not isinstance(box, tuple | list) or len(box) != 2:
        raise InvalidInput(f"box must be None or a pair (lower, upper), got {box!r}")
    if not any(hasattr(side, "shape") for side in box):
        return list(box)
    import numpy as np  # only boxes of arrays need it

    low, high = (np.asarray(side, dtype=np.float64) for side in box)
    if low.size == high.size == 1:
        return [low.item(), high.item()]
    sides = b"".join(_json(side.shape).encode() + (side + 0.0).tobytes() for side in (low, high))
    return "sha256:" + hashlib.sha256(sides).hexdigest()


def _canonical_ball(ball: Any) -> dict[str, Any]:
    if not isinstance(ball, Mapping) or set(ball) != {"p", "eps", "box"}:
        raise InvalidInput(f"ball must be a dict of p, eps and box, got {ball!r}")
    p, eps = (_number(f"ball[{name!r}]", _infinite(ball[name])) for name in ("p", "eps"))
    if p < 1:
        raise InvalidInput(f"ball['p'] must be at least 1, got {p}")
    if eps < 0:
        raise InvalidInput(f"ball['eps'] must be at least 0, got {eps}")
    box = ball["box"]
    if isinstance(box, str):
        if not _SHA256.fullmatch(box.removeprefix("sha256:")) or not box.startswith("sha256:"):
            raise InvalidInput(f"ball['box'] as a text must be 'sha256:' and its digits, got {box!r}")
    elif box is not None:
        if not isinstance(box, tuple | list) or len(box) != 2:
            raise InvalidInput(f"ball['box'] must be None, two numbers or a sha256, got {box!r}")
        low, high = (_number("ball['box']", _infinite(side)) for side in box)
        if low > high:
            raise InvalidInput(f"ball['box'] must have lower <= upper, got {low} and {high}")
        box = [_finite_or_text(low), _finite_or_text(high)]
    return {"p": _finite_or_text(p), "eps": _finite_or_text(eps), "box": box}


def _infinite(value: Any) -> Any:
    return float(value) if isinstance(value, str) and value in ("inf", "-inf") else value


def _finite_or_text(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidInput(f"{name} must be a text that is not empty, got {value!r}")
    return value


def _texts(name: str, value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping) or not all(isinstance(part, str) for item in value.items() for part in item):
        raise InvalidInput(f"{name} must be a dict of texts, got {value!r}")
    return dict(value)


def _count(name: str, value: Any) -> int:
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 0:
        raise InvalidInput(f"{name} must be an integer, at least 0, got {value!r}")
    return int(value)


def _number(name: str, value: Any) -> float:
    if not isinstance(value, Real) or isinstance(value, bool):
        raise InvalidInput(f"{name} must be a number, got {value!r}")
    try:
        number = float(value) + 0.0  # -0.0 becomes 0.0: equal numbers have one text
    except OverflowError:
        raise InvalidInput(f"{name} must fit a float, got {value!r}") from None
    if math.isnan(number):
        raise InvalidInput(f"{name} must not be NaN, got {value!r}")
    return number


def _json(value: Any, *, sort_keys: bool = False) -> str:
    return json.dumps(value, allow_nan=False, sort_keys=sort_keys, separators=(",", ":"))


def _check(body: str) -> str:
    return hashlib.sha256(body.encode("utf-8", "surrogatepass")).hexdigest()[:16]
