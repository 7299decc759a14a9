//! Loops one element at a time: slow, plain, and independent of the code under test.

use max_core::kernel::{Instr, Level, Literal, Loop, Reduction};
use max_core::scalar::{Lane, MaskLane};
use max_core::{Bool, DType, Element, ScalarOp, dispatch, small_float};

/// An element of a register as bits.
type Bits = u64;

fn held(dtype: DType) -> DType {
    if dtype.is_half() || dtype.is_small_float() { DType::Float32 } else { dtype }
}

fn get<T: Element>(bits: Bits) -> T {
    bytemuck::pod_read_unaligned(&bits.to_le_bytes()[..size_of::<T>()])
}

pub(super) fn bits<T: Element>(element: T) -> Bits {
    let mut bytes = [0; 8];
    bytes[..size_of::<T>()].copy_from_slice(bytemuck::bytes_of(&element));
    u64::from_le_bytes(bytes)
}

/// From memory to a register.
fn widen(dtype: DType, memory: Bits) -> Bits {
    match dtype {
        DType::Bool => bits(Bool::from(get::<Bool>(memory).get())),
        _ if held(dtype) != dtype => dispatch!(dtype, T => bits(get::<T>(memory).to_f64() as f32)),
        _ => memory,
    }
}

fn narrow(dtype: DType, register: Bits) -> Bits {
    if held(dtype) == dtype {
        return register;
    }
    dispatch!(dtype, T => bits(T::from_double(f64::from(get::<f32>(register)))))
}

fn apply(op: ScalarOp, dtype: DType, a: Bits, b: Bits) -> Bits {
    match op {
        ScalarOp::NumericOp(op) => dispatch!(held(dtype), T => {
            bits(T::from_lane(op.apply([get::<T>(a).to_lane(), get::<T>(b).to_lane()])))
        }),
        ScalarOp::RealOp(op) => dispatch!(held(dtype), T => {
            bits(T::from_real(op.apply([get::<T>(a).to_real(), get::<T>(b).to_real()])))
        }),
        ScalarOp::CompareOp(op) => dispatch!(held(dtype), T => {
            bits(op.apply([get::<T>(a).to_lane(), get::<T>(b).to_lane()]))
        }),
        ScalarOp::LogicalOp(op) => bits(op.apply([get::<Bool>(a), get::<Bool>(b)])),
    }
}

fn cast(from: DType, to: DType, value: Bits) -> Bits {
    let cast = dispatch!(held(from), F => dispatch!(to, T => {
        let value = get::<F>(value);
        bits(if from.is_float() { T::from_double(value.to_f64()) } else { T::from_i128(value.to_i128()) })
    }));
    widen(to, cast)
}

fn reduce(kind: Reduction, dtype: DType, row: &[Bits]) -> Bits {
    dispatch!(held(dtype), T => {
        let row = || row.iter().map(|&element| get::<T>(element));
        let lanes = |start: i128, f: fn(<T as Element>::Lane, <T as Element>::Lane) -> <T as Element>::Lane| {
            bits(T::from_lane(row().map(T::to_lane).fold(T::from_i128(start).to_lane(), f)))
        };
        let reals = |start: f64, f: fn(f64, f64) -> f64| bits(T::from_double(row().map(T::to_f64).fold(start, f)));
        let bound = |f: fn(<T as Element>::Lane, <T as Element>::Lane) -> <T as Element>::Lane| {
            bits(row().map(T::to_lane).reduce(f).map_or(T::from_i128(0), T::from_lane))
        };
        let position = |beats: fn(<T as Element>::Lane, <T as Element>::Lane) -> Bool| {
            let nan = |x: <T as Element>::Lane| x.eq(x).not().get();
            let first = row().map(T::to_lane).enumerate().reduce(|best, new| {
                let wins = nan(new.1) && !nan(best.1) || beats(new.1, best.1).get() && !nan(best.1);
                if wins { new } else { best }
            });
            bits(first.map_or(0, |(index, _)| index as i64))
        };
        match kind {
            Reduction::Sum if dtype.is_float() => reals(0.0, |a, b| a + b),
            Reduction::Prod if dtype.is_float() => reals(1.0, |a, b| a * b),
            Reduction::Sum => lanes(0, Lane::add),
            Reduction::Prod => lanes(1, Lane::mul),
            Reduction::Max => bound(Lane::max),
            Reduction::Min => bound(Lane::min),
            Reduction::ArgMax => position(|new, best| best.lt(new)),
            Reduction::ArgMin => position(|new, best| new.lt(best)),
        }
    })
}

/// All indices of the kept axes.
fn indices(loop_: &Loop<i64>) -> Vec<Vec<i64>> {
    let mut all = vec![vec![]];
    for (axis, &size) in loop_.shape.iter().enumerate() {
        let size = if Some(axis) == loop_.reduce { 1 } else { size };
        all = all
            .iter()
            .flat_map(|index: &Vec<i64>| (0..size).map(|i| [index.as_slice(), &[i]].concat()))
            .collect();
    }
    all
}

