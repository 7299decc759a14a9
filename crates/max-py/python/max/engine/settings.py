"""The names of what a session can be told. Its methods take the members and their plain strings alike."""

from __future__ import annotations

from enum import Enum


class LogLevel(str, Enum):
    """How much a session says on standard error."""

    NOTSET = "notset"
    """As the environment variable `MAX_LOG_LEVEL` says, else warnings."""
    TRACE = "trace"
    """Every launch of a kernel."""
    DEBUG = "debug"
    """The kernels of every model."""
    INFO = "info"
    """What was compiled, and how long it took."""
    WARNING = "warning"
    ERROR = "error"
    CRITICAL = "critical"

    __str__ = str.__str__


class AssertLevel(str, Enum):
    """How much models check beyond what safety needs, which is always checked."""

    NONE = "none"
    """Nothing more."""
    WARN = "warn"
    """An op that makes a NaN or an infinity is warned of."""
    SAFE = "safe"
    """Plans of memory are proven free of overlap."""
    ALL = "all"
    """Plans of memory are proven, and an op that makes a NaN or an infinity is an error."""

    __str__ = str.__str__


class SplitKReductionPrecision(str, Enum):
    """In which precision the parts of a long sum combine."""

    ACCUM = "ACCUM"
    """That of the accumulator."""
    OUTPUT = "OUTPUT"
    """At least that of the output; the CPU always combines accumulators."""

    __str__ = str.__str__


class GPUProfilingMode(str, Enum):
    """Whether kernels are timed, on whichever device they run."""

    OFF = "off"
    """They are not."""
    ON = "on"
    """Every launch is."""
    DETAILED = "detailed"
    """Every launch is, and a trace names the ops behind it."""

    __str__ = str.__str__
