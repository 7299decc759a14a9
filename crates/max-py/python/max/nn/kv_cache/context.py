"""What a cache must know of a request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["KVCacheAwareContext"]


@runtime_checkable
class KVCacheAwareContext(Protocol):
    """A request whose tokens have keys and values in a cache.

    Those up to `start_idx` are there, those from there up to `active_idx` are computed next.
    """

    @property
    def request_id(self) -> str:
        """What the request is known by."""

    @property
    def tokens(self) -> npt.NDArray[np.integer[Any]]:
        """All tokens."""

    @property
    def next_tokens(self) -> npt.NDArray[np.integer[Any]]:
        """The tokens that are computed next, `active_length` of them."""

    @property
    def start_idx(self) -> int:
        """How many tokens are in the cache."""

    @property
    def active_idx(self) -> int:
        """Where the tokens that are computed next end."""

    @property
    def end_idx(self) -> int:
        """Where all tokens end."""

    @property
    def active_length(self) -> int:
        """How many tokens are computed next: those of the prompt at first, then one."""

    @property
    def current_length(self) -> int:
        """The length of the sequence, with the tokens that are computed next."""

    @property
    def max_length(self) -> int | None:
        """The length that the sequence may have."""

    @property
    def eos_token_ids(self) -> set[int]:
        """The tokens that end the sequence."""

    @property
    def is_done(self) -> bool:
        """Whether the sequence has ended."""

    @property
    def status(self) -> Any:
        """Whether and why it has."""

    @property
    def json_schema(self) -> str | None:
        """The JSON schema that the answer follows."""

    @property
    def matcher(self) -> Any:
        """What decides which tokens such an answer may have."""

    def set_matcher(self, matcher: Any) -> None:
        """Sets what decides which tokens the answer may have.

        Args:
            matcher: A matcher of a grammar.
        """

    def set_token_indices(
        self, start_idx: int | None = None, active_idx: int | None = None, end_idx: int | None = None
    ) -> None:
        """Sets indices, but no tokens.

        Args:
            start_idx: How many tokens are in the cache.
            active_idx: Where the tokens that are computed next end.
            end_idx: Where all tokens end.
        """

    def bump_token_indices(self, start_idx: int = 0, active_idx: int = 0, end_idx: int = 0) -> None:
        """Adds to indices.

        Args:
            start_idx: What is added to `start_idx`.
            active_idx: What is added to `active_idx`.
            end_idx: What is added to `end_idx`.
        """

    def compute_num_available_steps(self, max_seq_len: int) -> int:
        """How many tokens can be computed, one after the other, until the sequence is too long.

        Args:
            max_seq_len: The length of the longest sequence.
        """

    def reset(self) -> None:
        """Makes all tokens a new prompt, as the cache has none of them any more."""
