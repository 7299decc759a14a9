//! Epilogues as CUDA C++: what happens to an element of a product, if that depends on nothing but the element and what is
//! loaded for it.

use std::fmt::Write;

use max_core::kernel::{Access, Instr, Loop};
use max_core::scalar::source;
use max_core::{DType, Result};

use super::super::loops::{cast_text, literal_text, memory_type};
use super::super::{Address, Param};

/// The body of a function of `product`, `number`, `row` and `column`, and the parameters that it uses.
pub(in super::super) struct Ending {
    pub(in super::super) body: String,
    /// Declarations and values of parameters.
    pub(in super::super) params: Vec<(String, Param)>,
}

/// Writes an epilogue over `[rows, columns]` or `[batch, rows, columns]`, with names that end in a number; `None` if it does
/// more.
pub(in super::super) fn write(epilogue: &Loop<i64>, number: usize) -> Result<Option<Ending>> {
    let dtypes = epilogue.dtypes()?;
    let known = |instr: &Instr<i64>| {
        !matches!(instr, Instr::Reduce(..) | Instr::Index(_) | Instr::Random(..) | Instr::Size(..))
    };
    if !matches!(epilogue.shape.len(), 2 | 3) || !epilogue.code.iter().all(known) {
        return Ok(None);
    }
    let mut params = Vec::new();
    for (at, access) in epilogue.accesses.iter().enumerate() {
        let of = memory_type(access.dtype);
        params.push((format!("{of} *e{number}_{at}"), Param::Address(Address::of(access))));
        for (axis, stride) in strides(access).into_iter().enumerate() {
            params.push((format!("long long s{number}_{at}_{axis}"), Param::Number(stride)));
        }
    }
    let place = |at: u32| {
        let stride = |axis: usize| format!("s{number}_{at}_{axis}");
        let (outer, down, along) = (stride(0), stride(1), stride(2));
        format!("e{number}_{at}[number * {outer} + row * {down} + column * {along}]")
    };
    let mut body = String::new();
    for (at, instr) in epilogue.code.iter().enumerate() {
        let values: Vec<String> = instr.args().iter().map(|arg| format!("r{}", arg.0)).collect();
        let dtype = |place: usize| dtypes[instr.args()[place].0 as usize];
        let text = match instr {
            // Sums are float32 whatever is multiplied.
            Instr::Product(_) => "product".to_string(),
            Instr::Load(access) => format!("lane::widen({})", place(*access)),
            Instr::Literal(literal) => literal_text(*literal),
            Instr::Apply(op, _) => source::apply(*op, dtype(0), [&values[0], &values[1]]),
            Instr::Select(_) => format!("{} ? {} : {}", values[0], values[1], values[2]),
            Instr::Cast(_, to) => cast_text(dtype(0), *to, &values[0]),
            Instr::Store(access, _) => {
                // Writing to a string cannot fail.
                let _ = writeln!(body, "            lane::put({}, {});", place(*access), values[0]);
                continue;
            }
            _ => return Ok(None),
        };
        let of = source::register_type(dtypes[at]);
        let _ = writeln!(body, "            const {of} r{at} = {text};");
    }
    let is_stored = |access: &Access<i64>| access.dtype != DType::Float64;
    Ok(epilogue.accesses.iter().all(is_stored).then_some(Ending { body, params }))
}

/// The distances along the batch, the rows and the columns.
pub(super) fn strides(access: &Access<i64>) -> [i64; 3] {
    match access.strides.as_slice() {
        [outer @ .., down, along] => [outer.first().copied().unwrap_or(0), *down, *along],
        _ => [0; 3],
    }
}
