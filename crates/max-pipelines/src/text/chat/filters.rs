//! Filters and tests.

use std::cmp::Ordering;
use std::sync::Arc;

use super::budget::{Outcome, fault};
use super::machine::{Machine, Passed};
use super::syntax::{Comparison, Operator};
use super::value::{Form, List, Value, is_space};
use super::{formats, json, methods, operators};

/// What a filter makes of a value.
pub(super) fn apply(
    machine: &mut Machine<'_>,
    name: &str,
    value: Value,
    mut passed: Passed,
) -> Outcome<Value> {
    match name {
        // Filters that are methods of texts; they take all else as a text.
        "trim" | "upper" | "lower" | "capitalize" | "replace" => {
            let method = if name == "trim" { "strip" } else { name };
            let text = shown(machine, value)?;
            if name == "replace" {
                for argument in passed.positional.iter_mut().take(2) {
                    *argument = shown(machine, argument.clone())?;
                }
            }
            methods::call(machine, &text, method, passed)
        }
        "title" => {
            let [] = passed.bind([])?;
            let text = shown(machine, value)?;
            let starts_after = |letter: char| is_space(letter) || "-({[<".contains(letter);
            methods::title(text.as_text()?, starts_after, &mut machine.budget)
        }
        "string" | "safe" => {
            let [] = passed.bind([])?;
            shown(machine, value)
        }
        "tojson" => {
            let options = passed.bind(["ensure_ascii", "indent", "separators", "sort_keys"])?;
            let text = json::text(&value, options, &mut machine.budget)?;
            machine.budget.text(&text)
        }
        "indent" => {
            let text = shown(machine, value)?;
            indent(machine, text.as_text()?, passed)
        }
        "format" => {
            let text = shown(machine, value)?;
            formats::percent(text.as_text()?, &passed.positional, &mut machine.budget)
        }
        "default" | "d" => {
            let [other, boolean] = passed.bind(["default_value", "boolean"])?;
            let is_missing = match value {
                Value::Undefined => true,
                _ => is_true(boolean) && !value.is_true(),
            };
            Ok(if is_missing { other.unwrap_or_else(|| "".into()) } else { value })
        }
        "length" | "count" => {
            let [] = passed.bind([])?;
            Ok(Value::Int(match &value {
                Value::Text(text) => {
                    machine.budget.look(text.len())?;
                    text.chars().count() as i64
                }
                Value::List(list) if list.form != Form::Generator => list.items.len() as i64,
                Value::Map(map) => map.entries.len() as i64,
                Value::Undefined => 0,
                other => fault!("{} has no length", other.kind()),
            }))
        }
        "int" | "float" => {
            let [default] = passed.bind(["default"])?;
            number(machine, name == "int", &value, default)
        }
        "abs" => {
            let [] = passed.bind([])?;
            let negative = value.order(&Value::Int(0), &mut machine.budget)? == Some(Ordering::Less);
            if negative { operators::negated(&value) } else { Ok(value) }
        }
        "round" => round(&value, passed),
        "items" => {
            let [] = passed.bind([])?;
            match value {
                Value::Undefined => Value::formed(Form::Generator, Vec::new()),
                Value::Map(_) => {
                    let pairs = methods::call(machine, &value, "items", Passed::default())?;
                    let pairs = machine.items(&pairs)?;
                    machine.budget.formed(Form::Generator, pairs.items.iter().cloned())
                }
                other => fault!("{} is no map", other.kind()),
            }
        }
        _ => sequence(machine, name, value, passed),
    }
}

