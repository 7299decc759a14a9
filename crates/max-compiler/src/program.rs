//! A compiled graph as plain data: the memory it uses, the conditions on its sizes, and its steps.

mod print;

use std::ops::Range;
use std::sync::Arc;

use max_core::kernel::{Access, Kernel, Map, Slot};
use max_core::{Collective, DType, DeviceRef, Dim, Error, HostBytes, Result, Shape, TensorType, Type, bail};
use max_graph::ops::custom::Custom;
use max_graph::ops::reduce::ReduceKind;
use max_graph::{Body, OpId, OpKind};

use crate::passes::Rewrites;

/// A compiled graph: immutable, shared by the models and threads that run it.
#[derive(Clone, Debug)]
pub struct Program {
    /// The optimized graph that its ops refer to.
    pub source: Body,
    /// The rewrites of the graph after which its results may round differently.
    pub rounding: Rewrites,
    /// The types of the inputs.
    pub inputs: Vec<Type>,
    /// The types of the outputs.
    pub outputs: Vec<Type>,
    /// The weights it needs, by name.
    pub weights: Vec<(String, TensorType)>,
    /// The devices it uses, each once; a program that uses none runs on the host.
    pub devices: Vec<DeviceRef>,
    /// The memory it uses. A [`Slot`] is an index into it.
    pub slots: Vec<SlotInfo>,
    /// The kernels it launches, each with its device, and once however many steps launch it: equal layers share theirs.
    /// The slots of a kernel number the memory that a step gives it.
    pub kernels: Vec<(DeviceRef, Kernel<Dim>)>,
    /// What it does, in order.
    pub steps: Vec<Step>,
    /// The steps in runs; the sizes of a run are known before its first step.
    pub segments: Vec<Segment>,
    /// The programs of its regions, each once however many steps run it.
    pub regions: Vec<Arc<Program>>,
    /// Outputs that are buffers, and what they are.
    pub returned: Vec<(usize, Returned)>,
}

/// A buffer that a program returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Returned {
    /// One of its inputs.
    Input(usize),
    /// A buffer that it makes, under the number of the first output that it is.
    Output(usize),
}

/// One piece of memory: contiguous elements, 64-byte aligned where the program allocates it.
#[derive(Clone, Debug)]
pub struct SlotInfo {
    /// Where it comes from.
    pub origin: Origin,
    /// The device it is on.
    pub device: DeviceRef,
    /// The type of its elements.
    pub dtype: DType,
    /// Its sizes.
    pub shape: Shape,
}

/// Where a slot's memory comes from.
#[derive(Clone, Debug)]
pub enum Origin {
    /// The caller provides it.
    Input(usize),
    /// It is allocated for the caller.
    Output(usize),
    /// It is part of the program.
    Constant(HostBytes),
    /// It is bound when the program is loaded.
    Weight(usize),
    /// It is in the arena of an execution.
    Temporary(Lifetime),
}

/// When a temporary is in use.
#[derive(Clone, Debug, PartialEq)]
pub struct Lifetime {
    /// The first step that writes it.
    pub first: usize,
    /// The last step that uses it.
    pub last: usize,
    /// The slot, dead after the first step, whose memory it takes over: that step works in place.
    pub reuses: Option<Slot>,
}

/// A run of steps. What it needs to know about sizes is checked and learned before its first step.
#[derive(Clone, Debug)]
pub struct Segment {
    /// What must hold, in order; facts may bind symbols.
    pub facts: Vec<Fact>,
    /// Its steps.
    pub steps: Range<usize>,
}

/// A condition on sizes, or on data that sizes depend on, and the op that requires it.
#[derive(Clone, Debug)]
pub struct Fact<M = Slot> {
    /// What must hold.
    pub claim: Claim<M>,
    /// The op it comes from.
    pub op: OpId,
}

