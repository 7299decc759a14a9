//! Operators, orders, slices, and what `loop` has.

use std::cmp::Ordering;
use std::sync::Arc;

use super::budget::{Budget, Outcome, fault};
use super::formats;
use super::syntax::Operator;
use super::value::{Form, Loop, Value};

/// What an operator makes of two values.
pub(super) fn apply(operator: Operator, left: &Value, right: &Value, budget: &mut Budget) -> Outcome<Value> {
    match (operator, left, right) {
        (Operator::Concatenate, ..) => {
            let mut text = String::new();
            left.show(&mut text, budget)?;
            right.show(&mut text, budget)?;
            budget.text(&text)
        }
        (Operator::Add, Value::Text(left), Value::Text(right)) => {
            budget.make(left.len() + right.len())?;
            Ok(Value::Text([&**left, right].concat().into()))
        }
        (Operator::Add, Value::List(left), Value::List(right)) if left.form == right.form => {
            budget.formed(left.form, left.items.iter().chain(&right.items).cloned())
        }
        (Operator::Multiply, Value::Text(text), count) | (Operator::Multiply, count, Value::Text(text)) => {
            let count = usize::try_from(count.as_int()?).unwrap_or(0);
            budget.make(text.len().saturating_mul(count))?;
            Ok(Value::Text(text.repeat(count).into()))
        }
        (Operator::Multiply, Value::List(list), count) | (Operator::Multiply, count, Value::List(list)) => {
            let count = usize::try_from(count.as_int()?).unwrap_or(0);
            let count = list.items.len().saturating_mul(count);
            budget.formed(list.form, list.items.iter().cycle().take(count).cloned())
        }
        (Operator::Remainder, Value::Text(text), value) => {
            let values = match value {
                Value::List(list) if list.form == Form::Tuple => &list.items[..],
                value => std::slice::from_ref(value),
            };
            formats::percent(text, values, budget)
        }
        (_, Value::Int(_) | Value::Bool(_), Value::Int(_) | Value::Bool(_)) => {
            integers(operator, left.as_int()?, right.as_int()?)
        }
        _ => match (left.as_float(), right.as_float()) {
            (Some(left), Some(right)) => floats(operator, left, right),
            _ => fault!("{} and {} cannot be operands of one operator", left.kind(), right.kind()),
        },
    }
}

fn integers(operator: Operator, left: i64, right: i64) -> Outcome<Value> {
    if right == 0 && matches!(operator, Operator::Divide | Operator::FloorDivide | Operator::Remainder) {
        fault!("a number is divided by zero");
    }
    // Python rounds down, Rust towards zero.
    let uneven = |rest: i64| rest != 0 && (rest < 0) != (right < 0);
    let result = match operator {
        Operator::Add => left.checked_add(right),
        Operator::Subtract => left.checked_sub(right),
        Operator::Multiply => left.checked_mul(right),
        Operator::FloorDivide => match (left.checked_div(right), left.checked_rem(right)) {
            (Some(quotient), Some(rest)) => Some(quotient - i64::from(uneven(rest))),
            _ => None,
        },
        Operator::Remainder => {
            let rest = left.wrapping_rem(right);
            Some(if uneven(rest) { rest + right } else { rest })
        }
        Operator::Power if right >= 0 => u32::try_from(right).ok().and_then(|right| left.checked_pow(right)),
        _ => return floats(operator, left as f64, right as f64),
    };
    match result {
        Some(value) => Ok(Value::Int(value)),
        None => fault!("a number does not fit 64 bits"),
    }
}

fn floats(operator: Operator, left: f64, right: f64) -> Outcome<Value> {
    if right == 0.0 && matches!(operator, Operator::Divide | Operator::FloorDivide | Operator::Remainder) {
        fault!("a number is divided by zero");
    }
    Ok(Value::Float(match operator {
        Operator::Add => left + right,
        Operator::Subtract => left - right,
        Operator::Multiply => left * right,
        Operator::Divide => left / right,
        Operator::FloorDivide => divided(left, right).0,
        Operator::Remainder => divided(left, right).1,
        Operator::Power => {
            let power = libm::pow(left, right);
            if left.is_finite() && right.is_finite() && !power.is_finite() {
                fault!("a power is no number, or does not fit 64 bits");
            }
            power
        }
        Operator::Concatenate => fault!("numbers are concatenated as texts"),
    }))
}

/// A quotient, rounded down, and the remainder.
fn divided(left: f64, right: f64) -> (f64, f64) {
    let rest = left % right;
    let quotient = ((left - rest) / right).round();
    if rest == 0.0 {
        (quotient, rest.copysign(right))
    } else if (rest < 0.0) != (right < 0.0) {
        (quotient - 1.0, rest + right)
    } else {
        (quotient, rest)
    }
}

