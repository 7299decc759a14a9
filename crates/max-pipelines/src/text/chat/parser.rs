//! From tokens to statements and expressions.
//!
//! Operators of one rank and steps from a value to another are lists, and what remains nested is nested at most
//! [`MOST_DEPTH`] deep. So everything that follows the structure of a template needs little of the stack.

use std::collections::HashSet;
use std::sync::Arc;

use super::budget::{Outcome, fault};
use super::syntax::{
    Access, Arguments, Block, Comparison, Expression, For, Macro, Operator, Statement, Target, Template,
};
use super::tokens::{self, Token};
use super::value::Value;

/// How deep expressions and statements are nested.
const MOST_DEPTH: usize = 64;

/// Reads a template.
pub(super) fn parse(source: &str) -> Outcome<Template> {
    let tokens = tokens::read(source)?;
    let mut parser = Parser { tokens, at: 0, depth: 0, scopes: 0, loops: 0, macros: Vec::new() };
    match parser.block(&[]) {
        Ok((body, _)) => Ok(Template { body, macros: parser.macros }),
        Err(fault) => Err(fault.at(parser.line())),
    }
}

/// Operators between two values, in the order of how strongly they bind.
const OPERATORS: [&[(&str, Operator)]; 4] = [
    &[("+", Operator::Add), ("-", Operator::Subtract)],
    &[("~", Operator::Concatenate)],
    &[
        ("*", Operator::Multiply),
        ("/", Operator::Divide),
        ("//", Operator::FloorDivide),
        ("%", Operator::Remainder),
    ],
    &[("**", Operator::Power)],
];

struct Parser {
    tokens: Vec<(Token, usize)>,
    at: usize,
    depth: usize,
    /// How many of the blocks around what is read have names of their own.
    scopes: usize,
    /// How many of them are loops.
    loops: usize,
    macros: Vec<Macro>,
}

impl Parser {
    /// The next token; the last one is the end, and stays.
    fn peek(&self) -> &Token {
        &self.tokens[self.at.min(self.tokens.len() - 1)].0
    }

    fn line(&self) -> usize {
        self.tokens[self.at.min(self.tokens.len() - 1)].1
    }

    fn next(&mut self) -> Token {
        let token = self.peek().clone();
        self.at += 1;
        token
    }

    /// Goes beyond a token if it is the next one.
    fn takes(&mut self, token: &Token) -> bool {
        let found = self.peek() == token;
        self.at += usize::from(found);
        found
    }

    fn takes_sign(&mut self, sign: &'static str) -> bool {
        self.takes(&Token::Sign(sign))
    }

    fn is_name(&self, name: &str) -> bool {
        matches!(self.peek(), Token::Name(found) if &**found == name)
    }

    fn takes_name(&mut self, name: &str) -> bool {
        let found = self.is_name(name);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, token: Token) -> Outcome<()> {
        if self.takes(&token) {
            return Ok(());
        }
        fault!("{} was expected, not {}", described(&token), described(self.peek()))
    }

    fn expect_name(&mut self, name: &str) -> Outcome<()> {
        if self.takes_name(name) {
            return Ok(());
        }
        fault!("'{name}' was expected, not {}", described(self.peek()))
    }

    fn name(&mut self) -> Outcome<Arc<str>> {
        match self.next() {
            Token::Name(name) => Ok(name),
            other => fault!("a name was expected, not {}", described(&other)),
        }
    }

    /// Reads something that is nested in something.
    fn deeper<T>(&mut self, read: impl FnOnce(&mut Parser) -> Outcome<T>) -> Outcome<T> {
        if self.depth == MOST_DEPTH {
            fault!("it is nested deeper than {MOST_DEPTH}");
        }
        self.depth += 1;
        let result = read(self);
        self.depth -= 1;
        result
    }

    /// Reads a block that has names of its own.
    fn scoped<T>(&mut self, read: impl FnOnce(&mut Parser) -> Outcome<T>) -> Outcome<T> {
        self.scopes += 1;
        let result = read(self);
        self.scopes -= 1;
        result
    }

