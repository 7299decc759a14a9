"""Observing realization: when and why tensors were computed, and what their ops were fused into."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType

from max import _core


@dataclass(frozen=True)
class Realization:
    """One program that ran."""

    reason: str
    """Why it ran: "a bare op", "the end of a region", "a read"..."""
    location: tuple[str, int] | None
    """The file and line that caused it, if known."""
    ops: int
    """How many ops had been recorded."""
    tensors: int
    """How many tensors it computed."""
    compiled: bool
    """Whether it had to be compiled; otherwise it was in the cache."""
    prepare_s: float
    """Seconds to find or to compile it."""
    run_s: float
    """Seconds it ran."""
    kernels: list[str]
    """The kernels that the ops were fused into, by the names of their ops."""


class RealizationTrace:
    """What was realized, in all threads, in the block of `trace`. Iterate over it, print it or save it as a page."""

    def __init__(self) -> None:
        self._native: _core.Trace | None = None

    def __enter__(self) -> RealizationTrace:
        self._native = _core.Trace()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._kept().stop()

    def _kept(self) -> _core.Trace:
        if self._native is None:
            raise RuntimeError("a trace records what happens in its `with` block, which has not been entered")
        return self._native

    def __iter__(self) -> Iterator[Realization]:
        return (Realization(*record) for record in self._kept().realizations)

    def __len__(self) -> int:
        return len(self._kept().realizations)

    def __str__(self) -> str:
        return self._kept().text()

    def html(self) -> str:
        """A page with a picture of each graph, in which each box is a kernel with its ops."""
        return self._kept().html()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the page of `html` to a file.

        Raises:
            RuntimeError: If the file cannot be written.
        """
        self._kept().save(path)


def trace() -> RealizationTrace:
    """Records what is computed in a block, when and why, and what was fused.

    The environment variable `MAX_TRACE_REALIZATION` does the same for a whole process: `text` writes to standard error,
    a path that ends in `.html` names the file for a page with pictures.

    >>> from max.experimental import functional as F
    >>> from max.experimental.tensor import Tensor
    >>> x = Tensor([1.0, -2.0])
    >>> with trace() as seen:
    ...     y = F.functional(lambda x: F.relu(x * 2 + 1))(x)
    >>> [(step.reason, step.kernels) for step in seen]
    [('the end of a region', ['mul+add+relu'])]
    """
    return RealizationTrace()