/// What a filter makes of items.
fn sequence(machine: &mut Machine<'_>, name: &str, value: Value, mut passed: Passed) -> Outcome<Value> {
    // For these a text needs no list of its letters.
    if let (Value::Text(text), "first" | "last" | "reverse") = (&value, name) {
        let [] = passed.bind([])?;
        return match name {
            "first" => Ok(text.chars().next().map_or(Value::Undefined, Value::from)),
            "last" => Ok(text.chars().next_back().map_or(Value::Undefined, Value::from)),
            _ => operators::slice(&value, [None, None, Some(-1)], &mut machine.budget),
        };
    }
    let list = match value {
        // As in Jinja, these take what is false for nothing.
        Value::None if name.starts_with("select") || name.starts_with("reject") || name == "map" => {
            machine.items(&Value::Undefined)?
        }
        _ => machine.items(&value)?,
    };
    match name {
        "list" => {
            let [] = passed.bind([])?;
            match list.form {
                Form::List => Ok(Value::List(list)),
                _ => machine.budget.list(list.items.iter().cloned()),
            }
        }
        "first" | "last" => {
            let [] = passed.bind([])?;
            let item = if name == "first" { list.items.first() } else { list.items.last() };
            Ok(item.cloned().unwrap_or(Value::Undefined))
        }
        "reverse" => {
            let [] = passed.bind([])?;
            machine.budget.formed(Form::Generator, list.items.iter().rev().cloned())
        }
        "join" => {
            let [separator, attribute] = passed.bind(["d", "attribute"])?;
            let separator = shown(machine, separator.unwrap_or_else(|| "".into()))?;
            let mut text = String::new();
            for (number, item) in list.items.iter().enumerate() {
                if number > 0 {
                    separator.show(&mut text, &mut machine.budget)?;
                }
                reached(machine, item, attribute.as_ref())?.show(&mut text, &mut machine.budget)?;
            }
            machine.budget.text(&text)
        }
        "sum" => {
            let [attribute, start] = passed.bind(["attribute", "start"])?;
            let mut total = start.unwrap_or(Value::Int(0));
            for item in &list.items {
                let item = reached(machine, item, attribute.as_ref())?;
                total = operators::apply(Operator::Add, &total, &item, &mut machine.budget)?;
            }
            Ok(total)
        }
        "min" | "max" => {
            let [case, attribute] = passed.bind(["case_sensitive", "attribute"])?;
            // Of equal items both give the first, which stays before the others in either order.
            let items = sorted(machine, &list, is_true(case), attribute.as_ref(), name == "max")?;
            Ok(items.into_iter().next().unwrap_or(Value::Undefined))
        }
        "sort" => {
            let [reverse, case, attribute] = passed.bind(["reverse", "case_sensitive", "attribute"])?;
            Value::list(sorted(machine, &list, is_true(case), attribute.as_ref(), is_true(reverse))?)
        }
        "dictsort" => {
            let [case, by, reverse] = passed.bind(["case_sensitive", "by", "reverse"])?;
            let by = by.unwrap_or_else(|| "key".into());
            let place = match &**by.as_text()? {
                "key" => Value::Int(0),
                "value" => Value::Int(1),
                _ => fault!("it sorts by 'key' or by 'value'"),
            };
            let pairs = methods::call(machine, &value, "items", Passed::default())?;
            let pairs = machine.items(&pairs)?;
            Value::list(sorted(machine, &pairs, is_true(case), Some(&place), is_true(reverse))?)
        }
        "unique" => {
            let [case, attribute] = passed.bind(["case_sensitive", "attribute"])?;
            let is_exact = is_true(case);
            let (mut keys, mut kept) = (Vec::<Value>::new(), Vec::new());
            'items: for item in &list.items {
                let key = sort_key(machine, item, is_exact, attribute.as_ref())?;
                for known in &keys {
                    if known.equals(&key, &mut machine.budget)? {
                        continue 'items;
                    }
                }
                machine.budget.push_item(&mut keys, key)?;
                machine.budget.push_item(&mut kept, item.clone())?;
            }
            Value::formed(Form::Generator, kept)
        }
        "map" => {
            let attribute = passed.named.iter().position(|(name, _)| &**name == "attribute");
            let mut mapped = Vec::new();
            if let Some(place) = attribute {
                let (_, attribute) = passed.named.remove(place);
                let [default] = passed.bind(["default"])?;
                for item in &list.items {
                    let value = match (reached(machine, item, Some(&attribute))?, &default) {
                        (Value::Undefined, Some(default)) => default.clone(),
                        (value, _) => value,
                    };
                    machine.budget.push_item(&mut mapped, value)?;
                }
            } else {
                let filter = first(&mut passed, "the name of a filter")?;
                for item in &list.items {
                    machine.budget.make(passed.bytes())?;
                    let value = machine.filter(filter.as_text()?, item.clone(), passed.clone())?;
                    machine.budget.push_item(&mut mapped, value)?;
                }
            }
            Value::formed(Form::Generator, mapped)
        }
        "select" | "reject" | "selectattr" | "rejectattr" => {
            let attribute =
                if name.ends_with("attr") { Some(first(&mut passed, "an attribute")?) } else { None };
            let test = if passed.positional.is_empty() { None } else { Some(first(&mut passed, "a test")?) };
            let mut kept = Vec::new();
            for item in &list.items {
                machine.budget.make(passed.bytes())?;
                let value = reached(machine, item, attribute.as_ref())?;
                let holds = match &test {
                    Some(test) => machine.test(test.as_text()?, &value, passed.clone())?,
                    None => value.is_true(),
                };
                if holds == name.starts_with("select") {
                    machine.budget.push_item(&mut kept, item.clone())?;
                }
            }
            Value::formed(Form::Generator, kept)
        }
        _ => fault!("there is no such filter"),
    }
}

