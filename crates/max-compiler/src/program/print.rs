//! Programs as text, for dumps and golden tests.

use std::fmt::{self, Display, Formatter};

use super::{Origin, Program, Work};

impl Display for Program {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "program {:?}", self.source.name)?;
        for (slot, info) in self.slots.iter().enumerate() {
            write!(f, "  s{slot}: {}{} ", info.dtype, info.shape)?;
            match &info.origin {
                Origin::Input(input) => writeln!(f, "input {input}"),
                Origin::Output(output) => writeln!(f, "output {output}"),
                Origin::Constant(bytes) => writeln!(f, "constant of {} bytes", bytes.len()),
                Origin::Weight(weight) => writeln!(f, "weight {:?}", self.weights[*weight].0),
                Origin::Temporary(lifetime) => {
                    write!(f, "temporary {}..{}", lifetime.first, lifetime.last)?;
                    match lifetime.reuses {
                        Some(slot) => writeln!(f, " in place of s{}", slot.0),
                        None => writeln!(f),
                    }
                }
            }?;
        }
        for segment in &self.segments {
            for fact in &segment.facts {
                writeln!(f, "  fact {:?}", fact.claim)?;
            }
            for number in segment.steps.clone() {
                write!(f, "  {number} {}: ", self.step_name(number))?;
                match &self.steps[number].work {
                    Work::Kernel(kernel) => write!(f, "{kernel}")?,
                    Work::Print(label, Some(slot)) => writeln!(f, "print {label:?} s{}", slot.0)?,
                    Work::Print(label, None) => writeln!(f, "print {label:?}")?,
                }
            }
        }
        Ok(())
    }
}
