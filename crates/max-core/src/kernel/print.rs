//! Kernels as text, for dumps and golden tests.

use std::fmt::{self, Display, Formatter};

use crate::kernel::{Access, Instr, Kernel, Level, Literal, Loop, Matmul, Slot};
use crate::{Element, dispatch};

/// `[a, b]`.
struct List<'a, T>(&'a [T]);

impl<T: Display> Display for List<'_, T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (at, item) in self.0.iter().enumerate() {
            write!(f, "{}{item}", if at == 0 { "" } else { ", " })?;
        }
        f.write_str("]")
    }
}

/// The slot, the offset and the strides: `s0 + 4 [8, 1]`.
impl<D: Display> Display for Access<D> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let offset = self.offset.to_string();
        match self.slot {
            Slot::NONE => f.write_str("at")?,
            Slot(slot) => write!(f, "s{slot}")?,
        }
        if offset != "0" {
            write!(f, " + {offset}")?;
        }
        write!(f, " {}", List(&self.strides))
    }
}

impl Display for Literal {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let bytes = self.bits.to_le_bytes();
        dispatch!(self.dtype, T => {
            let element: T = bytemuck::pod_read_unaligned(&bytes[..size_of::<T>()]);
            match self.dtype.is_float() {
                true => write!(f, "{:?}", element.to_f64() as f32),
                false => write!(f, "{}", element.to_i128()),
            }
        })
    }
}

impl<D: Display> Loop<D> {
    /// The space and the instructions, one per line; the registers of rows have capital names.
    fn write(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "over {}", List(&self.shape))?;
        match self.reduce {
            Some(axis) => writeln!(f, " reducing axis {axis}")?,
            None => writeln!(f)?,
        }
        let levels = self.levels(|stride| stride.to_string() == "0");
        let name = |reg: u32| match levels.get(reg as usize) {
            Some(Level::Row) if self.reduce.is_some() => format!("R{reg}"),
            _ => format!("r{reg}"),
        };
        let access =
            |number: u32| self.accesses.get(number as usize).map_or(String::new(), |a| a.to_string());
        let dtype = |number: u32| self.accesses.get(number as usize).map_or("", |a| a.dtype.name());
        for (at, instr) in self.code.iter().enumerate() {
            let own = name(at as u32);
            match instr {
                Instr::Load(number) => writeln!(f, "    {own} = load {} {}", dtype(*number), access(*number)),
                Instr::Index(number) => writeln!(f, "    {own} = index {}", access(*number)),
                Instr::Product(dtype) => writeln!(f, "    {own} = product {dtype}"),
                Instr::Literal(literal) => writeln!(f, "    {own} = {} {literal}", literal.dtype),
                Instr::Size(size, dtype) => writeln!(f, "    {own} = {dtype} size {size}"),
                Instr::Apply(op, [a, b]) => match op.arity() {
                    1 => writeln!(f, "    {own} = {} {}", op.name(), name(a.0)),
                    _ => writeln!(f, "    {own} = {} {} {}", op.name(), name(a.0), name(b.0)),
                },
                Instr::Select([c, a, b]) => {
                    writeln!(f, "    {own} = select {} {} {}", name(c.0), name(a.0), name(b.0))
                }
                Instr::Cast(arg, dtype) => writeln!(f, "    {own} = cast {} {dtype}", name(arg.0)),
                Instr::Random(distribution, dtype, [seed, position]) => {
                    let (kind, seed) = (distribution.name(), name(seed.0));
                    writeln!(f, "    {own} = random {kind} {dtype} {seed} {}", name(position.0))
                }
                Instr::Reduce(kind, arg) => writeln!(f, "    {own} = reduce {} {}", kind.name(), name(arg.0)),
                Instr::Store(number, arg) => {
                    writeln!(f, "    store {} {} {}", dtype(*number), access(*number), name(arg.0))
                }
            }?;
        }
        Ok(())
    }
}

impl<D: Display> Display for Matmul<D> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "matmul {} x {} k {} ", self.lhs, self.rhs, self.k)?;
        self.epilogue.write(f)
    }
}

impl<D: Display> Display for Kernel<D> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Kernel::Loop(k) => {
                f.write_str("loop ")?;
                k.write(f)
            }
            Kernel::Matmul(k) => write!(f, "{k}"),
            Kernel::Matmuls(all) => all
                .iter()
                .enumerate()
                .try_for_each(|(at, k)| write!(f, "{}{k}", if at == 0 { "" } else { "  and " })),
            Kernel::Attention(k) => {
                write!(
                    f,
                    "attention {} x {} x {} keys {} scale {}",
                    k.query, k.key, k.value, k.keys, k.scale
                )?;
                if let Some(mask) = &k.mask {
                    write!(f, " mask {mask}")?;
                }
                f.write_str(if k.causal { " causal " } else { " " })?;
                if k.window > 0 {
                    write!(f, "window {} ", k.window)?;
                }
                k.epilogue.write(f)
            }
            Kernel::Conv2d(k) => {
                write!(f, "conv2d {} x {} {} ", k.input, k.filter, List(&k.filter_size))?;
                write!(f, "stride {:?} dilation {:?} padding {:?} ", k.stride, k.dilation, k.padding)?;
                write!(f, "groups {} ", k.groups)?;
                k.epilogue.write(f)
            }
            Kernel::Gather(k) => {
                writeln!(f, "gather {} by {} into {} size {}", k.source, k.indices, k.out, k.size)
            }
        }
    }
}
