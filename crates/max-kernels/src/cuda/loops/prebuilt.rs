//! Modules of single-op loops, for code that runs op by op: the first op of a kind on a dtype compiles the others too.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Mutex, PoisonError};

use max_core::kernel::{Access, Instr, Loop, Reg, Slot};
use max_core::{DType, Result, ScalarOp};
use max_driver::cuda::{Function, Gpu, Source};

use super::words::memory_type;

/// The dtypes that have such modules.
const COMMON: [DType; 7] = [
    DType::Float32,
    DType::BFloat16,
    DType::Float16,
    DType::Float64,
    DType::Int32,
    DType::Int64,
    DType::Bool,
];

/// A small and a large number of elements, which have different functions.
const COUNTS: [i64; 2] = [1024, 1 << 26];

/// The modules of GPUs and dtypes: their sources, and the functions of those built so far.
#[derive(Default)]
struct Modules {
    lists: HashMap<(u32, DType), Vec<Vec<Source>>>,
    built: HashMap<(u32, String), Function>,
}

static MODULES: Mutex<Option<Modules>> = Mutex::new(None);

/// The function of a source, if it belongs to a module.
pub(super) fn function(gpu: &'static Gpu, source: &Source) -> Result<Option<Function>> {
    let mut modules = MODULES.lock().unwrap_or_else(PoisonError::into_inner);
    let Modules { lists, built } = modules.get_or_insert_default();
    let wanted = (gpu.id(), source.name.clone());
    if let Some(function) = built.get(&wanted) {
        return Ok(Some(function.clone()));
    }
    let first = |dtype: &DType| source.code.contains(&format!(" {}* p0", memory_type(*dtype)));
    let Some(dtype) = COMMON.into_iter().find(first) else { return Ok(None) };
    let lists = match lists.entry((gpu.id(), dtype)) {
        Entry::Occupied(known) => known.into_mut(),
        Entry::Vacant(place) => place.insert(self::lists(dtype, gpu.multiprocessors())?),
    };
    let Some(list) = lists.iter().find(|list| list.iter().any(|other| other.name == source.name)) else {
        return Ok(None);
    };
    let functions = gpu.module(list)?;
    built.extend(list.iter().map(|other| (gpu.id(), other.name.clone())).zip(functions));
    Ok(built.get(&wanted).cloned())
}

/// The modules of a dtype: arithmetic and predicates, functions of real numbers, casts.
pub(super) fn lists(dtype: DType, multiprocessors: u32) -> Result<Vec<Vec<Source>>> {
    let of = |real: bool| {
        let fits = move |op: &ScalarOp| match op {
            ScalarOp::RealOp(_) => real && dtype.is_float(),
            ScalarOp::LogicalOp(_) => !real && dtype == DType::Bool,
            _ => !real,
        };
        ScalarOp::all().filter(fits).map(|op| (op.arity(), op.result_dtype(dtype), Some(op)))
    };
    let casts = COMMON.into_iter().filter(|&to| to != dtype).map(|to| (1, to, None));
    let kinds: [Vec<(usize, DType, Option<ScalarOp>)>; 3] =
        [of(false).collect(), of(true).collect(), casts.collect()];
    let mut lists = Vec::new();
    for (kind, count) in kinds.iter().flat_map(|kind| COUNTS.map(|count| (kind, count))) {
        let mut list: Vec<Source> = Vec::with_capacity(kind.len());
        for &(operands, to, op) in kind {
            let loop_ = one(operands, dtype, to, op, count);
            for call in super::calls(&loop_, multiprocessors, &mut |_, _| Ok(0))? {
                // Some ops have the same text on some dtypes.
                if list.iter().all(|other| other.name != call.source.name) {
                    list.push(call.source);
                }
            }
        }
        if !list.is_empty() {
            lists.push(list);
        }
    }
    Ok(lists)
}

/// A loop of a single op or cast on contiguous elements.
fn one(operands: usize, from: DType, to: DType, op: Option<ScalarOp>, count: i64) -> Loop<i64> {
    let access = |slot: usize, dtype| Access { slot: Slot(slot as u32), dtype, offset: 0, strides: vec![1] };
    let mut accesses: Vec<Access<i64>> = (0..operands).map(|slot| access(slot, from)).collect();
    accesses.push(access(operands, to));
    let mut code: Vec<Instr<i64>> = (0..operands as u32).map(Instr::Load).collect();
    let last = Reg(operands as u32 - 1);
    code.push(match op {
        Some(op) => Instr::Apply(op, [Reg(0), last]),
        None => Instr::Cast(Reg(0), to),
    });
    code.push(Instr::Store(operands as u32, Reg(operands as u32)));
    Loop { shape: vec![count], reduce: None, accesses, code }
}
