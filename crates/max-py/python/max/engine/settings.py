"""The named settings of a session. Its methods accept both the members and their plain strings."""

from __future__ import annotations

from enum import Enum


class LogLevel(str, Enum):
    """How much a session logs to standard error."""

    NOTSET = "notset"
    """As the environment variable `MAX_LOG_LEVEL` says; otherwise warnings."""
    TRACE = "trace"
    """Every kernel launch."""
    DEBUG = "debug"
    """The kernels of every model."""
    INFO = "info"
    """What was compiled, and how long it took."""
    WARNING = "warning"
    ERROR = "error"
    CRITICAL = "critical"

    __str__ = str.__str__


class AssertLevel(str, Enum):
    """How much models check in addition to safety, which is always checked."""

    NONE = "none"
    """Nothing else."""
    WARN = "warn"
    """Warns about an op that makes a NaN or an infinity."""
    SAFE = "safe"
    """Proves memory plans free of overlap."""
    ALL = "all"
    """Proves memory plans, and makes it an error if an op makes a NaN or an infinity."""

    __str__ = str.__str__


class SplitKReductionPrecision(str, Enum):
    """The precision in which the parts of a long sum are combined."""

    ACCUM = "ACCUM"
    """The precision of the accumulator."""
    OUTPUT = "OUTPUT"
    """At least the precision of the output; the CPU always uses the accumulator's."""

    __str__ = str.__str__


class GPUProfilingMode(str, Enum):
    """Whether kernels are timed, on whichever device they run."""

    OFF = "off"
    """No."""
    ON = "on"
    """Every launch is timed."""
    DETAILED = "detailed"
    """Every launch is timed, and a trace names its ops."""

    __str__ = str.__str__