/// What a fact says.
#[derive(Clone, Debug)]
pub enum Claim<M = Slot> {
    /// A weight has this shape, which may bind symbols.
    Weight(usize, Shape),
    /// Two shapes are equal; the second may bind new symbols.
    Rebind {
        /// The known shape.
        from: Shape,
        /// The shape it is asserted to have.
        to: Shape,
        /// The user's message.
        message: String,
    },
    /// A slice stays within its axis.
    Slice {
        /// The axis.
        axis: usize,
        /// Its size.
        size: Dim,
        /// The first position.
        start: Dim,
        /// The number of positions.
        count: Dim,
        /// The distance between them.
        step: i64,
    },
    /// A reduced axis is not empty.
    NotEmpty(Dim, ReduceKind),
    /// The window of the named pooling op is not empty.
    Window(&'static str, [Dim; 2]),
    /// A resampled axis is not empty.
    Resampled(Dim),
    /// A filter is not empty, and groups divide its output channels.
    Filter {
        /// Height and width of the filter.
        taps: [Dim; 2],
        /// Output channels.
        filters: Dim,
        /// Groups.
        groups: usize,
    },
    /// A line has at least as many elements as are taken of it.
    Count {
        /// The axis.
        axis: usize,
        /// Its size.
        size: Dim,
        /// The number of elements.
        count: Dim,
    },
    /// The bounds of a slice are read from memory; they bind a symbol for its start and its size.
    Bounds {
        /// The axis.
        axis: usize,
        /// Its size.
        size: Dim,
        /// The scalar it starts at.
        start: Option<Access<Dim, M>>,
        /// The scalar it stops at.
        stop: Option<Access<Dim, M>>,
        /// The distance between positions.
        step: i64,
        /// The symbol for the first position from here on.
        first: Arc<str>,
        /// The dim for the number of positions.
        count: Dim,
    },
    /// The sizes of a broadcast are read from memory; they bind the dims of its shape.
    Sizes {
        /// The sizes.
        values: Access<Dim, M>,
        /// The shape that is broadcast.
        from: Shape,
        /// The dims for the sizes.
        to: Shape,
        /// Symbols for axes that may turn out to have size 1: each is 0 where its axis is repeated, and 1 where it is not.
        walks: Vec<(usize, Arc<str>)>,
    },
}

/// One step of a program.
#[derive(Clone, Debug)]
pub struct Step {
    /// What it does.
    pub work: Work,
    /// The device it runs on, whose memory is all it touches; for a transfer, the destination; for a collective, the first
    /// device.
    pub device: DeviceRef,
    /// The slots it reads.
    pub reads: Vec<Slot>,
    /// The slots it writes.
    pub writes: Vec<Slot>,
    /// The ops it runs; none if it only copies an input to an output.
    pub ops: Vec<OpId>,
}

/// What a step does, with the kernel `K` and memory named by `M`.
#[derive(Clone, Debug)]
pub enum Work<K = Launch, M = Slot> {
    /// Launches a kernel.
    Kernel(K),
    /// Prints a label and a contiguous tensor.
    Print(String, Option<M>),
    /// Copies a slot to one of the same size on another device.
    Transfer {
        /// What is copied.
        from: M,
        /// Where it goes.
        to: M,
    },
    /// Runs the custom op that is the step's only op.
    Custom(CustomCall<M>),
    /// Runs regions.
    Nested(Nested<M>),
    /// Runs a collective of GPUs, whose slots are in the order of the devices. The slot of an allgather has the tensors of
    /// the devices one after the other, and each slot that a reduce-scatter reads has the parts of the devices so.
    Collective {
        /// What it computes.
        kind: Collective,
        /// What each device has; for a broadcast, what one of them has.
        from: Vec<M>,
        /// What each device gets.
        to: Vec<M>,
    },
}

/// A run of a custom op on contiguous memory.
#[derive(Clone, Debug)]
pub struct CustomCall<M = Slot> {
    /// What it reads.
    pub operands: Vec<M>,
    /// Where it writes its results.
    pub results: Vec<M>,
    /// The operands that it also writes.
    pub written: Vec<M>,
}

impl<M> CustomCall<M> {
    /// The memory it writes.
    pub fn writes(&self) -> impl Iterator<Item = &M> {
        self.results.iter().chain(&self.written)
    }

