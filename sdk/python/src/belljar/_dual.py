"""Methods that can be called on an object, and on the class with an id instead: `sbx.kill()` and `Sandbox.kill(id)`."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any, Callable, Generic, Optional, Type, TypeVar, overload

S = TypeVar("S")
R = TypeVar("R")
U = TypeVar("U")

if TYPE_CHECKING:
    from typing_extensions import Concatenate, ParamSpec

    P = ParamSpec("P")
    Q = ParamSpec("Q")
else:
    # Python 3.9 has no ParamSpec; only type checkers look at it.
    P = TypeVar("P")
    Q = TypeVar("Q")


class dual(Generic[S, P, R, Q, U]):
    """Combines a function that takes the object with one that takes the class."""

    def __init__(self, on_object: Callable[Concatenate[S, P], R], on_class: Callable[Concatenate[Type[S], Q], U]) -> None:
        """Creates a method from both."""
        self.on_object = on_object
        self.on_class = on_class
        self.__doc__ = on_object.__doc__

    @overload
    def __get__(self, instance: None, owner: Type[S]) -> Callable[Q, U]: ...

    @overload
    def __get__(self, instance: S, owner: Optional[Type[S]] = None) -> Callable[P, R]: ...

    def __get__(self, instance: Optional[S], owner: Any = None) -> Any:
        """Binds the applicable function."""
        if instance is None:
            return types.MethodType(self.on_class, owner)
        return types.MethodType(self.on_object, instance)
