"""Fixtures shared by all test files."""

import pytest
from max.driver import CPU
from max.engine import InferenceSession


@pytest.fixture(scope="module")
def session() -> InferenceSession:
    return InferenceSession(devices=[CPU()])
