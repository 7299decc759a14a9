//! Texts with values in their places, as Python's `%` and `format` make them.

use super::budget::{Budget, Outcome, fault};
use super::machine::Passed;
use super::value::{Value, shown_float};

/// The most letters or digits that a place asks for.
const MOST_WIDTH: usize = 99;

/// A text with values in place of `%s`, `%r`, `%d`, `%i`, `%x`, `%X`, `%o` and `%f`, which may have flags, a width and a
/// precision.
pub(super) fn percent(text: &str, values: &[Value], budget: &mut Budget) -> Outcome<Value> {
    budget.look(text.len())?;
    let (mut formatted, mut values, mut rest) = (String::new(), values.iter(), text);
    while let Some((before, after)) = rest.split_once('%') {
        budget.push(&mut formatted, before)?;
        if let Some(after) = after.strip_prefix('%') {
            budget.push(&mut formatted, "%")?;
            rest = after;
            continue;
        }
        let (place, after) = Place::read(after)?;
        let Some(value) = values.next() else { fault!("a format has more places than there are values") };
        place.write(value, &mut formatted, budget)?;
        rest = after;
    }
    if values.next().is_some() {
        fault!("a format has fewer places than there are values");
    }
    budget.push(&mut formatted, rest)?;
    budget.text(&formatted)
}

/// What follows the `%` of a place for a value.
struct Place<'a> {
    flags: &'a str,
    width: usize,
    precision: Option<usize>,
    kind: char,
}

impl Place<'_> {
    /// The place that a text starts with, and what follows it.
    fn read(text: &str) -> Outcome<(Place<'_>, &str)> {
        let (flags, rest) = start(text, |letter| "-+ 0".contains(letter));
        let (width, rest) = number(rest)?;
        let (precision, rest) = match rest.strip_prefix('.') {
            Some(rest) => {
                let (precision, rest) = number(rest)?;
                (Some(precision), rest)
            }
            None => (None, rest),
        };
        let Some(kind) = rest.chars().next() else { fault!("a format ends within a place for a value") };
        Ok((Place { flags, width, precision, kind }, &rest[kind.len_utf8()..]))
    }

    /// Adds a value to a text.
    fn write(&self, value: &Value, to: &mut String, budget: &mut Budget) -> Outcome<()> {
        let is_number = !matches!(self.kind, 's' | 'r');
        let (is_negative, shown) = match self.kind {
            's' | 'r' => (false, self.text(value, budget)?),
            'd' | 'i' | 'x' | 'X' | 'o' => self.integer(value)?,
            'f' => self.float(value)?,
            other => fault!("a format has '%{other}', which has no meaning here"),
        };
        let has = |flag: char| self.flags.contains(flag);
        let sign = match is_number {
            true if is_negative => "-",
            true if has('+') => "+",
            true if has(' ') => " ",
            _ => "",
        };
        let room = self.width.saturating_sub(sign.len() + shown.chars().count());
        let (before, zeros, after) = if has('-') {
            (0, 0, room)
        } else if is_number && has('0') {
            (0, room, 0)
        } else {
            (room, 0, 0)
        };
        budget.push(to, &" ".repeat(before))?;
        budget.push(to, sign)?;
        budget.push(to, &"0".repeat(zeros))?;
        budget.push(to, &shown)?;
        budget.push(to, &" ".repeat(after))
    }

    /// A value as a text, of which the precision says how much is shown.
    fn text(&self, value: &Value, budget: &mut Budget) -> Outcome<String> {
        let mut shown = String::new();
        if self.kind == 's' {
            value.show(&mut shown, budget)?;
        } else {
            value.represent(&mut shown, budget)?;
        }
        let end = self.precision.and_then(|most| shown.char_indices().nth(most));
        if let Some((end, _)) = end {
            shown.truncate(end);
        }
        Ok(shown)
    }

    /// Whether an integer is negative, and its digits: as many as the precision says, or more.
    fn integer(&self, value: &Value) -> Outcome<(bool, String)> {
        let (is_negative, digits) = match (self.kind, value) {
            ('d' | 'i', Value::Float(value)) if value.is_finite() => {
                (value.trunc() < 0.0, format!("{:.0}", value.trunc().abs()))
            }
            (kind, value) => {
                let value = value.as_int()?;
                let size = value.unsigned_abs();
                let digits = match kind {
                    'x' => format!("{size:x}"),
                    'X' => format!("{size:X}"),
                    'o' => format!("{size:o}"),
                    _ => size.to_string(),
                };
                (value < 0, digits)
            }
        };
        let least = self.precision.unwrap_or(0);
        Ok((is_negative, format!("{digits:0>least$}")))
    }

    /// Whether a number is negative, and its digits: after the point as many as the precision says.
    fn float(&self, value: &Value) -> Outcome<(bool, String)> {
        let Some(number) = value.as_float() else { fault!("a number was expected, not {}", value.kind()) };
        let (size, digits) = (number.abs(), self.precision.unwrap_or(6));
        let shown = if size.is_finite() { format!("{size:.digits$}") } else { shown_float(size) };
        Ok((number.is_sign_negative() && !number.is_nan(), shown))
    }
}

/// The letters of some kind that a text starts with, and what follows them.
fn start(text: &str, holds: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(|letter| !holds(letter)).unwrap_or(text.len()))
}

/// The number that a text starts with, 0 if it starts with none, and what follows it.
fn number(text: &str) -> Outcome<(usize, &str)> {
    let (digits, rest) = start(text, |letter| letter.is_ascii_digit());
    if digits.is_empty() {
        return Ok((0, rest));
    }
    match digits.parse::<usize>() {
        Ok(number) if number <= MOST_WIDTH => Ok((number, rest)),
        _ => fault!("a format has a width or a precision of more than {MOST_WIDTH}"),
    }
}

/// A text with values in place of braces, which contain a number, a name or nothing.
pub(super) fn braces(text: &str, passed: Passed, budget: &mut Budget) -> Outcome<Value> {
    let (mut formatted, mut rest, mut next) = (String::new(), text, 0);
    while let Some(place) = rest.find(['{', '}']) {
        budget.push(&mut formatted, &rest[..place])?;
        let (brace, after) = rest[place..].split_at(1);
        if after.starts_with(brace) {
            budget.push(&mut formatted, brace)?;
            rest = &after[1..];
            continue;
        }
        let Some((field, after)) = after.split_once('}').filter(|_| brace == "{") else {
            fault!("a format has a single '{brace}'")
        };
        if field.contains([':', '!', '.', '[']) {
            fault!("a format has more than a number or a name in '{{{field}}}'");
        }
        let value = if field.is_empty() {
            next += 1;
            passed.positional.get(next - 1)
        } else if let Ok(number) = field.parse::<usize>() {
            passed.positional.get(number)
        } else {
            budget.compare(field, passed.named.len())?;
            passed.named.iter().find(|(name, _)| &**name == field).map(|(_, value)| value)
        };
        let Some(value) = value else { fault!("a format has a place without a value") };
        value.show(&mut formatted, budget)?;
        rest = after;
    }
    budget.push(&mut formatted, rest)?;
    budget.text(&formatted)
}
