//! Runs a template.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::SystemTime;

use super::budget::{Budget, Fault, Outcome, fault, shortened};
use super::syntax::{Access, Arguments, Block, Comparison, Expression, For, Statement, Target, Template};
use super::value::{Form, List, Loop, Value};
use super::{dates, filters, methods, operators};

/// How deep macros, statements and expressions are nested while they run.
const MOST_DEPTH: usize = 200;

/// The longest range.
const MOST_RANGE: u64 = 100_000;

/// The most letters of a name in a message.
const MOST_SHOWN: usize = 100;

/// What a namespace takes in memory.
const NAMESPACE: usize = 256;

/// The functions that every template has.
const FUNCTIONS: [&str; 5] = ["dict", "namespace", "raise_exception", "range", "strftime_now"];

/// What a template writes, with some variables, at a time.
pub(super) fn render(
    template: &Template,
    variables: HashMap<Arc<str>, Value>,
    now: SystemTime,
) -> Outcome<String> {
    let mut machine = Machine {
        template,
        budget: Budget::new(),
        frames: vec![variables, Names::new()],
        base: 0,
        namespaces: Vec::new(),
        output: String::new(),
        depth: 0,
        now,
    };
    machine.block(&template.body)?;
    Ok(machine.output)
}

/// Names with their values.
type Names = HashMap<Arc<str>, Value>;

/// The state of a template that runs.
pub(super) struct Machine<'a> {
    template: &'a Template,
    pub(super) budget: Budget,
    /// The variables, the names of the template, and those of the blocks that run.
    frames: Vec<Names>,
    /// The first frame of the macro that runs, which sees no others but the first two.
    base: usize,
    namespaces: Vec<Names>,
    output: String,
    depth: usize,
    now: SystemTime,
}

/// How a block ended.
#[derive(Clone, Copy, PartialEq)]
enum Flow {
    On,
    Break,
    Continue,
}

/// The values that are passed to a function.
#[derive(Clone, Default)]
pub(super) struct Passed {
    pub(super) positional: Vec<Value>,
    pub(super) named: Vec<(Arc<str>, Value)>,
}

impl Passed {
    /// What a copy takes in memory.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.positional) + size_of_val(&*self.named)
    }

    /// The values of parameters with some names.
    pub(super) fn bind<const N: usize>(self, names: [&str; N]) -> Outcome<[Option<Value>; N]> {
        let mut values = [const { None }; N];
        if self.positional.len() > N {
            fault!("it takes at most {N} arguments, not {}", self.positional.len());
        }
        for (place, value) in values.iter_mut().zip(self.positional) {
            *place = Some(value);
        }
        for (name, value) in self.named {
            match names.iter().position(|known| *known == &*name) {
                Some(place) if values[place].is_none() => values[place] = Some(value),
                Some(_) => fault!("its argument '{name}' is passed twice"),
                None => fault!("it has no argument '{name}'"),
            }
        }
        Ok(values)
    }
}

