//! The scalar table as CUDA C++: a lane that records the operations on it as source text.
//!
//! The bodies of the table run on [`Text`], and the result is the expression that computes the op. Arithmetic calls
//! functions in the namespace `lane`, which the code that compiles the text defines once for all types; comparisons and
//! bools are those of the language.

use std::cell::RefCell;
use std::fmt::Write;

use super::{FloatLane, Lane, MaskLane};
use crate::random::UnitLane;
use crate::{DType, Distribution, ScalarOp};

/// An expression, by its index among those written on this thread.
#[derive(Clone, Copy, Debug)]
pub struct Text(usize);

/// The expressions written so far for the current op.
struct Trace {
    /// The type of the lanes.
    of: &'static str,
    texts: Vec<String>,
}

thread_local! {
    static TRACE: RefCell<Trace> = const { RefCell::new(Trace { of: "float", texts: Vec::new() }) };
}

/// The C++ type that holds elements of a dtype: narrow floats are held as `float`.
pub const fn register_type(dtype: DType) -> &'static str {
    match dtype {
        DType::Bool => "bool",
        DType::Int8 => "signed char",
        DType::Int16 => "short",
        DType::Int32 => "int",
        DType::Int64 => "long long",
        DType::UInt8 => "unsigned char",
        DType::UInt16 => "unsigned short",
        DType::UInt32 => "unsigned int",
        DType::UInt64 => "unsigned long long",
        DType::Float64 => "double",
        _ => "float",
    }
}

/// The expression of an op on operands of a dtype.
pub fn apply(op: ScalarOp, dtype: DType, operands: [&str; 2]) -> String {
    trace(dtype, operands, |operands| match op {
        ScalarOp::NumericOp(op) => op.apply(operands),
        ScalarOp::RealOp(op) => op.apply(operands),
        ScalarOp::CompareOp(op) => op.apply(operands),
        ScalarOp::LogicalOp(op) => op.apply(operands),
    })
}

/// The expression of a random number, given two uniform ones from zero to one.
pub fn draw(distribution: Distribution, dtype: DType, units: [&str; 2]) -> String {
    trace(dtype, units, |_| distribution.draw::<Text>(0, 0))
}

/// Runs a function on expressions; the first two are the operands.
fn trace(dtype: DType, operands: [&str; 2], run: impl FnOnce([Text; 2]) -> Text) -> String {
    TRACE.with_borrow_mut(|trace| {
        trace.of = register_type(dtype);
        trace.texts.clear();
        trace.texts.extend(operands.map(str::to_string));
    });
    let Text(result) = run([Text(0), Text(1)]);
    TRACE.with_borrow_mut(|trace| trace.texts.swap_remove(result))
}

/// Writes an expression built from others.
fn write(write: impl FnOnce(&mut String, &dyn Fn(Text) -> String, &'static str)) -> Text {
    TRACE.with_borrow_mut(|trace| {
        let mut text = String::new();
        write(&mut text, &|Text(at)| trace.texts[at].clone(), trace.of);
        trace.texts.push(text);
        Text(trace.texts.len() - 1)
    })
}

fn call(function: &str, operands: &[Text]) -> Text {
    write(|text, of, _| {
        let operands: Vec<String> = operands.iter().map(|&operand| of(operand)).collect();
        _ = write!(text, "lane::{function}({})", operands.join(", "));
    })
}

fn infix(a: Text, operator: &str, b: Text) -> Text {
    write(|text, of, _| _ = write!(text, "({} {operator} {})", of(a), of(b)))
}

impl MaskLane for Text {
    fn and(self, other: Text) -> Text {
        infix(self, "&&", other)
    }
    fn or(self, other: Text) -> Text {
        infix(self, "||", other)
    }
    fn xor(self, other: Text) -> Text {
        infix(self, "!=", other)
    }
    fn not(self) -> Text {
        write(|text, of, _| _ = write!(text, "!{}", of(self)))
    }
}

/// Lanes whose functions are calls, by name and number of operands.
macro_rules! calls {
    ($($name:ident($($other:ident)?);)*) => {$(
        fn $name(self $(, $other: Text)?) -> Text {
            call(stringify!($name), &[self $(, $other)?])
        }
    )*};
}

impl Lane for Text {
    type Mask = Text;

    fn splat(value: f64) -> Text {
        write(|text, _, of| _ = write!(text, "({of}){value:?}"))
    }
    fn eq(self, other: Text) -> Text {
        infix(self, "==", other)
    }
    fn lt(self, other: Text) -> Text {
        infix(self, "<", other)
    }
    fn le(self, other: Text) -> Text {
        infix(self, "<=", other)
    }
    calls! {
        add(other); sub(other); mul(other); floor_div(other); modulo(other); pow(other); max(other); min(other);
        neg(); abs(); floor(); ceil(); round(); trunc(); is_inf();
    }
}

impl FloatLane for Text {
    calls! {
        div(other);
        sqrt(); exp(); log(); log1p(); sin(); cos(); acos(); tanh(); atanh(); erf();
    }
}

impl UnitLane for Text {
    /// The two operands; the random words are ignored.
    fn units(_: [u32; 4]) -> [Text; 2] {
        [Text(0), Text(1)]
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;
    use crate::scalar::{CompareOp, LogicalOp, NumericOp, RealOp};

    fn check(op: impl Into<ScalarOp>, dtype: DType, expected: Expect) {
        expected.assert_eq(&apply(op.into(), dtype, ["a", "b"]));
    }

    #[test]
    fn ops_become_expressions() {
        check(NumericOp::Add, DType::Int8, expect!["lane::add(a, b)"]);
        check(NumericOp::Relu, DType::BFloat16, expect!["lane::max(a, (float)0.0)"]);
        check(NumericOp::Relu, DType::UInt16, expect!["lane::max(a, (unsigned short)0.0)"]);
        check(CompareOp::GreaterEqual, DType::Int32, expect!["(b <= a)"]);
        check(CompareOp::IsNan, DType::Float64, expect!["!(a == a)"]);
        check(LogicalOp::LogicalXor, DType::Bool, expect!["(a != b)"]);
        check(RealOp::Rsqrt, DType::Float64, expect!["lane::div((double)1.0, lane::sqrt(a))"]);
        check(
            RealOp::GeluTanh,
            DType::Float32,
            expect![
                "lane::mul(lane::mul(a, (float)0.5), lane::add((float)1.0, lane::tanh(lane::mul(lane::add(a, \
                 lane::mul(lane::mul(lane::mul(a, a), a), (float)0.044715)), (float)0.7978845608028654))))"
            ],
        );
    }

    #[test]
    fn distributions_become_expressions() {
        assert_eq!(draw(Distribution::Uniform, DType::Float32, ["u", "v"]), "u");
        expect![
            "lane::mul(lane::sqrt(lane::mul((double)-2.0, lane::log(lane::sub((double)1.0, u)))), \
             lane::cos(lane::mul((double)6.283185307179586, v)))"
        ]
        .assert_eq(&draw(Distribution::Normal, DType::Float64, ["u", "v"]));
    }

    /// Every op has an expression for every dtype that it applies to.
    #[test]
    fn every_op_has_an_expression() {
        for op in ScalarOp::all() {
            for &dtype in DType::ALL {
                let text = apply(op, dtype, ["first", "second"]);
                assert!(text.contains("first"), "{}: {text}", op.name());
            }
        }
    }
}