    /// The same on other memory.
    pub fn map<N>(&self, memory: &mut dyn FnMut(&M) -> N) -> CustomCall<N> {
        let mut all = |from: &[M]| from.iter().map(&mut *memory).collect::<Vec<N>>();
        CustomCall { operands: all(&self.operands), results: all(&self.results), written: all(&self.written) }
    }
}

/// Runs of regions on memory of the program.
#[derive(Clone, Debug)]
pub struct Nested<M = Slot> {
    /// Which regions, and when.
    pub control: Control<M>,
    /// What a region is given, in order.
    pub inputs: Vec<M>,
    /// Where it writes its outputs.
    pub outputs: Vec<M>,
    /// The inputs that it also writes.
    pub written: Vec<M>,
}

/// Which regions run, by their number in the program.
#[derive(Clone, Debug)]
pub enum Control<M = Slot> {
    /// One, once.
    Call(usize),
    /// The first if a flag is set, else the second.
    Cond {
        /// The flag.
        flag: M,
        /// The two.
        regions: [usize; 2],
    },
    /// One, while a flag is set: first this one, then the last output of each run. The other outputs of a run are the
    /// first inputs of the next.
    While {
        /// The first flag.
        flag: M,
        /// The one.
        region: usize,
        /// Where every other run writes its outputs, and its flag.
        spare: Vec<M>,
    },
}

impl<M> Nested<M> {
    /// The memory it reads.
    pub fn reads(&self) -> impl Iterator<Item = &M> {
        let flag = match &self.control {
            Control::Call(_) => None,
            Control::Cond { flag, .. } | Control::While { flag, .. } => Some(flag),
        };
        flag.into_iter().chain(&self.inputs)
    }

    /// The memory it writes.
    pub fn writes(&self) -> impl Iterator<Item = &M> {
        let spare = match &self.control {
            Control::While { spare, .. } => &spare[..],
            Control::Call(_) | Control::Cond { .. } => &[],
        };
        self.outputs.iter().chain(spare).chain(&self.written)
    }

    /// The regions it may run.
    pub fn regions(&self) -> &[usize] {
        match &self.control {
            Control::Call(region) | Control::While { region, .. } => std::slice::from_ref(region),
            Control::Cond { regions, .. } => regions,
        }
    }

    /// The same on other memory.
    pub fn map<N>(&self, memory: &mut dyn FnMut(&M) -> N) -> Nested<N> {
        let mut all = |from: &[M]| from.iter().map(&mut *memory).collect::<Vec<N>>();
        let (inputs, outputs, written) = (all(&self.inputs), all(&self.outputs), all(&self.written));
        let control = match &self.control {
            Control::Call(region) => Control::Call(*region),
            Control::Cond { flag, regions } => Control::Cond { flag: memory(flag), regions: *regions },
            Control::While { flag, region, spare } => {
                let spare = all(spare);
                Control::While { flag: memory(flag), region: *region, spare }
            }
        };
        Nested { control, inputs, outputs, written }
    }
}

/// A kernel of the program, and the memory it is launched on.
#[derive(Clone, Debug)]
pub struct Launch {
    /// Its number among the kernels of the program.
    pub kernel: usize,
    /// The slot of the program for each slot of the kernel.
    pub slots: Vec<Slot>,
}

impl Program {
    /// An error with the name and location of the op that caused it.
    pub fn blame(&self, op: OpId, error: Error) -> Error {
        let op = self.source.op(op);
        op.location.iter().cloned().fold(error.context(op.describe(&self.source)), Error::at)
    }

