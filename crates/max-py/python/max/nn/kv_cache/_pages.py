"""Which pages of a cache are whose."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np


class Pages:
    """The pages of a cache. Some are free, some belong to sequences, and some are kept for sequences that begin alike.

    A page that is full can be kept: it is known by its tokens and all tokens before them. Sequences share it, and it
    stays when the last of them is gone, until no other page is free.
    """

    def __init__(self, count: int, size: int) -> None:
        self.count = count
        self.size = size
        self._free = list(range(count - 1, -1, -1))
        self._owned: dict[str, list[int]] = {}
        self._users: dict[int, int] = {}
        self._kept: dict[bytes, int] = {}
        self._keys: dict[int, bytes] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()

    @property
    def free(self) -> int:
        """How many pages a sequence could get."""
        return len(self._free) + len(self._idle)

    def of(self, name: str) -> Sequence[int]:
        """The pages of a sequence."""
        return self._owned.get(name, [])

    def missing(self, name: str, tokens: int) -> int:
        """How many more pages a sequence needs for so many tokens."""
        return max(0, -(-tokens // self.size) - len(self.of(name)))

    def grow(self, name: str, count: int) -> None:
        """Gives more pages to a sequence, of which enough are free."""
        pages = self._owned.setdefault(name, [])
        for _ in range(count):
            page = self._free.pop() if self._free else self._evict()
            self._users[page] = 1
            pages.append(page)

    def release(self, name: str) -> None:
        """Takes all pages from a sequence."""
        for page in reversed(self._owned.pop(name, [])):
            self._users[page] -= 1
            if self._users[page]:
                continue
            del self._users[page]
            if page in self._keys:
                self._idle[page] = None
            else:
                self._free.append(page)

    def adopt(self, name: str, tokens: np.ndarray) -> int:
        """Gives the pages that are kept for the tokens at the start of a sequence to it: how many tokens these are."""
        pages = self._owned.setdefault(name, [])
        for key in self._chain(tokens):
            page = self._kept.get(key)
            if page is None:
                break
            self._idle.pop(page, None)
            self._users[page] = self._users.get(page, 0) + 1
            pages.append(page)
        return len(pages) * self.size

    def keep(self, name: str, tokens: np.ndarray) -> None:
        """Keeps the pages of a sequence that these tokens of it fill."""
        for page, key in zip(self.of(name), self._chain(tokens)):
            if page not in self._keys and key not in self._kept:
                self._kept[key], self._keys[page] = page, key

    def _evict(self) -> int:
        page, _ = self._idle.popitem(last=False)
        del self._kept[self._keys.pop(page)]
        return page

    def _chain(self, tokens: np.ndarray) -> list[bytes]:
        """What each full page of tokens is known by."""
        keys, before = [], b""
        for start in range(0, len(tokens) - self.size + 1, self.size):
            own = np.asarray(tokens[start : start + self.size], dtype=np.int64).tobytes()
            before = hashlib.blake2b(before + own, digest_size=16).digest()
            keys.append(before)
        return keys