/// Whether a test holds for a value.
pub(super) fn test(machine: &mut Machine<'_>, name: &str, value: &Value, passed: Passed) -> Outcome<bool> {
    let comparison = match name {
        "eq" | "equalto" | "==" => Some(Comparison::Equal),
        "ne" | "!=" => Some(Comparison::NotEqual),
        "lt" | "lessthan" | "<" => Some(Comparison::Less),
        "le" | "<=" => Some(Comparison::LessEqual),
        "gt" | "greaterthan" | ">" => Some(Comparison::Greater),
        "ge" | ">=" => Some(Comparison::GreaterEqual),
        "in" => Some(Comparison::In),
        _ => None,
    };
    if let Some(comparison) = comparison {
        let [Some(other)] = passed.bind(["other"])? else { fault!("it needs a value to compare with") };
        return machine.compare(comparison, value, &other);
    }
    if name == "sameas" {
        let [Some(other)] = passed.bind(["other"])? else { fault!("it needs a value to compare with") };
        let is_kind = std::mem::discriminant(value) == std::mem::discriminant(&other);
        return Ok(is_kind && value.equals(&other, &mut machine.budget)?);
    }
    if name == "divisibleby" {
        let [Some(by)] = passed.bind(["num"])? else { fault!("it needs a number") };
        let rest = operators::apply(Operator::Remainder, value, &by, &mut machine.budget)?;
        return Ok(!rest.is_true());
    }
    let [] = passed.bind([])?;
    Ok(match name {
        "defined" => !matches!(value, Value::Undefined),
        "undefined" => matches!(value, Value::Undefined),
        "none" => matches!(value, Value::None),
        "boolean" => matches!(value, Value::Bool(_)),
        "true" => matches!(value, Value::Bool(true)),
        "false" => matches!(value, Value::Bool(false)),
        "string" => matches!(value, Value::Text(_)),
        "number" => value.as_float().is_some(),
        "integer" => matches!(value, Value::Int(_)),
        "float" => matches!(value, Value::Float(_)),
        "mapping" => matches!(value, Value::Map(_)),
        // In Python a map and a text are sequences too, for this test, and what is undefined is an empty one.
        "sequence" | "iterable" => match value {
            Value::List(list) => name == "iterable" || list.form != Form::Generator,
            value => matches!(value, Value::Text(_) | Value::Map(_) | Value::Undefined),
        },
        // What is undefined can be called as well, but that fails.
        "callable" => matches!(value, Value::Macro(_) | Value::Function(_) | Value::Undefined),
        "odd" => value.as_int()? & 1 == 1,
        "even" => value.as_int()? & 1 == 0,
        "lower" | "upper" => {
            let method = if name == "lower" { "islower" } else { "isupper" };
            methods::call(machine, value, method, Passed::default())?.is_true()
        }
        _ => fault!("there is no such test"),
    })
}

/// The first argument, which is no longer there afterwards.
fn first(passed: &mut Passed, what: &str) -> Outcome<Value> {
    if passed.positional.is_empty() {
        fault!("it needs {what}");
    }
    Ok(passed.positional.remove(0))
}

/// Whether an argument is passed and true.
fn is_true(argument: Option<Value>) -> bool {
    argument.is_some_and(|argument| argument.is_true())
}

/// A value as a text.
fn shown(machine: &mut Machine<'_>, value: Value) -> Outcome<Value> {
    if let Value::Text(_) = value {
        return Ok(value);
    }
    let mut text = String::new();
    value.show(&mut text, &mut machine.budget)?;
    machine.budget.text(&text)
}

/// What is reached from an item by names and numbers with dots between them; the item itself without any.
fn reached(machine: &mut Machine<'_>, item: &Value, path: Option<&Value>) -> Outcome<Value> {
    match path {
        None | Some(Value::None) => Ok(item.clone()),
        Some(Value::Text(path)) => {
            let mut value = item.clone();
            for part in path.split('.') {
                machine.budget.look(part.len())?;
                value = match part.parse() {
                    Ok(index) => machine.item(&value, &Value::Int(index))?,
                    Err(_) => machine.member(&value, part)?,
                };
            }
            Ok(value)
        }
        Some(key) => machine.item(item, key),
    }
}

