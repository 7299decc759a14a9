//! The command `max`.

#![forbid(unsafe_code)]
