//! The text form of a body: printed for people, parsed back to the same body.
//!
//! ```text
//! graph "scores"(%0: float32[batch, 3], %1: float32[3]) {
//!   %2 = add(%0, %1) : float32[batch, 3]
//!   %3 = softmax(%2) {axis = 1, log = false} : float32[batch, 3]
//!   return %3
//! }
//! ```
//!
//! Regions come before the graph, each before its first use, as `region @0 "body"(..) {..}`; ops name theirs as
//! `{regions = [@0, @1]}`.
//!
//! The data of constants is written inline: short data as numbers; long data as hexadecimal, as the number of a blob
//! stored next to the text, or not at all.

mod parse;
mod print;

pub use parse::{parse, parse_in, parse_with};
pub use print::{Constants, numbers, print};

#[cfg(test)]
mod tests;