/// What an item is sorted by: texts without their case, unless it matters.
fn sort_key(machine: &mut Machine<'_>, item: &Value, is_exact: bool, path: Option<&Value>) -> Outcome<Value> {
    match reached(machine, item, path)? {
        Value::Text(text) if !is_exact => {
            machine.budget.make(text.len().saturating_mul(methods::CASES))?;
            Ok(Value::Text(text.to_lowercase().into()))
        }
        key => Ok(key),
    }
}

/// The items in their order, or in the opposite one.
fn sorted(
    machine: &mut Machine<'_>,
    list: &Arc<List>,
    is_exact: bool,
    path: Option<&Value>,
    is_reverse: bool,
) -> Outcome<Vec<Value>> {
    let mut keyed = Vec::new();
    for item in &list.items {
        let key = sort_key(machine, item, is_exact, path)?;
        machine.budget.make(2 * size_of::<(Value, Value)>())?;
        keyed.push((key, item.clone()));
    }
    operators::ordered(keyed, is_reverse, &mut machine.budget)
}

/// Lines with space before each but the first, or before all.
fn indent(machine: &mut Machine<'_>, text: &str, passed: Passed) -> Outcome<Value> {
    let [width, first, blank] = passed.bind(["width", "first", "blank"])?;
    let (first, blank) = (is_true(first), is_true(blank));
    let space = operators::indentation(&width.unwrap_or(Value::Int(4)), &mut machine.budget)?;
    machine.budget.make(text.len() + 1)?;
    let (text, mut indented) = (format!("{text}\n"), String::new());
    for (number, line) in methods::lines(&text).enumerate() {
        if number > 0 {
            machine.budget.push(&mut indented, "\n")?;
        }
        let is_indented = if number == 0 { first } else { blank || !line.is_empty() };
        if is_indented {
            machine.budget.push(&mut indented, &space)?;
        }
        machine.budget.push(&mut indented, line)?;
    }
    machine.budget.text(&indented)
}

/// A value as an integer or a float, or a default where it is none.
fn number(machine: &mut Machine<'_>, is_int: bool, value: &Value, default: Option<Value>) -> Outcome<Value> {
    let number = match value {
        Value::Int(_) | Value::Float(_) | Value::Bool(_) => Some(value.clone()),
        Value::Text(text) => {
            machine.budget.look(text.len())?;
            let text = text.trim_matches(is_space);
            text.parse().map(Value::Int).or_else(|_| text.parse().map(Value::Float)).ok()
        }
        Value::Undefined => fault!("what has no value is no number"),
        _ => None,
    };
    Ok(match number {
        Some(Value::Float(value)) if is_int && value.is_finite() => {
            if value.abs() >= 9e18 {
                fault!("a number does not fit 64 bits");
            }
            Value::Int(value as i64)
        }
        Some(Value::Float(value)) if !is_int => Value::Float(value),
        Some(number @ (Value::Int(_) | Value::Bool(_))) => {
            if is_int {
                Value::Int(number.as_int()?)
            } else {
                Value::Float(number.as_int()? as f64)
            }
        }
        _ => default.unwrap_or(if is_int { Value::Int(0) } else { Value::Float(0.0) }),
    })
}

/// A number with some digits after the point.
fn round(value: &Value, passed: Passed) -> Outcome<Value> {
    let [precision, method] = passed.bind(["precision", "method"])?;
    let precision = precision.unwrap_or(Value::Int(0)).as_int()?;
    let Some(number) = value.as_float() else { fault!("a number was expected, not {}", value.kind()) };
    let Some(digits) = usize::try_from(precision).ok().filter(|digits| *digits <= 15) else {
        fault!("its precision is from 0 to 15 digits, not {precision}");
    };
    let scale = libm::pow(10.0, digits as f64);
    let method = method.unwrap_or_else(|| "common".into());
    Ok(match (&**method.as_text()?, value) {
        ("common", Value::Int(_) | Value::Bool(_)) => Value::Int(value.as_int()?),
        // Digits are rounded correctly when they are written.
        ("common", _) => Value::Float(format!("{number:.digits$}").parse().unwrap_or(number)),
        ("ceil", _) => Value::Float((number * scale).ceil() / scale),
        ("floor", _) => Value::Float((number * scale).floor() / scale),
        _ => fault!("its method is 'common', 'ceil' or 'floor'"),
    })
}
