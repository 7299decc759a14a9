//! Programs as text, for dumps and golden tests.

use std::fmt::{self, Display, Formatter};

use max_core::DeviceRef;
use max_core::kernel::Slot;

use super::{Origin, Program, Work};

impl Display for Program {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "program {:?}", self.source.name)?;
        for (slot, info) in self.slots.iter().enumerate() {
            write!(f, "  s{slot}: {}{}{} ", info.dtype, info.shape, On(info.device))?;
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
                let step = &self.steps[number];
                write!(f, "  {number} {}{}: ", self.step_name(number), On(step.device))?;
                if let Some(kernel) = self.kernel(number) {
                    write!(f, "{kernel}")?;
                }
                match &step.work {
                    Work::Kernel(_) => {}
                    Work::Print(label, Some(slot)) => writeln!(f, "print {label:?} s{}", slot.0)?,
                    Work::Print(label, None) => writeln!(f, "print {label:?}")?,
                    Work::Transfer { from, to } => writeln!(f, "transfer s{} to s{}", from.0, to.0)?,
                    Work::Custom(custom) => {
                        let (operands, results) = (names(&custom.operands), names(&custom.results));
                        writeln!(f, "custom of {operands} into {results}")?;
                    }
                    Work::Nested(nested) => {
                        let (inputs, outputs) = (names(&nested.inputs), names(&nested.outputs));
                        writeln!(f, "{} of {inputs} into {outputs}", self.step_text(number))?;
                    }
                    Work::Collective { kind, from, to } => {
                        writeln!(f, "{} from {} to {}", kind.name(), names(from), names(to))?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// Slots in a line.
fn names(slots: &[Slot]) -> String {
    slots.iter().map(|slot| format!("s{}", slot.0)).collect::<Vec<_>>().join(" ")
}

/// A device, unless it is the host.
struct On(DeviceRef);

impl Display for On {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.0 == DeviceRef::CPU { Ok(()) } else { write!(f, " on {}", self.0) }
    }
}
