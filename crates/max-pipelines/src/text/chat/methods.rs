//! Methods of texts, maps, lists and `loop`.

use super::budget::{Budget, Outcome, fault};
use super::formats;
use super::machine::{Machine, Passed};
use super::value::{Form, Value, is_space};

/// The methods of maps.
const OF_MAPS: [&str; 5] = ["copy", "get", "items", "keys", "values"];

/// How many times as long a text becomes at most if the case of its letters changes: a letter may become three.
pub(super) const CASES: usize = 3;

/// A method that is not called, if a value is a map with such a method.
pub(super) fn of_maps(value: &Value, name: &str) -> Option<Value> {
    match value {
        Value::Map(_) => OF_MAPS.iter().find(|method| **method == name).map(|method| Value::Function(method)),
        _ => None,
    }
}

/// Calls a method.
pub(super) fn call(machine: &mut Machine<'_>, value: &Value, name: &str, passed: Passed) -> Outcome<Value> {
    match value {
        Value::Text(text) => text_method(machine, text, name, passed),
        Value::Map(map) => {
            let budget = &mut machine.budget;
            match name {
                "get" => {
                    let [key, default] = passed.bind(["key", "default"])?;
                    let found = value.entry(&key.unwrap_or(Value::Undefined), budget)?;
                    return Ok(found.or(default).unwrap_or(Value::None));
                }
                "copy" | "keys" | "values" | "items" => {}
                _ => fault!("a map has no such method"),
            }
            let [] = passed.bind([])?;
            if name == "copy" {
                return Ok(value.clone());
            }
            let mut items = Vec::new();
            for (key, value) in &map.entries {
                let item = match name {
                    "keys" => key.clone(),
                    "values" => value.clone(),
                    _ => budget.formed(Form::Tuple, [key.clone(), value.clone()])?,
                };
                budget.push_item(&mut items, item)?;
            }
            Value::list(items)
        }
        Value::List(list) if name == "count" || name == "index" => {
            let [item] = passed.bind(["value"])?;
            let item = item.unwrap_or(Value::Undefined);
            let mut count = 0;
            for (place, other) in list.items.iter().enumerate() {
                if other.equals(&item, &mut machine.budget)? {
                    if name == "index" {
                        return Ok(Value::Int(place as i64));
                    }
                    count += 1;
                }
            }
            if name == "index" {
                fault!("the list has no such item");
            }
            Ok(Value::Int(count))
        }
        Value::Loop(state) if name == "cycle" => {
            if passed.positional.is_empty() {
                fault!("it needs values");
            }
            Ok(passed.positional[state.index % passed.positional.len()].clone())
        }
        Value::Undefined => fault!("what has no value has no methods"),
        other => fault!("{} has no such method", other.kind()),
    }
}

