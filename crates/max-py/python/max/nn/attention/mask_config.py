"""Which keys the queries of an attention see."""

from __future__ import annotations

from enum import Enum

__all__ = ["MHAMaskVariant"]


class MHAMaskVariant(str, Enum):
    """Which keys of its sequence a query sees."""

    CAUSAL_MASK = "causal"
    """Those up to its own position."""

    CAUSAL_ALIBI_MASK = "causal_alibi"
    """Those up to its own position, with scores that decrease with the distance, by a slope for each head."""

    NULL_MASK = "null"
    """All of them."""

    CHUNKED_CAUSAL_MASK = "chunked_causal"
    """Those up to its own position that are in the same chunk of `local_window_size` tokens."""

    SLIDING_WINDOW_CAUSAL_MASK = "sliding_window_causal"
    """The last `local_window_size` ones up to its own position."""