    /// Statements up to a tag with one of some names, which is returned; without any, up to the end.
    fn block(&mut self, ends: &[&'static str]) -> Outcome<(Block, &'static str)> {
        let mut block = Block::new();
        loop {
            let line = self.line();
            match self.next() {
                Token::End => match ends.last() {
                    None => return Ok((block, "")),
                    Some(end) => fault!("'{{% {end} %}}' is missing"),
                },
                Token::Data(text) => block.push((line, Statement::Data(text))),
                Token::Value => {
                    let value = self.expressions()?;
                    self.expect(Token::Close)?;
                    block.push((line, Statement::Show(value)));
                }
                _ => {
                    let name = self.name()?;
                    if let Some(end) = ends.iter().find(|end| **end == &*name) {
                        return Ok((block, *end));
                    }
                    let statement = self.deeper(|parser| parser.statement(&name));
                    block.push((line, statement?));
                }
            }
        }
    }

    /// Statements up to a tag that has only a name.
    fn body(&mut self, end: &'static str) -> Outcome<Block> {
        self.expect(Token::Close)?;
        let (block, _) = self.block(&[end])?;
        self.expect(Token::Close)?;
        Ok(block)
    }

    /// A statement after its name.
    fn statement(&mut self, name: &str) -> Outcome<Statement> {
        let statement = match name {
            "if" => return self.conditions(),
            "for" => return self.iteration(),
            "set" => return self.assignment(),
            "macro" => return self.definition(),
            // The marks of what an assistant says, which matter for training only.
            "generation" => {
                let body = self.scoped(|parser| parser.body("endgeneration"))?;
                return Ok(Statement::With(Vec::new(), body));
            }
            "with" => {
                let mut values = Vec::new();
                while *self.peek() != Token::Close {
                    let target = self.target()?;
                    self.expect(Token::Sign("="))?;
                    values.push((target, self.expression()?));
                    if !self.takes_sign(",") {
                        break;
                    }
                }
                return Ok(Statement::With(values, self.scoped(|parser| parser.body("endwith"))?));
            }
            "filter" => {
                let mut filters = vec![self.filter()?];
                while self.takes_sign("|") {
                    filters.push(self.filter()?);
                }
                return Ok(Statement::Filter(filters, self.scoped(|parser| parser.body("endfilter"))?));
            }
            "break" | "continue" if self.loops == 0 => fault!("'{name}' is outside of a loop"),
            "break" => Statement::Break,
            "continue" => Statement::Continue,
            other => fault!("the tag '{other}' has no meaning here"),
        };
        self.expect(Token::Close)?;
        Ok(statement)
    }

    fn conditions(&mut self) -> Outcome<Statement> {
        let mut branches = Vec::new();
        loop {
            let condition = self.expressions()?;
            self.expect(Token::Close)?;
            let (block, end) = self.block(&["elif", "else", "endif"])?;
            branches.push((condition, block));
            match end {
                "elif" => {}
                "else" => return Ok(Statement::If(branches, self.body("endif")?)),
                _ => {
                    self.expect(Token::Close)?;
                    return Ok(Statement::If(branches, Block::new()));
                }
            }
        }
    }

    fn iteration(&mut self) -> Outcome<Statement> {
        let target = self.targets()?;
        self.expect_name("in")?;
        let over = self.sequence(|parser| parser.deeper(Parser::or))?;
        let condition = if self.takes_name("if") { Some(self.expression()?) } else { None };
        self.expect(Token::Close)?;
        self.loops += 1;
        let (body, end) = self.scoped(|parser| parser.block(&["else", "endfor"]))?;
        self.loops -= 1;
        let otherwise = if end == "else" {
            self.scoped(|parser| parser.body("endfor"))?
        } else {
            self.expect(Token::Close)?;
            Block::new()
        };
        Ok(Statement::For(Box::new(For { target, over, condition, body, otherwise })))
    }

    fn assignment(&mut self) -> Outcome<Statement> {
        let target = self.targets()?;
        if self.takes_sign("=") {
            let value = self.expressions()?;
            self.expect(Token::Close)?;
            return Ok(Statement::Set(target, value));
        }
        let mut filters = Vec::new();
        while self.takes_sign("|") {
            filters.push(self.filter()?);
        }
        Ok(Statement::Capture(target, filters, self.scoped(|parser| parser.body("endset"))?))
    }

    fn definition(&mut self) -> Outcome<Statement> {
        let name = self.name()?;
        // A macro knows the names of the template, but not those of blocks around it.
        if self.scopes > 0 {
            fault!(
                "the macro '{name}' is defined in a loop, a macro or another block with names of its own: \
                 macros are defined outside of these, or in an 'if'"
            );
        }
        let (mut parameters, mut known) = (Vec::new(), HashSet::new());
        self.expect(Token::Sign("("))?;
        while !self.takes_sign(")") {
            let parameter = self.name()?;
            if !known.insert(parameter.clone()) {
                fault!("the macro '{name}' has two parameters '{parameter}'");
            }
            let default = if self.takes_sign("=") { Some(self.expression()?) } else { None };
            parameters.push((parameter, default));
            if !self.takes_sign(",") {
                self.expect(Token::Sign(")"))?;
                break;
            }
        }
        let body = self.scoped(|parser| parser.body("endmacro"))?;
        self.macros.push(Macro { name, parameters, body });
        Ok(Statement::Macro(self.macros.len() - 1))
    }

    /// One target, or several with commas.
    fn targets(&mut self) -> Outcome<Target> {
        let first = self.target()?;
        if *self.peek() != Token::Sign(",") {
            return Ok(first);
        }
        let mut all = vec![first];
        while self.takes_sign(",") {
            all.push(self.target()?);
        }
        Ok(Target::Items(all))
    }

    fn target(&mut self) -> Outcome<Target> {
        if self.takes_sign("(") {
            let inner = self.deeper(Parser::targets)?;
            self.expect(Token::Sign(")"))?;
            return Ok(inner);
        }
        let name = self.name()?;
        Ok(if self.takes_sign(".") { Target::Attribute(name, self.name()?) } else { Target::Name(name) })
    }

    /// One expression, or a tuple of several with commas.
    fn expressions(&mut self) -> Outcome<Expression> {
        self.sequence(Parser::expression)
    }

    fn sequence(&mut self, mut read: impl FnMut(&mut Parser) -> Outcome<Expression>) -> Outcome<Expression> {
        let first = read(self)?;
        if *self.peek() != Token::Sign(",") {
            return Ok(first);
        }
        let mut items = vec![first];
        while self.takes_sign(",") && !matches!(self.peek(), Token::Close | Token::Sign(")")) {
            items.push(read(self)?);
        }
        Ok(Expression::Tuple(fitted(items)))
    }

    fn expression(&mut self) -> Outcome<Expression> {
        self.deeper(|parser| {
            let value = parser.or()?;
            if !parser.takes_name("if") {
                return Ok(value);
            }
            let condition = parser.or()?;
            let otherwise = if parser.takes_name("else") {
                parser.expression()?
            } else {
                Expression::Constant(Value::Undefined)
            };
            Ok(Expression::Choice(Box::new([condition, value, otherwise])))
        })
    }

    fn or(&mut self) -> Outcome<Expression> {
        self.operands("or", Parser::and, Expression::Or)
    }

    fn and(&mut self) -> Outcome<Expression> {
        self.operands("and", Parser::not, Expression::And)
    }

    /// Operands with a word between them.
    fn operands(
        &mut self,
        word: &str,
        operand: fn(&mut Parser) -> Outcome<Expression>,
        make: fn(Vec<Expression>) -> Expression,
    ) -> Outcome<Expression> {
        let first = operand(self)?;
        if !self.is_name(word) {
            return Ok(first);
        }
        let mut operands = vec![first];
        while self.takes_name(word) {
            operands.push(operand(self)?);
        }
        Ok(make(fitted(operands)))
    }

    fn not(&mut self) -> Outcome<Expression> {
        if self.takes_name("not") {
            return Ok(Expression::Not(Box::new(self.deeper(Parser::not)?)));
        }
        self.comparison()
    }

    fn comparison(&mut self) -> Outcome<Expression> {
        let first = self.arithmetic(0)?;
        let mut others = Vec::new();
        loop {
            let comparison = match self.peek() {
                Token::Sign("==") => Comparison::Equal,
                Token::Sign("!=") => Comparison::NotEqual,
                Token::Sign("<") => Comparison::Less,
                Token::Sign("<=") => Comparison::LessEqual,
                Token::Sign(">") => Comparison::Greater,
                Token::Sign(">=") => Comparison::GreaterEqual,
                Token::Name(name) if &**name == "in" => Comparison::In,
                Token::Name(name) if &**name == "not" => Comparison::NotIn,
                _ => break,
            };
            self.at += 1;
            if matches!(comparison, Comparison::NotIn) {
                self.expect_name("in")?;
            }
            others.push((comparison, self.arithmetic(0)?));
        }
        Ok(if others.is_empty() { first } else { Expression::Compare(Box::new(first), fitted(others)) })
    }

    /// Values with operators between them that bind as strongly as those of a level, or more.
    fn arithmetic(&mut self, level: usize) -> Outcome<Expression> {
        let Some(signs) = OPERATORS.get(level) else { return self.unary(true) };
        let first = self.arithmetic(level + 1)?;
        let mut others = Vec::new();
        while let Some((_, operator)) = signs.iter().find(|(sign, _)| *self.peek() == Token::Sign(sign)) {
            self.at += 1;
            others.push((*operator, self.arithmetic(level + 1)?));
        }
        Ok(if others.is_empty() { first } else { Expression::Arithmetic(Box::new(first), fitted(others)) })
    }

    /// A value with its sign, what is reached from it, and filters and tests if wanted.
    fn unary(&mut self, has_filters: bool) -> Outcome<Expression> {
        let value = if self.takes_sign("-") {
            Expression::Negative(Box::new(self.deeper(|parser| parser.unary(false))?))
        } else if self.takes_sign("+") {
            self.deeper(|parser| parser.unary(false))?
        } else {
            self.primary()?
        };
        let mut steps = Vec::new();
        while let Some(step) = self.step()? {
            steps.push(step);
        }
        while let Some(step) = if has_filters { self.filter_or_test()? } else { None } {
            steps.push(step);
        }
        Ok(if steps.is_empty() { value } else { Expression::Reach(Box::new(value), fitted(steps)) })
    }

    /// A filter, a test, or a call of what they gave, if there is one.
    fn filter_or_test(&mut self) -> Outcome<Option<Access>> {
        if self.takes_sign("|") {
            return self.filter().map(Some);
        }
        if self.takes_name("is") {
            return self.test().map(Some);
        }
        Ok(if *self.peek() == Token::Sign("(") { Some(Access::Call(self.arguments()?)) } else { None })
    }

    fn primary(&mut self) -> Outcome<Expression> {
        Ok(match self.next() {
            Token::Name(name) => match &*name {
                "true" | "True" => Expression::Constant(Value::Bool(true)),
                "false" | "False" => Expression::Constant(Value::Bool(false)),
                "none" | "None" => Expression::Constant(Value::None),
                _ => Expression::Name(name),
            },
            Token::Int(value) => Expression::Constant(Value::Int(value)),
            Token::Float(value) => Expression::Constant(Value::Float(value)),
            Token::Text(first) => {
                // Texts next to each other are one.
                let mut text = first.to_string();
                while let Token::Text(more) = self.peek() {
                    text.push_str(more);
                    self.at += 1;
                }
                Expression::Constant(text.as_str().into())
            }
            Token::Sign("(") => {
                if self.takes_sign(")") {
                    return Ok(Expression::Tuple(Vec::new()));
                }
                let inner = self.expressions()?;
                self.expect(Token::Sign(")"))?;
                inner
            }
            Token::Sign("[") => {
                let mut items = Vec::new();
                while !self.takes_sign("]") {
                    items.push(self.expression()?);
                    if !self.takes_sign(",") {
                        self.expect(Token::Sign("]"))?;
                        break;
                    }
                }
                Expression::List(fitted(items))
            }
            Token::Sign("{") => {
                let mut entries = Vec::new();
                while !self.takes_sign("}") {
                    let key = self.expression()?;
                    self.expect(Token::Sign(":"))?;
                    entries.push((key, self.expression()?));
                    if !self.takes_sign(",") {
                        self.expect(Token::Sign("}"))?;
                        break;
                    }
                }
                Expression::Map(fitted(entries))
            }
            other => fault!("a value was expected, not {}", described(&other)),
        })
    }

    /// An attribute, an item, a slice or a call, if there is one.
    fn step(&mut self) -> Outcome<Option<Access>> {
        if self.takes_sign(".") {
            return Ok(Some(match self.next() {
                Token::Int(index) => Access::Item(Expression::Constant(Value::Int(index))),
                Token::Name(name) if *self.peek() == Token::Sign("(") => {
                    Access::Method(name, self.arguments()?)
                }
                Token::Name(name) => Access::Attribute(name),
                other => fault!("a name was expected, not {}", described(&other)),
            }));
        }
        if self.takes_sign("[") {
            return self.item().map(Some);
        }
        Ok(if *self.peek() == Token::Sign("(") { Some(Access::Call(self.arguments()?)) } else { None })
    }

    /// What is in the square brackets after a value.
    fn item(&mut self) -> Outcome<Access> {
        let mut bounds = [None, None, None];
        let mut colons = 0;
        loop {
            if self.takes_sign("]") {
                break;
            }
            if self.takes_sign(":") {
                colons += 1;
                if colons > 2 {
                    fault!("a slice has at most three parts");
                }
            } else if bounds[colons].is_none() {
                bounds[colons] = Some(self.expressions()?);
            } else {
                fault!("']' was expected, not {}", described(self.peek()));
            }
        }
        match bounds {
            [Some(item), ..] if colons == 0 => Ok(Access::Item(item)),
            _ if colons == 0 => fault!("an index was expected, not ']'"),
            bounds => Ok(Access::Slice(Box::new(bounds))),
        }
    }

    fn filter(&mut self) -> Outcome<Access> {
        let name = self.name()?;
        let arguments =
            if *self.peek() == Token::Sign("(") { self.arguments()? } else { Arguments::default() };
        Ok(Access::Filter(name, arguments))
    }

    fn test(&mut self) -> Outcome<Access> {
        let holds = !self.takes_name("not");
        let name = self.name()?;
        let is_word = |word: &str| ["and", "or", "else", "if", "is", "in", "not"].contains(&word);
        let arguments = match self.peek() {
            Token::Sign("(") => self.arguments()?,
            Token::Name(word) if is_word(word) => Arguments::default(),
            // One argument needs no parentheses.
            Token::Name(_) | Token::Text(_) | Token::Int(_) | Token::Float(_) | Token::Sign("[" | "{") => {
                let value = self.primary()?;
                let mut steps = Vec::new();
                while let Some(step) = self.step()? {
                    steps.push(step);
                }
                Arguments {
                    positional: vec![Expression::Reach(Box::new(value), fitted(steps))],
                    ..Arguments::default()
                }
            }
            _ => Arguments::default(),
        };
        Ok(Access::Test(name, arguments, holds))
    }

    fn arguments(&mut self) -> Outcome<Arguments> {
        self.expect(Token::Sign("("))?;
        let (mut arguments, mut known) = (Arguments::default(), HashSet::new());
        while !self.takes_sign(")") {
            let named = match (self.peek(), self.tokens.get(self.at + 1)) {
                (Token::Name(name), Some((Token::Sign("="), _))) => Some(name.clone()),
                _ => None,
            };
            if let Some(name) = named {
                self.at += 2;
                if !known.insert(name.clone()) {
                    fault!("there are two arguments '{name}'");
                }
                arguments.named.push((name, self.expression()?));
            } else if self.takes_sign("*") {
                if arguments.rest.replace(Box::new(self.expression()?)).is_some() {
                    fault!("there are two arguments with '*'");
                }
            } else if arguments.named.is_empty() && arguments.rest.is_none() {
                arguments.positional.push(self.expression()?);
            } else {
                fault!("an argument without a name follows one with a name, or with '*'");
            }
            if !self.takes_sign(",") {
                self.expect(Token::Sign(")"))?;
                break;
            }
        }
        arguments.positional = fitted(arguments.positional);
        arguments.named = fitted(arguments.named);
        Ok(arguments)
    }
}

/// A list without room for more. Most lists in a template are short, and there are many.
fn fitted<T>(mut items: Vec<T>) -> Vec<T> {
    items.shrink_to_fit();
    items
}

/// A token, for messages.
fn described(token: &Token) -> String {
    match token {
        Token::Data(_) => "text".into(),
        Token::Value => "'{{'".into(),
        Token::Statement => "'{%'".into(),
        Token::Close => "the end of the tag".into(),
        Token::Name(name) => format!("'{name}'"),
        Token::Text(_) => "a text".into(),
        Token::Int(_) | Token::Float(_) => "a number".into(),
        Token::Sign(sign) => format!("'{sign}'"),
        Token::End => "the end of the template".into(),
    }
}