fn text_method(machine: &mut Machine<'_>, text: &str, name: &str, passed: Passed) -> Outcome<Value> {
    let budget = &mut machine.budget;
    budget.look(text.len())?;
    let all = |holds: fn(char) -> bool| Ok(Value::Bool(!text.is_empty() && text.chars().all(holds)));
    match name {
        "strip" | "lstrip" | "rstrip" => {
            let [letters] = passed.bind(["chars"])?;
            let letters = match &letters {
                None | Some(Value::None) => None,
                Some(letters) => Some(letters.as_text()?),
            };
            if let Some(letters) = letters {
                budget.steps(text.len().saturating_mul(1 + letters.len() / 16))?;
            }
            let goes = |letter: char| match letters {
                Some(letters) => letters.contains(letter),
                None => is_space(letter),
            };
            let text = if name == "rstrip" { text } else { text.trim_start_matches(goes) };
            budget.text(if name == "lstrip" { text } else { text.trim_end_matches(goes) })
        }
        "upper" | "lower" => {
            let [] = passed.bind([])?;
            budget.make(text.len().saturating_mul(CASES))?;
            let changed = if name == "upper" { text.to_uppercase() } else { text.to_lowercase() };
            Ok(Value::Text(changed.into()))
        }
        "capitalize" | "title" => {
            let [] = passed.bind([])?;
            let has_words = name == "title";
            let has_case = |letter: char| letter.is_uppercase() || letter.is_lowercase();
            title(text, |letter| has_words && !has_case(letter), budget)
        }
        "split" | "rsplit" => {
            let [separator, most] = passed.bind(["sep", "maxsplit"])?;
            let most = most.map_or(Ok(-1), |most| most.as_int())?;
            let parts = usize::try_from(most).map_or(usize::MAX, |most| most.saturating_add(1));
            match separator {
                None | Some(Value::None) => words(text, parts, name == "rsplit", budget),
                Some(separator) => {
                    let separator = separator.as_text()?;
                    if separator.is_empty() {
                        fault!("its separator is empty");
                    }
                    // A search looks at all that it searches for first, however short the text is.
                    budget.look(separator.len())?;
                    let mut items = Vec::new();
                    let mut add = |part: &str| {
                        let part = budget.text(part)?;
                        budget.push_item(&mut items, part)
                    };
                    if name == "split" {
                        text.splitn(parts, &**separator).try_for_each(&mut add)?;
                    } else {
                        text.rsplitn(parts, &**separator).try_for_each(&mut add)?;
                        items.reverse();
                    }
                    Value::list(items)
                }
            }
        }
        "splitlines" => {
            let [] = passed.bind([])?;
            let mut items = Vec::new();
            for line in lines(text) {
                let line = budget.text(line)?;
                budget.push_item(&mut items, line)?;
            }
            Value::list(items)
        }
        "startswith" | "endswith" => {
            let [affix] = passed.bind(["prefix"])?;
            let affix = affix.unwrap_or(Value::Undefined);
            let affixes = match &affix {
                Value::List(list) => &list.items[..],
                one => std::slice::from_ref(one),
            };
            for affix in affixes {
                let affix = affix.as_text()?;
                budget.look(affix.len())?;
                let is_there = match name {
                    "startswith" => text.starts_with(&**affix),
                    _ => text.ends_with(&**affix),
                };
                if is_there {
                    return Ok(Value::Bool(true));
                }
            }
            Ok(Value::Bool(false))
        }
        "removeprefix" | "removesuffix" => {
            let [affix] = passed.bind(["affix"])?;
            let affix = affix.unwrap_or(Value::Undefined);
            let affix = affix.as_text()?;
            let cut = if name == "removeprefix" {
                text.strip_prefix(&**affix)
            } else {
                text.strip_suffix(&**affix)
            };
            budget.text(cut.unwrap_or(text))
        }
        "replace" => {
            let [old, new, count] = passed.bind(["old", "new", "count"])?;
            let (old, new) = (old.unwrap_or(Value::Undefined), new.unwrap_or(Value::Undefined));
            let (old, new) = (old.as_text()?, new.as_text()?);
            let most = match count {
                None | Some(Value::None) => usize::MAX,
                Some(count) => usize::try_from(count.as_int()?).unwrap_or(usize::MAX),
            };
            // It is searched for twice.
            budget.look(old.len().saturating_mul(2))?;
            let count = text.matches(&**old).take(most).count();
            budget.make(text.len().saturating_add(count.saturating_mul(new.len())))?;
            Ok(Value::Text(text.replacen(&**old, new, count).into()))
        }
        "find" | "rfind" | "count" => {
            let [part] = passed.bind(["sub"])?;
            let part = part.unwrap_or(Value::Undefined);
            let part = part.as_text()?;
            budget.look(part.len())?;
            let place = match name {
                "count" => return Ok(Value::Int(text.matches(&**part).count() as i64)),
                "find" => text.find(&**part),
                _ => text.rfind(&**part),
            };
            Ok(Value::Int(place.map_or(-1, |place| text[..place].chars().count() as i64)))
        }
        "join" => {
            let [items] = passed.bind(["iterable"])?;
            let items = machine.items(&items.unwrap_or(Value::Undefined))?;
            let mut joined = String::new();
            for (number, item) in items.items.iter().enumerate() {
                machine.budget.push(&mut joined, if number > 0 { text } else { "" })?;
                machine.budget.push(&mut joined, item.as_text()?)?;
            }
            machine.budget.text(&joined)
        }
        "format" => formats::braces(text, passed, budget),
        "isdigit" | "isnumeric" | "isdecimal" => all(char::is_numeric),
        "isalpha" => all(char::is_alphabetic),
        "isalnum" => all(char::is_alphanumeric),
        "isspace" => all(is_space),
        "isupper" | "islower" => {
            let (upper, lower) = (text.contains(char::is_uppercase), text.contains(char::is_lowercase));
            Ok(Value::Bool(if name == "isupper" { upper && !lower } else { lower && !upper }))
        }
        _ => fault!("a text has no such method"),
    }
}

/// The parts of a text between white space. If there are to be fewer, the last one is the rest; or the first one, if parts are
/// taken from the end.
fn words(text: &str, parts: usize, from_end: bool, budget: &mut Budget) -> Outcome<Value> {
    let mut items = Vec::new();
    let mut rest = if from_end { text.trim_end_matches(is_space) } else { text.trim_start_matches(is_space) };
    while !rest.is_empty() {
        let is_last = items.len() + 1 == parts;
        let part = if from_end {
            let space =
                if is_last { None } else { rest.char_indices().rfind(|(_, letter)| is_space(*letter)) };
            let (before, part) = rest.split_at(space.map_or(0, |(at, letter)| at + letter.len_utf8()));
            rest = before.trim_end_matches(is_space);
            part
        } else {
            let space = if is_last { None } else { rest.find(is_space) };
            let (part, after) = rest.split_at(space.unwrap_or(rest.len()));
            rest = after.trim_start_matches(is_space);
            part
        };
        let part = budget.text(part)?;
        budget.push_item(&mut items, part)?;
    }
    if from_end {
        items.reverse();
    }
    Value::list(items)
}

/// The lines of a text, which end where Python ends them.
pub(super) fn lines(text: &str) -> impl Iterator<Item = &str> {
    let ends = |letter| matches!(letter, '\n'..='\r' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}');
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (line, end) = rest.split_at(rest.find(ends).unwrap_or(rest.len()));
        rest = end.strip_prefix("\r\n").or(end.strip_prefix(ends)).unwrap_or("");
        Some(line)
    })
}

/// A text whose words start with capitals, as does the text; words start after some letters.
pub(super) fn title(text: &str, starts_after: impl Fn(char) -> bool, budget: &mut Budget) -> Outcome<Value> {
    budget.make(text.len().saturating_mul(CASES))?;
    let (mut titled, mut starts) = (String::new(), true);
    for letter in text.chars() {
        if starts {
            titled.extend(letter.to_uppercase());
        } else {
            titled.extend(letter.to_lowercase());
        }
        starts = starts_after(letter);
    }
    budget.text(&titled)
}