    /// Checks that no step touches the memory of two devices, except transfers and collectives.
    pub fn verify(&self) -> Result<()> {
        let info = |slot: Slot| &self.slots[slot.0 as usize];
        for (number, step) in self.steps.iter().enumerate() {
            match &step.work {
                Work::Transfer { from, to } => {
                    let (from, to) = (info(*from), info(*to));
                    let same = from.dtype == to.dtype && from.shape == to.shape;
                    if !same || from.device == to.device || to.device != step.device {
                        bail!(internal, "step {number} on {} transfers {from:?} to {to:?}", step.device);
                    }
                }
                Work::Collective { kind, from, to } => {
                    let devices =
                        |slots: &[Slot]| slots.iter().map(|&slot| info(slot).device).collect::<Vec<_>>();
                    let (given, taken) = (devices(from), devices(to));
                    let distinct = (1..taken.len()).all(|at| !taken[..at].contains(&taken[at]));
                    let fits = match kind {
                        Collective::Broadcast => given.len() == 1 && taken.contains(&given[0]),
                        _ => given == taken,
                    };
                    if !fits || !distinct || taken.first() != Some(&step.device) {
                        bail!(
                            internal,
                            "step {number} on {} is a {kind:?} from {given:?} to {taken:?}",
                            step.device
                        );
                    }
                }
                // Regions are programs of their own.
                Work::Nested(_) => {}
                Work::Kernel(_) | Work::Print(..) | Work::Custom(_) => {
                    if let Some(&slot) = step.slots().find(|&&slot| info(slot).device != step.device) {
                        let (own, other) = (step.device, info(slot).device);
                        bail!(internal, "step {number} on {own} touches slot {} on {other}", slot.0);
                    }
                }
            }
        }
        Ok(())
    }

    /// The program and those of its regions, each once.
    pub fn with_regions(&self) -> Vec<&Program> {
        fn collect<'a>(program: &'a Program, found: &mut Vec<&'a Program>) {
            if !found.iter().any(|known| std::ptr::eq(*known, program)) {
                found.push(program);
                program.regions.iter().for_each(|region| collect(region, found));
            }
        }
        let mut found = Vec::new();
        collect(self, &mut found);
        found
    }

    /// The kernel of a step, on the slots of the program; `None` for a step that launches none.
    pub fn kernel(&self, step: usize) -> Option<Kernel<Dim>> {
        let Work::Kernel(launch) = &self.steps[step].work else { return None };
        launch.place(&self.kernels[launch.kernel].1).ok()
    }

    /// The custom op that a step runs; `None` for other steps.
    pub fn custom(&self, step: usize) -> Option<&Custom> {
        let (Work::Custom(_), [op]) = (&self.steps[step].work, &self.steps[step].ops[..]) else {
            return None;
        };
        match &self.source.op(*op).kind {
            OpKind::Custom(custom) => Some(custom),
            _ => None,
        }
    }

    /// The index of a device among those of the program.
    pub fn device_number(&self, device: DeviceRef) -> usize {
        self.devices.iter().position(|&own| own == device).unwrap_or(0)
    }