/// Runs a loop on bytes, one piece per slot; `products` are the kernel results that an epilogue takes, element by
/// element.
pub(super) fn run(loop_: &Loop<i64>, memory: &mut [Vec<u8>], products: &[Bits]) {
    let before = memory.to_vec();
    let (dtypes, levels) = (loop_.dtypes().unwrap(), loop_.levels(|stride| *stride == 0));
    let len = loop_.reduce.map_or(1, |axis| loop_.shape[axis]) as usize;
    for (number, index) in indices(loop_).into_iter().enumerate() {
        let position_of = |access: u32, j: usize| {
            let access = &loop_.accesses[access as usize];
            let mut index = index.clone();
            if let Some(axis) = loop_.reduce {
                index[axis] = j as i64;
            }
            access.offset + index.iter().zip(&access.strides).map(|(i, s)| i * s).sum::<i64>()
        };
        let at = |number: u32, j: usize| {
            let (access, element) = (&loop_.accesses[number as usize], position_of(number, j));
            let size = access.dtype.size_in_bytes();
            (access.slot.0 as usize, element as usize * size..(element as usize + 1) * size)
        };
        let mut registers: Vec<Vec<Bits>> = Vec::new();
        for (position, instr) in loop_.code.iter().enumerate() {
            let reduced = match instr {
                Instr::Reduce(kind, arg) => {
                    let arg = arg.0 as usize;
                    reduce(*kind, dtypes[arg], &registers[arg][..len])
                }
                _ => 0,
            };
            // Per-row values exist for rows without elements, too.
            let row: Vec<Bits> = (0..len.max(1))
                .map(|j| {
                    let reg = |reg: &max_core::kernel::Reg| registers[reg.0 as usize][j];
                    let dtype_of = |reg: &max_core::kernel::Reg| dtypes[reg.0 as usize];
                    match instr {
                        Instr::Load(_) if len == 0 && levels[position] == Level::Element => 0,
                        Instr::Load(access) => {
                            let (slot, bytes) = at(*access, j);
                            let mut element = [0; 8];
                            element[..bytes.len()].copy_from_slice(&before[slot][bytes]);
                            widen(dtypes[position], u64::from_le_bytes(element))
                        }
                        Instr::Index(access) => bits(position_of(*access, j)),
                        Instr::Random(distribution, dtype, [seed, place]) => match dtype {
                            DType::Float64 => bits(distribution.draw::<f64>(reg(seed), reg(place))),
                            _ => bits(distribution.draw::<f32>(reg(seed), reg(place))),
                        },
                        Instr::Product(_) => products[number],
                        Instr::Literal(Literal { dtype, bits }) => widen(*dtype, *bits),
                        Instr::Size(size, dtype) => {
                            widen(*dtype, dispatch!(*dtype, T => bits(T::from_i128(i128::from(*size)))))
                        }
                        Instr::Apply(op, [a, b]) => apply(*op, dtype_of(a), reg(a), reg(b)),
                        Instr::Select([condition, a, b]) => {
                            if get::<Bool>(reg(condition)).get() {
                                reg(a)
                            } else {
                                reg(b)
                            }
                        }
                        Instr::Cast(arg, to) => cast(dtype_of(arg), *to, reg(arg)),
                        Instr::Reduce(..) => reduced,
                        Instr::Store(_, arg) => reg(arg),
                    }
                })
                .collect();
            if let Instr::Store(access, _) = instr {
                let repeats = |axis: usize| loop_.accesses[*access as usize].strides[axis] == 0;
                let once = levels[position] == Level::Row && loop_.reduce.is_some_and(repeats);
                for (j, &element) in row.iter().enumerate().take(if once { 1 } else { len }) {
                    let (slot, bytes) = at(*access, j);
                    let element = narrow(dtypes[position], element).to_le_bytes();
                    let len = bytes.len();
                    memory[slot][bytes].copy_from_slice(&element[..len]);
                }
            }
            registers.push(row);
        }
    }
}

/// Whether two elements are equal up to what the order of sums may change.
pub(super) fn close(dtype: DType, a: &[u8], b: &[u8]) -> bool {
    let tolerance = match dtype {
        DType::BFloat16 => 1e-2,
        DType::Float16 => 2e-3,
        DType::Float32 => 1e-4,
        DType::Float64 => 1e-9,
        _ => match small_float::format(dtype) {
            Some(format) => 1.2 / f64::from(1 << format.fraction),
            None => return a == b,
        },
    };
    dispatch!(dtype, T => {
        let value = |bytes: &[u8]| bytemuck::pod_read_unaligned::<T>(bytes).to_f64();
        let (a, b) = (value(a), value(b));
        a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= tolerance * a.abs().max(b.abs()).max(1.0)
    })
}