impl Machine<'_> {
    /// Runs something that is nested in something.
    fn deeper<T>(&mut self, run: impl FnOnce(&mut Self) -> Outcome<T>) -> Outcome<T> {
        if self.depth == MOST_DEPTH {
            fault!("it is nested deeper than {MOST_DEPTH} while it runs");
        }
        self.depth += 1;
        let result = run(self);
        self.depth -= 1;
        result
    }

    fn block(&mut self, block: &Block) -> Outcome<Flow> {
        self.deeper(|machine| {
            for (line, statement) in block {
                let flow = machine.statement(statement).map_err(|fault| fault.at(*line))?;
                if flow != Flow::On {
                    return Ok(flow);
                }
            }
            Ok(Flow::On)
        })
    }

    fn statement(&mut self, statement: &Statement) -> Outcome<Flow> {
        self.budget.steps(1)?;
        match statement {
            Statement::Data(text) => self.budget.push(&mut self.output, text)?,
            Statement::Show(value) => {
                let value = self.value(value)?;
                value.show(&mut self.output, &mut self.budget)?;
            }
            Statement::If(branches, otherwise) => {
                for (condition, block) in branches {
                    if self.value(condition)?.is_true() {
                        return self.block(block);
                    }
                }
                return self.block(otherwise);
            }
            Statement::For(iteration) => return self.iterate(iteration),
            Statement::Set(target, value) => {
                let value = self.value(value)?;
                self.set(target, value)?;
            }
            Statement::Capture(target, steps, block) => match self.written(steps, block)? {
                Ok(value) => self.set(target, value)?,
                Err(flow) => return Ok(flow),
            },
            Statement::Filter(steps, block) => match self.written(steps, block)? {
                Ok(value) => value.show(&mut self.output, &mut self.budget)?,
                Err(flow) => return Ok(flow),
            },
            Statement::With(values, block) => {
                let mut names = Vec::new();
                for (target, value) in values {
                    names.push((target, self.value(value)?));
                }
                return self.framed(|machine| {
                    for (target, value) in names {
                        machine.set(target, value)?;
                    }
                    machine.block(block)
                });
            }
            Statement::Macro(number) => {
                let name = self.template.macros[*number].name.clone();
                self.name(name, Value::Macro(*number))?;
            }
            Statement::Break => return Ok(Flow::Break),
            Statement::Continue => return Ok(Flow::Continue),
        }
        Ok(Flow::On)
    }

    /// Runs something with a frame of its own.
    fn framed<T>(&mut self, run: impl FnOnce(&mut Self) -> Outcome<T>) -> Outcome<T> {
        self.frames.push(Names::new());
        let result = run(self);
        self.frames.pop();
        result
    }

    /// What a block writes, after some filters, or how it leaves the loop that it is in.
    fn written(&mut self, steps: &[Access], block: &Block) -> Outcome<Result<Value, Flow>> {
        let output = std::mem::take(&mut self.output);
        let flow = self.framed(|machine| machine.block(block));
        let written = std::mem::replace(&mut self.output, output);
        match flow? {
            Flow::On => {
                let value = self.budget.text(&written)?;
                self.reach(value, steps).map(Ok)
            }
            flow => Ok(Err(flow)),
        }
    }

    fn iterate(&mut self, iteration: &For) -> Outcome<Flow> {
        let For { target, over, condition, body, otherwise } = iteration;
        let over = self.value(over)?;
        let mut list = self.items(&over)?;
        if let Some(condition) = condition {
            let mut kept = Vec::new();
            for item in &list.items {
                let holds = self.framed(|machine| {
                    machine.set(target, item.clone())?;
                    Ok(machine.value(condition)?.is_true())
                });
                if holds? {
                    self.budget.push_item(&mut kept, item.clone())?;
                }
            }
            list = list_of(kept)?;
        }
        if list.items.is_empty() {
            return self.framed(|machine| machine.block(otherwise));
        }
        for (index, item) in list.items.iter().enumerate() {
            let flow = self.framed(|machine| {
                machine.name("loop".into(), Value::Loop(Arc::new(Loop { list: list.clone(), index })))?;
                machine.set(target, item.clone())?;
                machine.block(body)
            });
            if flow? == Flow::Break {
                break;
            }
        }
        Ok(Flow::On)
    }

    /// Gives a value to a name in the innermost frame.
    fn name(&mut self, name: Arc<str>, value: Value) -> Outcome<()> {
        self.budget.name(&name)?;
        if let Some(names) = self.frames.last_mut() {
            names.insert(name, value);
        }
        Ok(())
    }

    fn set(&mut self, target: &Target, value: Value) -> Outcome<()> {
        match target {
            Target::Name(name) => self.name(name.clone(), value),
            Target::Attribute(name, attribute) => {
                let Value::Namespace(number) = self.lookup(name)? else {
                    fault!("'{name}' is no namespace, so its attributes cannot be set");
                };
                self.budget.name(attribute)?;
                self.namespaces[number].insert(attribute.clone(), value);
                Ok(())
            }
            Target::Items(targets) => {
                let list = self.items(&value)?;
                if list.items.len() != targets.len() {
                    fault!("{} values cannot be given to {} names", list.items.len(), targets.len());
                }
                for (target, item) in targets.iter().zip(&list.items) {
                    self.set(target, item.clone())?;
                }
                Ok(())
            }
        }
    }

    /// The value of a name.
    fn lookup(&mut self, name: &str) -> Outcome<Value> {
        let top = self.frames.len();
        let own = self.base.clamp(2, top)..top;
        for number in own.rev().chain([1, 0]) {
            self.budget.look(name.len())?;
            if let Some(value) = self.frames[number].get(name) {
                return Ok(value.clone());
            }
        }
        let function = FUNCTIONS.iter().find(|function| **function == name);
        Ok(function.map_or(Value::Undefined, |function| Value::Function(function)))
    }

    pub(super) fn value(&mut self, expression: &Expression) -> Outcome<Value> {
        self.budget.steps(1)?;
        match expression {
            Expression::Constant(value) => Ok(value.clone()),
            Expression::Name(name) => self.lookup(name),
            nested => self.deeper(|machine| machine.nested(nested)),
        }
    }

    fn nested(&mut self, expression: &Expression) -> Outcome<Value> {
        match expression {
            Expression::Constant(_) | Expression::Name(_) => self.value(expression),
            Expression::List(items) => Value::list(self.values(items)?),
            Expression::Tuple(items) => Value::formed(Form::Tuple, self.values(items)?),
            Expression::Map(entries) => {
                let mut map: Vec<(Value, Value)> = Vec::new();
                for (key, value) in entries {
                    let (key, value) = (self.value(key)?, self.value(value)?);
                    put(&mut map, key, value, &mut self.budget)?;
                }
                Value::map(map)
            }
            Expression::Not(value) => Ok(Value::Bool(!self.value(value)?.is_true())),
            Expression::Negative(value) => operators::negated(&self.value(value)?),
            Expression::Arithmetic(first, others) => {
                let mut value = self.value(first)?;
                for (operator, other) in others {
                    let other = self.value(other)?;
                    value = operators::apply(*operator, &value, &other, &mut self.budget)?;
                }
                Ok(value)
            }
            Expression::Compare(first, others) => {
                let mut left = self.value(first)?;
                for (comparison, right) in others {
                    let right = self.value(right)?;
                    if !self.compare(*comparison, &left, &right)? {
                        return Ok(Value::Bool(false));
                    }
                    left = right;
                }
                Ok(Value::Bool(true))
            }
            Expression::And(operands) => self.decide(operands, false),
            Expression::Or(operands) => self.decide(operands, true),
            Expression::Choice(parts) => {
                let [condition, value, otherwise] = &**parts;
                if self.value(condition)?.is_true() { self.value(value) } else { self.value(otherwise) }
            }
            Expression::Reach(value, steps) => {
                let (value, steps) = match (&**value, &steps[..]) {
                    (Expression::Name(name), [Access::Call(arguments), rest @ ..]) => {
                        (self.call_name(name, arguments)?, rest)
                    }
                    (value, steps) => (self.value(value)?, steps),
                };
                self.reach(value, steps)
            }
        }
    }

    fn values(&mut self, expressions: &[Expression]) -> Outcome<Vec<Value>> {
        let mut values = Vec::new();
        for expression in expressions {
            let value = self.value(expression)?;
            self.budget.push_item(&mut values, value)?;
        }
        Ok(values)
    }

    /// The first operand whose truth decides, or the last.
    fn decide(&mut self, operands: &[Expression], deciding: bool) -> Outcome<Value> {
        let mut value = Value::Undefined;
        for operand in operands {
            value = self.value(operand)?;
            if value.is_true() == deciding {
                break;
            }
        }
        Ok(value)
    }

    /// Whether a comparison holds.
    pub(super) fn compare(&mut self, comparison: Comparison, left: &Value, right: &Value) -> Outcome<bool> {
        Ok(match comparison {
            Comparison::Equal => left.equals(right, &mut self.budget)?,
            Comparison::NotEqual => !left.equals(right, &mut self.budget)?,
            Comparison::Less => left.order(right, &mut self.budget)?.is_some_and(|order| order.is_lt()),
            Comparison::LessEqual => left.order(right, &mut self.budget)?.is_some_and(|order| order.is_le()),
            Comparison::Greater => left.order(right, &mut self.budget)?.is_some_and(|order| order.is_gt()),
            Comparison::GreaterEqual => {
                left.order(right, &mut self.budget)?.is_some_and(|order| order.is_ge())
            }
            Comparison::In => self.contains(right, left)?,
            Comparison::NotIn => !self.contains(right, left)?,
        })
    }

    fn contains(&mut self, container: &Value, value: &Value) -> Outcome<bool> {
        match container {
            Value::Text(text) => {
                let part = value.as_text()?;
                self.budget.look(text.len() + part.len())?;
                Ok(text.contains(&**part))
            }
            Value::Map(_) => Ok(container.entry(value, &mut self.budget)?.is_some()),
            _ => {
                for item in &self.items(container)?.items {
                    if item.equals(value, &mut self.budget)? {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
        }
    }

    /// What is iterated over: items, keys, or letters.
    pub(super) fn items(&mut self, value: &Value) -> Outcome<Arc<List>> {
        let mut items = Vec::new();
        match value {
            Value::List(list) => return Ok(list.clone()),
            Value::Undefined => {}
            Value::Map(map) => {
                for (key, _) in &map.entries {
                    self.budget.push_item(&mut items, key.clone())?;
                }
            }
            Value::Text(text) => {
                for letter in text.chars() {
                    self.budget.push_item(&mut items, letter.into())?;
                }
            }
            other => fault!("{} has no items", other.kind()),
        }
        list_of(items)
    }

    fn passed(&mut self, arguments: &Arguments) -> Outcome<Passed> {
        let mut positional = self.values(&arguments.positional)?;
        if let Some(rest) = &arguments.rest {
            let rest = self.value(rest)?;
            for item in &self.items(&rest)?.items {
                self.budget.push_item(&mut positional, item.clone())?;
            }
        }
        let mut named = Vec::new();
        for (name, value) in &arguments.named {
            self.budget.make(size_of::<(Arc<str>, Value)>())?;
            named.push((name.clone(), self.value(value)?));
        }
        Ok(Passed { positional, named })
    }

    fn reach(&mut self, mut value: Value, steps: &[Access]) -> Outcome<Value> {
        for step in steps {
            self.budget.steps(1)?;
            value = match step {
                Access::Attribute(name) => self.attribute(&value, name)?,
                Access::Item(item) => {
                    let item = self.value(item)?;
                    self.item(&value, &item)?
                }
                Access::Slice(bounds) => {
                    let mut numbers = [None; 3];
                    for (number, bound) in numbers.iter_mut().zip(&**bounds) {
                        if let Some(bound) = bound {
                            let bound = self.value(bound)?;
                            *number = if matches!(bound, Value::None) { None } else { Some(bound.as_int()?) };
                        }
                    }
                    operators::slice(&value, numbers, &mut self.budget)?
                }
                Access::Call(arguments) => {
                    let passed = self.passed(arguments)?;
                    match value {
                        Value::Macro(number) => self.call_macro(number, passed)?,
                        other => fault!("{} cannot be called", other.kind()),
                    }
                }
                Access::Method(name, arguments) => {
                    let passed = self.passed(arguments)?;
                    let own = match value {
                        Value::Map(_) | Value::Namespace(_) => self.own(&value, name)?,
                        _ => None,
                    };
                    match own {
                        Some(Value::Macro(number)) => self.call_macro(number, passed)?,
                        _ => methods::call(self, &value, name, passed)
                            .map_err(|fault| about("method", name, fault))?,
                    }
                }
                Access::Filter(name, arguments) => {
                    let passed = self.passed(arguments)?;
                    self.filter(name, value, passed)?
                }
                Access::Test(name, arguments, holds) => {
                    let passed = self.passed(arguments)?;
                    Value::Bool(self.test(name, &value, passed)? == *holds)
                }
            };
        }
        Ok(value)
    }

    /// A filter by its name.
    pub(super) fn filter(&mut self, name: &str, value: Value, passed: Passed) -> Outcome<Value> {
        self.deeper(|machine| filters::apply(machine, name, value, passed))
            .map_err(|fault| about("filter", name, fault))
    }

    /// A test by its name.
    pub(super) fn test(&mut self, name: &str, value: &Value, passed: Passed) -> Outcome<bool> {
        filters::test(self, name, value, passed).map_err(|fault| about("test", name, fault))
    }

    /// What a value has under a name itself, if anything.
    fn own(&mut self, value: &Value, name: &str) -> Outcome<Option<Value>> {
        match value {
            Value::Map(_) => {
                let name = self.budget.text(name)?;
                value.entry(&name, &mut self.budget)
            }
            Value::Namespace(number) => {
                self.budget.look(name.len())?;
                Ok(self.namespaces[*number].get(name).cloned())
            }
            Value::Loop(state) => Ok(operators::loop_field(state, name)),
            _ => Ok(None),
        }
    }

    /// What follows a dot and a name. In Python the methods of maps hide what maps have under their names.
    fn attribute(&mut self, value: &Value, name: &str) -> Outcome<Value> {
        match methods::of_maps(value, name) {
            Some(method) => Ok(method),
            None => self.member(value, name),
        }
    }

    /// What a value has under a name: it itself rather than its methods.
    pub(super) fn member(&mut self, value: &Value, name: &str) -> Outcome<Value> {
        if let Value::Undefined = value {
            fault!("what has no value has no '{name}' either");
        }
        let own = self.own(value, name)?;
        Ok(own.or_else(|| methods::of_maps(value, name)).unwrap_or(Value::Undefined))
    }

    pub(super) fn item(&mut self, value: &Value, key: &Value) -> Outcome<Value> {
        match (value, key) {
            (Value::List(list), Value::Int(_) | Value::Bool(_)) if list.form != Form::Generator => {
                let place = operators::place(key.as_int()?, list.items.len());
                Ok(place.map_or(Value::Undefined, |place| list.items[place].clone()))
            }
            (Value::Text(text), Value::Int(_) | Value::Bool(_)) => {
                self.budget.look(text.len())?;
                let place = operators::place(key.as_int()?, text.chars().count());
                let letter = place.and_then(|at| text.chars().nth(at));
                Ok(letter.map_or(Value::Undefined, Value::from))
            }
            (Value::Map(_), key) => {
                let method = match key {
                    Value::Text(name) => methods::of_maps(value, name),
                    _ => None,
                };
                Ok(value.entry(key, &mut self.budget)?.or(method).unwrap_or(Value::Undefined))
            }
            (Value::Undefined, _) => fault!("what has no value has no items either"),
            (value, Value::Text(name)) => self.member(value, name),
            _ => Ok(Value::Undefined),
        }
    }

    /// Calls what a name means, which may be a function of every template.
    fn call_name(&mut self, name: &Arc<str>, arguments: &Arguments) -> Outcome<Value> {
        let passed = self.passed(arguments)?;
        match self.lookup(name)? {
            Value::Macro(number) => self.call_macro(number, passed),
            Value::Function("raise_exception") => self.raised(passed),
            Value::Function(name) => {
                self.function(name, passed).map_err(|fault| about("function", name, fault))
            }
            Value::Undefined => fault!("there is no function '{name}'"),
            other => fault!("'{name}' is {}, which cannot be called", other.kind()),
        }
    }

    /// The fault that a template raises itself.
    fn raised(&mut self, passed: Passed) -> Outcome<Value> {
        let [message] = passed.bind(["message"])?;
        let mut text = String::new();
        message.unwrap_or(Value::Undefined).show(&mut text, &mut self.budget)?;
        Err(Fault::new(&text))
    }

    fn function(&mut self, name: &str, passed: Passed) -> Outcome<Value> {
        match name {
            "namespace" => {
                self.budget.make(NAMESPACE)?;
                let entries = self.entries(passed)?;
                let mut names = Names::new();
                for (name, value) in entries {
                    let name = name.as_text()?;
                    self.budget.name(name)?;
                    names.insert(name.clone(), value);
                }
                self.namespaces.push(names);
                Ok(Value::Namespace(self.namespaces.len() - 1))
            }
            "dict" => Value::map(self.entries(passed)?),
            "range" => {
                let [first, second, step] = passed.bind(["start", "stop", "step"])?;
                let number = |value: Option<Value>| value.as_ref().map(Value::as_int).transpose();
                let (first, second) = (number(first)?.unwrap_or(0), number(second)?);
                let (start, stop) = second.map_or((0, first), |second| (first, second));
                let step = number(step)?.unwrap_or(1);
                let count = match step {
                    0 => fault!("its step is 0"),
                    1.. => stop.saturating_sub(start),
                    _ => start.saturating_sub(stop),
                };
                let count = count.max(0).unsigned_abs().div_ceil(step.unsigned_abs());
                if count > MOST_RANGE {
                    fault!("it has {count} numbers, more than {MOST_RANGE}");
                }
                self.budget.list((0..count as i64).map(|index| Value::Int(start + index * step)))
            }
            "strftime_now" => {
                let [format] = passed.bind(["format"])?;
                let format = format.unwrap_or(Value::Undefined);
                let format = format.as_text()?;
                // Two letters become at most a date with its time.
                self.budget.make(format.len().saturating_mul(16))?;
                self.budget.text(&dates::formatted(format, self.now))
            }
            _ => fault!("there is no such function"),
        }
    }

    /// A map or pairs, and named values, as the entries of one map.
    fn entries(&mut self, passed: Passed) -> Outcome<Vec<(Value, Value)>> {
        if passed.positional.len() > 1 {
            fault!("it takes at most 1 argument without a name, not {}", passed.positional.len());
        }
        let mut entries = Vec::new();
        for value in &passed.positional {
            if let Value::Map(map) = value {
                for (key, value) in &map.entries {
                    put(&mut entries, key.clone(), value.clone(), &mut self.budget)?;
                }
            } else {
                for pair in &self.items(value)?.items {
                    let pair = self.items(pair)?;
                    let [key, value] = &pair.items[..] else {
                        fault!("a pair was expected, not {} values", pair.items.len());
                    };
                    put(&mut entries, key.clone(), value.clone(), &mut self.budget)?;
                }
            }
        }
        for (name, value) in passed.named {
            put(&mut entries, Value::Text(name), value, &mut self.budget)?;
        }
        Ok(entries)
    }

    fn call_macro(&mut self, number: usize, passed: Passed) -> Outcome<Value> {
        let template = self.template;
        let called = &template.macros[number];
        let base = std::mem::replace(&mut self.base, self.frames.len());
        let output = std::mem::take(&mut self.output);
        let result = self.framed(|machine| {
            machine.pass(&called.parameters, passed)?;
            machine.block(&called.body)
        });
        let written = std::mem::replace(&mut self.output, output);
        self.base = base;
        result?;
        self.budget.text(&written)
    }

    /// Gives their values to the parameters of a macro.
    fn pass(&mut self, parameters: &[(Arc<str>, Option<Expression>)], passed: Passed) -> Outcome<()> {
        if passed.positional.len() > parameters.len() {
            fault!("it takes at most {} arguments, not {}", parameters.len(), passed.positional.len());
        }
        self.budget.make(parameters.len().saturating_mul(size_of::<Option<Value>>()))?;
        let mut values: Vec<_> = passed.positional.into_iter().map(Some).collect();
        values.resize(parameters.len(), None);
        for (name, value) in passed.named {
            self.budget.compare(&name, parameters.len())?;
            match parameters.iter().position(|(known, _)| *known == name) {
                Some(place) if values[place].is_none() => values[place] = Some(value),
                Some(_) => fault!("its argument '{name}' is passed twice"),
                None => fault!("it has no argument '{name}'"),
            }
        }
        for ((name, default), value) in parameters.iter().zip(values) {
            let value = match (value, default) {
                (Some(value), _) => value,
                (None, Some(default)) => self.value(default)?,
                (None, None) => Value::Undefined,
            };
            self.name(name.clone(), value)?;
        }
        Ok(())
    }
}

/// Puts a value into what becomes a map.
fn put(map: &mut Vec<(Value, Value)>, key: Value, value: Value, budget: &mut Budget) -> Outcome<()> {
    budget.make(size_of::<(Value, Value)>())?;
    for (known, old) in map.iter_mut() {
        if known.equals(&key, budget)? {
            *old = value;
            return Ok(());
        }
    }
    map.push((key, value));
    Ok(())
}

/// A list of items.
fn list_of(items: Vec<Value>) -> Outcome<Arc<List>> {
    match Value::list(items)? {
        Value::List(list) => Ok(list),
        other => fault!("a list was made, not {}", other.kind()),
    }
}

/// A fault of something, which is named once however often it is nested in itself.
fn about(what: &str, name: &str, fault: Fault) -> Fault {
    let start = format!("{what} '{}': ", shortened(name, MOST_SHOWN));
    if fault.message.starts_with(&start) {
        return fault;
    }
    Fault { line: fault.line, ..Fault::new(&format!("{start}{}", fault.message)) }
}