    /// The kind of a step: that of its kernel, or "print", "transfer", "collective", "custom", "call", "cond" or "while".
    pub fn step_kind(&self, step: usize) -> &'static str {
        match &self.steps[step].work {
            Work::Kernel(launch) => self.kernels[launch.kernel].1.kind(),
            Work::Print(..) => "print",
            Work::Transfer { .. } => "transfer",
            Work::Custom(_) => "custom",
            Work::Nested(nested) => match nested.control {
                Control::Call(_) => "call",
                Control::Cond { .. } => "cond",
                Control::While { .. } => "while",
            },
            Work::Collective { .. } => "collective",
        }
    }

    /// What a step does, as text.
    pub fn step_text(&self, step: usize) -> String {
        match &self.steps[step].work {
            Work::Kernel(_) => self.kernel(step).map_or(String::new(), |kernel| kernel.to_string()),
            Work::Print(label, _) => label.clone(),
            Work::Transfer { .. } => format!("to {}", self.steps[step].device),
            Work::Custom(_) => self.custom(step).map_or(String::new(), |custom| format!("{:?}", custom.op)),
            Work::Nested(nested) => {
                let names = nested.regions().iter().map(|&region| self.regions[region].source.name.as_str());
                names.collect::<Vec<_>>().join(" or ")
            }
            Work::Collective { kind, to, .. } => format!("{} of {} devices", kind.name(), to.len()),
        }
    }

    /// A step's name, made of the names of its ops.
    pub fn step_name(&self, step: usize) -> String {
        let ops = &self.steps[step].ops;
        if ops.is_empty() {
            return "copy".into();
        }
        let mut names: Vec<_> = ops.iter().take(SHOWN).map(|&op| self.source.op(op).kind.title()).collect();
        let more = format!("{} more", ops.len().saturating_sub(SHOWN));
        if ops.len() > SHOWN {
            names.push(&more);
        }
        names.join("+")
    }
}

/// How many ops the name of a step lists.
const SHOWN: usize = 6;

impl Launch {
    /// Its kernel on the slots of the program.
    pub fn place<D: Clone>(&self, kernel: &Kernel<D>) -> Result<Kernel<D>> {
        let mut memory = |slot: &Slot| Ok(self.slots.get(slot.0 as usize).copied().unwrap_or(Slot::NONE));
        kernel.map(&mut Map { size: &mut |size: &D| Ok(size.clone()), memory: &mut memory })
    }
}

impl Step {
    /// The slots it reads, and those it writes.
    pub fn slots(&self) -> impl Iterator<Item = &Slot> {
        self.reads.iter().chain(&self.writes)
    }
}

impl<M> Claim<M> {
    /// The memory it reads.
    pub fn reads(&self) -> Vec<&M> {
        match self {
            Claim::Bounds { start, stop, .. } => {
                start.iter().chain(stop).map(|access| &access.slot).collect()
            }
            Claim::Sizes { values, .. } => vec![&values.slot],
            Claim::Weight(..)
            | Claim::Rebind { .. }
            | Claim::Slice { .. }
            | Claim::NotEmpty(..)
            | Claim::Filter { .. }
            | Claim::Count { .. }
            | Claim::Window(..)
            | Claim::Resampled(..) => vec![],
        }
    }

    /// The same on other memory.
    pub fn map<N>(self, memory: &mut dyn FnMut(&M) -> Result<N>) -> Result<Claim<N>> {
        let mut access = |access: &Access<Dim, M>| {
            access.map(&mut Map { size: &mut |size: &Dim| Ok(size.clone()), memory: &mut *memory })
        };
        Ok(match self {
            Claim::Bounds { axis, size, start, stop, step, first, count } => {
                let start = start.as_ref().map(&mut access).transpose()?;
                let stop = stop.as_ref().map(&mut access).transpose()?;
                Claim::Bounds { axis, size, start, stop, step, first, count }
            }
            Claim::Sizes { values, from, to, walks } => {
                Claim::Sizes { values: access(&values)?, from, to, walks }
            }
            Claim::Weight(weight, shape) => Claim::Weight(weight, shape),
            Claim::Rebind { from, to, message } => Claim::Rebind { from, to, message },
            Claim::Slice { axis, size, start, count, step } => {
                Claim::Slice { axis, size, start, count, step }
            }
            Claim::NotEmpty(size, kind) => Claim::NotEmpty(size, kind),
            Claim::Window(op, window) => Claim::Window(op, window),
            Claim::Resampled(size) => Claim::Resampled(size),
            Claim::Filter { taps, filters, groups } => Claim::Filter { taps, filters, groups },
            Claim::Count { axis, size, count } => Claim::Count { axis, size, count },
        })
    }
}
