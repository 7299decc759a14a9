"""Fixtures shared by all test files."""

import signal

import pytest
from max.driver import CPU
from max.engine import InferenceSession

# A process started in the background ignores Ctrl-C, which some tests send to themselves.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="module")
def session() -> InferenceSession:
    return InferenceSession(devices=[CPU()])
