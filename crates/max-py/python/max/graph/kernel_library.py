"""Libraries of custom ops."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["KernelLibrary"]


class KernelLibrary:
    """A library of custom ops that graphs can use. It is empty: custom ops cannot be loaded yet.

    >>> KernelLibrary().library_paths()
    []

    Args:
        context: Has no effect: a library needs no compiler context.
        paths: Files to load custom ops from; there must be none.

    Raises:
        NotImplementedError: If there is a path.
    """

    def __init__(self, context: Any = None, paths: Iterable[Path] = ()) -> None:
        self.load_paths(context, paths)

    def library_paths(self) -> list[Path]:
        """The files that its custom ops were loaded from."""
        return []

    def add_path(self, path: Path) -> NoReturn:
        """Loads the custom ops at a path.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError(f"custom ops cannot be loaded yet; got the path {str(path)!r}")

    def load_paths(self, context: Any, custom_extensions: Iterable[Path]) -> None:
        """Loads the custom ops at several paths.

        Args:
            context: Has no effect.
            custom_extensions: The paths; there must be none.

        Raises:
            NotImplementedError: If there is a path.
        """
        for path in custom_extensions:
            self.add_path(path)

    def verify_custom_op(self, custom_op: Any) -> NoReturn:
        """Checks a custom op against the library.

        Raises:
            NotImplementedError: Always: an empty library has no ops.
        """
        raise NotImplementedError(f"a KernelLibrary has no custom ops yet to check {custom_op!r} against")
