"""Methods as values: frozen dataclasses that hold parameters only, and their canonical text in both directions."""

from __future__ import annotations

import ast
import math
import re
import types
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cache
from numbers import Integral, Real
from typing import Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from relucert.core.errors import InvalidInput

_TEXT = re.compile(r"([A-Za-z][\w+-]*)\s*(\(.*\))?", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Method:
    """The base of every method: a frozen keyword-only dataclass with a class attribute `name`.

    A parameter is an int, float, bool, str, `Literal`, one of these or None, or a tuple of these. Parameters are checked
    against their annotations, and numbers are made exactly of the annotated type (1 becomes 1.0 in a float), so
    that equal methods have equal `spec`s. A subclass that checks more rules calls `super().__post_init__()` first.

    >>> @dataclass(frozen=True, kw_only=True)
    ... class PGD(Method):
    ...     name = "pgd"
    ...     steps: int = 40
    ...     restarts: int = 1
    >>> spec(PGD(restarts=10))
    'pgd(restarts=10, steps=40)'
    >>> parse("pgd(steps=7)", {"pgd": PGD}) == PGD(steps=7)
    True
    """

    name: ClassVar[str]

    def __post_init__(self) -> None:
        for parameter, hint in _parameters(type(self)).items():
            object.__setattr__(self, parameter, _fit(self.name, parameter, getattr(self, parameter), hint))


AnyMethod = TypeVar("AnyMethod", bound=Method)


def spec(method: Method) -> str:
    """The canonical text of a method: its name and all parameters in alphabetical order, `pgd(restarts=10, steps=40)`.

    Equal methods have equal texts, `parse` inverts it, and records are keyed by it. Without parameters it is the name.
    """
    hints = _parameters(type(method))
    # Checked again because a subclass may not call Method.__post_init__, and record keys must not depend on that.
    values = {p: _fit(method.name, p, getattr(method, p), hints[p]) for p in sorted(hints)}
    arguments = ", ".join(f"{parameter}={value!r}" for parameter, value in values.items())
    return f"{method.name}({arguments})" if arguments else method.name


def parse(method: str | Method, registry: Mapping[str, type[AnyMethod]]) -> AnyMethod:
    """The method described by an instance, a name or a text such as `"pgd(steps=40, restarts=10)"`.

    `registry` maps names to the allowed classes. Values are numbers (also `inf`), True, False, None, quoted strings and
    tuples of these; no code is evaluated. Omitted parameters keep their defaults.
    """
    known = ", ".join(sorted(registry)) or "none"
    if isinstance(method, Method):
        for kind in registry.values():
            if isinstance(method, kind):
                return method
        raise InvalidInput(f"method must be one of {known}, got an instance of {type(method).__name__}")
    if not isinstance(method, str):
        raise InvalidInput(f"method must be a name, a text like 'name(parameter=value)' or an instance, got {method!r}")
    match = _TEXT.fullmatch(method.strip())
    if match is None:
        raise InvalidInput(f"method must read 'name' or 'name(parameter=value, ...)', got {method!r}")
    name, arguments = match.groups()
    if name not in registry:
        raise InvalidInput(f"method must be one of {known}, got {name!r}")
    kind = registry[name]
    values = _arguments(method, arguments) if arguments else {}
    hints = _parameters(kind)
    for parameter in values:
        if parameter not in hints:
            raise InvalidInput(f"{name} has no parameter {parameter!r}; it has {', '.join(sorted(hints)) or 'none'}")
    required = {f.name for f in fields(kind) if f.init and f.default is MISSING and f.default_factory is MISSING}
    if missing := sorted(required - values.keys()):
        raise InvalidInput(f"{name} needs a value for {', '.join(missing)}, got {method!r}")
    return kind(**{p: _fit(name, p, value, hints[p]) for p, value in values.items()})


@cache
def _parameters(kind: type[Method]) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind) if field.init}


def _arguments(whole: str, arguments: str) -> dict[str, Any]:
    try:
        call = ast.parse(f"method{arguments}", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InvalidInput(f"method must read 'name(parameter=value, ...)', got {whole!r}") from error
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
        raise InvalidInput(f"method must read 'name(parameter=value, ...)', got {whole!r}")
    if call.args or any(keyword.arg is None for keyword in call.keywords):
        raise InvalidInput(f"parameters of a method are given by name, 'parameter=value', got {whole!r}")
    values: dict[str, Any] = {}
    for keyword in call.keywords:
        parameter = str(keyword.arg)
        if parameter in values:
            raise InvalidInput(f"parameter {parameter!r} is given twice in {whole!r}")
        values[parameter] = _value(parameter, keyword.value)
    return values


def _value(parameter: str, node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=bool() | int() | float() | str() | None as value):
            return value
        case ast.Name(id="inf"):
            return math.inf
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=operand):
            value = _value(parameter, operand)
            if isinstance(value, int | float) and not isinstance(value, bool):
                return -value if isinstance(sign, ast.USub) else value
        case ast.Tuple(elts=items) | ast.List(elts=items):
            return tuple(_value(parameter, item) for item in items)
        case _:
            pass
    raise InvalidInput(
        f"{parameter} must be a number, inf, True, False, None, a quoted string or a tuple of these, "
        f"got {ast.unparse(node)}"
    )


def _fit(name: str, parameter: str, value: Any, hint: Any) -> Any:
    """Convert `value` to exactly the type of the annotation `hint`, or raise an error that names parameter and value."""
    fitted = _fitted(value, hint)
    if fitted is _MISFIT:
        raise InvalidInput(f"{parameter} of {name} must be {_describe(hint)}, got {value!r}")
    return fitted


_MISFIT = object()


def _fitted(value: Any, hint: Any) -> Any:
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        # Try the member of exactly the value's type first: 1 stays an int in `float | int`.
        members = sorted(get_args(hint), key=lambda member: member is not type(value))
        return next((fitted for member in members if (fitted := _fitted(value, member)) is not _MISFIT), _MISFIT)
    if origin is Literal:
        # Literal[1] must not accept True, although 1 == True.
        return next((item for item in get_args(hint) if item == value and type(item) is type(value)), _MISFIT)
    if origin is tuple:
        return _fitted_tuple(value, get_args(hint))
    if hint is None or hint is type(None):
        return None if value is None else _MISFIT
    if hint is bool or hint is str:
        return value if type(value) is hint else _MISFIT
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if hint is int:
        return int(value) if is_number and isinstance(value, Integral) else _MISFIT
    if hint is float:
        try:
            # + 0.0 turns -0.0 into 0.0: equal numbers must have equal texts.
            return float(value) + 0.0 if is_number and not math.isnan(value) else _MISFIT
        except OverflowError:  # an int larger than every float
            return _MISFIT
    raise TypeError(
        f"a parameter of a method cannot be annotated {hint!r}: int, float, bool, str, None, Literal, tuple"
    )


def _fitted_tuple(value: Any, hints: tuple[Any, ...]) -> Any:
    if not isinstance(value, tuple | list):
        return _MISFIT
    items = hints[:1] * len(value) if hints[1:] == (Ellipsis,) else hints
    if len(items) != len(value):
        return _MISFIT
    fitted = tuple(map(_fitted, value, items))
    return _MISFIT if any(item is _MISFIT for item in fitted) else fitted


def _describe(hint: Any) -> str:
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(_describe(member) for member in get_args(hint))
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(map(repr, get_args(hint)))
    if hint is type(None):
        return "None"
    words = {int: "an int", float: "a number", bool: "True or False", str: "a string"}
    return words.get(hint) or str(hint)