/// The negative of a number.
pub(super) fn negated(value: &Value) -> Outcome<Value> {
    match value {
        Value::Float(value) => Ok(Value::Float(-value)),
        other => match other.as_int()?.checked_neg() {
            Some(value) => Ok(Value::Int(value)),
            None => fault!("a number does not fit 64 bits"),
        },
    }
}

/// What has keys, in their order or in the opposite one; what has equal keys stays as it was. The order of Rust would neither
/// be paid for nor fail, and may panic if there is none, as with what is no number.
pub(super) fn ordered<T>(keyed: Vec<(Value, T)>, is_reverse: bool, budget: &mut Budget) -> Outcome<Vec<T>> {
    let mut places: Vec<usize> = (0..keyed.len()).collect();
    let mut width = 1;
    // Runs of some width are in order, and two become one.
    while width < places.len() {
        budget.steps(places.len())?;
        let mut merged = Vec::with_capacity(places.len());
        for runs in places.chunks(2 * width) {
            let (mut left, mut right) = runs.split_at(width.min(runs.len()));
            while let ([first, lefts @ ..], [second, rights @ ..]) = (left, right) {
                let (lower, higher) = if is_reverse { (*first, *second) } else { (*second, *first) };
                if keyed[lower].0.order(&keyed[higher].0, budget)? == Some(Ordering::Less) {
                    merged.push(*second);
                    right = rights;
                } else {
                    merged.push(*first);
                    left = lefts;
                }
            }
            merged.extend(left);
            merged.extend(right);
        }
        places = merged;
        width *= 2;
    }
    let mut values: Vec<_> = keyed.into_iter().map(|(_, value)| Some(value)).collect();
    Ok(places.into_iter().filter_map(|place| values[place].take()).collect())
}

/// What a level is indented by: a text as it is, or as many spaces as a number says.
pub(super) fn indentation(width: &Value, budget: &mut Budget) -> Outcome<Arc<str>> {
    if let Value::Text(space) = width {
        return Ok(space.clone());
    }
    let width = usize::try_from(width.as_int()?).unwrap_or(0);
    budget.make(width)?;
    Ok(" ".repeat(width).into())
}

/// The place that an index means among some items, which may be counted from the end.
pub(super) fn place(index: i64, count: usize) -> Option<usize> {
    let place = if index < 0 { index + count as i64 } else { index };
    usize::try_from(place).ok().filter(|&place| place < count)
}

/// The items or letters from a place to another, in steps.
pub(super) fn slice(
    value: &Value,
    [start, stop, step]: [Option<i64>; 3],
    budget: &mut Budget,
) -> Outcome<Value> {
    let step = step.unwrap_or(1);
    if step == 0 {
        fault!("the step of a slice is 0");
    }
    let places = |count: usize| {
        let count = count as i64;
        // Before the first and beyond the last place, for each direction.
        let (low, high) = if step > 0 { (0, count) } else { (-1, count - 1) };
        let clamped =
            |bound: i64| (if bound < 0 { bound.saturating_add(count) } else { bound }).clamp(low, high);
        let first = start.map_or(if step > 0 { low } else { high }, clamped);
        let end = stop.map_or(if step > 0 { high } else { low }, clamped);
        let places = std::iter::successors(Some(first), move |place| place.checked_add(step));
        places
            .take_while(move |&place| if step > 0 { place < end } else { place > end })
            .map(|place| place as usize)
    };
    match value {
        Value::List(list) if list.form != Form::Generator => {
            budget.formed(list.form, places(list.items.len()).map(|place| list.items[place].clone()))
        }
        Value::Text(text) => {
            budget.make(text.len().saturating_mul(size_of::<char>()))?;
            let letters: Vec<char> = text.chars().collect();
            let sliced: String = places(letters.len()).map(|place| letters[place]).collect();
            budget.text(&sliced)
        }
        Value::Undefined | Value::Map(_) => fault!("{} has no slices", value.kind()),
        _ => Ok(Value::Undefined),
    }
}

/// A field of `loop`, if it has it.
pub(super) fn loop_field(state: &Loop, name: &str) -> Option<Value> {
    let (items, index) = (&state.list.items, state.index);
    let number = |number: usize| Some(Value::Int(number as i64));
    let item =
        |place: Option<usize>| Some(place.and_then(|at| items.get(at)).cloned().unwrap_or(Value::Undefined));
    match name {
        "index" => number(index + 1),
        "index0" => number(index),
        "revindex" => number(items.len() - index),
        "revindex0" => number(items.len() - index - 1),
        "length" => number(items.len()),
        // Only loops that call themselves are deeper.
        "depth" => number(1),
        "depth0" => number(0),
        "first" => Some(Value::Bool(index == 0)),
        "last" => Some(Value::Bool(index + 1 == items.len())),
        "previtem" => item(index.checked_sub(1)),
        "nextitem" => item(Some(index + 1)),
        _ => None,
    }
}
