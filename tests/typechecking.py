"""Shapes are checked at every call while tests run: an import hook puts `checked` around the functions that annotate shapes."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable, Collection, Hashable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType
from typing import Any

from beartype import beartype
from jaxtyping import jaxtyped
from torch import Tensor

SHAPE = "[Tensor, "


def _typed(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with its shape annotations alone under beartype; other annotations are pyright's task."""
    hints = getattr(function, "__annotations__", {})
    function.__annotations__ = {name: hint for name, hint in hints.items() if SHAPE in str(hint)}
    return beartype(function) if function.__annotations__ else function


def _shape(value: Any) -> Hashable:
    """All that a shape annotation can tell of a value; something new each time where that is not known."""
    if isinstance(value, Tensor):
        return value.shape, value.dtype
    if isinstance(value, tuple | list):
        return type(value), tuple(map(_shape, value))
    return type(value) if value is None or isinstance(value, bool | int | float | str) else object()


def checked(made: Any, *, refusing: bool = False) -> Any:
    """A function, or the constructor of a dataclass, that checks its shape annotations; the same without any.

    Every call has axes of its own. A call with the shapes of one before, arguments and answer, is not checked again. What is
    `refusing` answers wrong shapes with an error of its own: its arguments are checked when it has accepted them.
    """
    if inspect.isclass(made):
        if dataclasses.is_dataclass(made) and "__init__" in vars(made):
            made.__init__ = checked(made.__init__, refusing=refusing)
        return made
    hints = dict(made.__annotations__)
    if not any(SHAPE in str(hint) for hint in hints.values()):
        return made
    signature = inspect.signature(made)
    places = [(place, name) for place, name in enumerate(signature.parameters) if SHAPE in str(hints.get(name))]
    answers = SHAPE in str(hints.get("return"))
    given_before: set[Hashable] = set()
    answered_before: set[Hashable] = set()
    answer: list[Any] = [None]

    def stand_in(hints: dict[str, Any]) -> Callable[..., Any]:
        @functools.wraps(made)
        def stub(*_: Any, **__: Any) -> Any:
            return answer[0]

        stub.__annotations__ = hints
        return _typed(stub)

    before = stand_in({name: hint for name, hint in hints.items() if name != "return"})

    def check(given: Hashable, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        __tracebackhide__ = True
        if given not in given_before:
            with jaxtyped("context"):
                before(*args, **kwargs)
            given_before.add(given)

    def shapes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hashable:
        return tuple([_shape(args[at] if at < len(args) else kwargs.get(name)) for at, name in places])

    if inspect.isgeneratorfunction(made):  # a generator to torch as well; what it yields is not checked

        @functools.wraps(made)
        def generating(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            check(shapes(args, kwargs), args, kwargs)
            return (yield from made(*args, **kwargs))

        return generating

    after = stand_in(hints)

    @functools.wraps(made)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        given = shapes(args, kwargs)
        if not refusing:
            check(given, args, kwargs)
        out = made(*args, **kwargs)
        if refusing:
            check(given, args, kwargs)
        if answers and (key := (given, _shape(out))) not in answered_before:
            answer[0] = out
            try:
                with jaxtyped("context"):
                    after(*args, **kwargs)
            finally:
                answer[0] = None
            answered_before.add(key)
        return out

    return wrapper


class _Marker(ast.NodeTransformer):
    """Puts the decorator around functions, next to them, and around classes, above `@dataclass`."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.decorator_list.append(ast.copy_location(ast.Name("_checked", ast.Load()), node))
        return self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.decorator_list.insert(0, ast.copy_location(ast.Name("_checked", ast.Load()), node))
        return self.generic_visit(node)


class _Loader(SourceFileLoader):
    """Loads a module with `checked` around its functions and classes."""

    def get_code(self, fullname: str) -> CodeType:
        tree = _Marker().visit(ast.parse(self.get_data(self.path), self.path))
        return compile(tree, self.path, "exec", dont_inherit=True)

    refusing = False

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = ModuleType(spec.name)
        vars(module)["_checked"] = functools.partial(checked, refusing=self.refusing)
        return module


class _Finder(MetaPathFinder):
    """Finds the modules to check before Python does."""

    def __init__(self, names: Collection[str], refusing: Collection[str]) -> None:
        self._names, self._refusing = frozenset(names), frozenset(refusing)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if fullname in self._names else None
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
            spec.loader.refusing = fullname in self._refusing
        return spec


def install(names: Collection[str], refusing: Collection[str]) -> None:
    """Check the shapes of these modules, which are not imported yet; some of them are `refusing`, see `checked`.

    A finder that counts the lines of what other finders load, as SlipCover's does, stays in front.
    """
    sys.meta_path.insert(sys.meta_path.index(PathFinder), _Finder(names, refusing))
