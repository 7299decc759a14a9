//! Runs regions: programs of their own, on memory of the program that they are part of.

use std::sync::Arc;

use max_compiler::program::{Control, Nested};
use max_core::kernel::Slot;
use max_core::{Result, bail};
use max_kernels::Memory;

use super::state::{NotFinite, Running, State};
use super::storage::{Given, Storage, Table};
use super::{Ready, Runtime};
use crate::observe::Observer;

impl Runtime {
    /// Runs the regions of a step.
    pub(super) fn nested(
        &self,
        nested: &Nested,
        running: Running,
        table: &Table,
        regions: &mut [Storage],
        observer: &Observer,
    ) -> Result<()> {
        let memory = |slots: &[Slot]| slots.iter().map(|&slot| table.slot(slot)).collect::<Vec<_>>();
        let shapes = nested.inputs.iter().map(|&slot| running.segment.shape(slot));
        let shapes = shapes.collect::<Result<Vec<_>>>()?;
        let (inputs, outputs) = (memory(&nested.inputs), memory(&nested.outputs));
        let given = Given::Memory { inputs: &inputs, shapes: &shapes, outputs: &outputs };
        let flag = |slot: Slot| table.slot(slot).first_byte().map(|byte| byte != 0);
        let (region, spare) = match &nested.control {
            Control::Call(region) => (*region, None),
            Control::Cond { flag: chosen, regions: [then, otherwise] } => {
                (if flag(*chosen)? { *then } else { *otherwise }, None)
            }
            Control::While { flag: first, region, spare } => {
                if !flag(*first)? {
                    return self.pass_on(nested, running, &inputs, &outputs);
                }
                (*region, Some(memory(spare)))
            }
        };
        let callee = &self.regions[region];
        let ready = callee.ready_for(shapes.iter().copied(), running.bindings)?;
        let observer = &observer.inside();
        let Some(spare) = spare else {
            return callee.run_nested(&ready, given, &mut regions[region], observer);
        };
        let in_spare = callee.repeat(&ready, given, &spare, &mut regions[region], observer)?;
        if in_spare { self.pass_on(nested, running, &spare, &outputs) } else { Ok(()) }
    }

    /// Runs the whole program as a region.
    fn run_nested(
        &self,
        ready: &Ready,
        given: Given,
        storage: &mut Storage,
        observer: &Observer,
    ) -> Result<()> {
        let mut state = State::new(self, given, std::mem::take(storage));
        let result = self.segments(ready, &mut state, observer);
        *storage = state.storage;
        result
    }

    /// Runs the program on its inputs, and then on its own outputs, until the last of these is false. Runs write to the
    /// given outputs and to others in turn; returns whether the last one wrote to the others.
    fn repeat(
        &self,
        ready: &Arc<Ready>,
        given: Given,
        spare: &[Memory],
        storage: &mut Storage,
        observer: &Observer,
    ) -> Result<bool> {
        let Given::Memory { inputs, shapes, outputs } = given else {
            bail!(internal, "a loop without memory for its outputs");
        };
        let carried = outputs.len() - 1;
        let (odd, even) = (after(outputs, inputs, carried), after(spare, inputs, carried));
        let turns = [
            Given::Memory { inputs, shapes, outputs },
            Given::Memory { inputs: &odd, shapes, outputs: spare },
            Given::Memory { inputs: &even, shapes, outputs },
        ];
        // The first run has the first turn, and the others have the second and the third.
        let next = |turn: usize| if turn == 1 { 2 } else { 1 };
        let again = |turn: usize| -> Result<bool> {
            let written = if turn == 1 { spare } else { outputs };
            Ok(written[carried].first_byte()? != 0)
        };
        let mut turn = 0;
        if self.program.segments.len() > 1 || observer.checks_values() {
            loop {
                self.run_nested(ready, turns[turn], storage, observer)?;
                if !again(turn)? {
                    return Ok(turn == 1);
                }
                turn = next(turn);
            }
        }
        let running = Running { number: 0, segment: &ready.first, bindings: &ready.bindings };
        storage.reserve(self, given, 0, &ready.first)?;
        let mut regions = std::mem::take(&mut storage.regions);
        let mut tables = Vec::with_capacity(turns.len());
        for given in turns {
            tables.push(storage.table(self, given, 0, &ready.first, Default::default())?);
        }
        loop {
            self.steps_on(running, &mut tables[turn], &mut regions, &mut NotFinite::new(), observer)?;
            if !again(turn)? {
                break;
            }
            turn = next(turn);
        }
        drop(tables);
        storage.regions = regions;
        Ok(turn == 1)
    }

    /// Copies what a loop has carried to where its outputs belong.
    fn pass_on(&self, nested: &Nested, running: Running, from: &[Memory], to: &[Memory]) -> Result<()> {
        let carried = nested.outputs.len() - 1;
        for ((slot, from), to) in nested.outputs[..carried].iter().zip(from).zip(to) {
            let (shape, dtype) = (running.segment.shape(*slot)?, self.program.slots[slot.0 as usize].dtype);
            if !shape.contains(&0) {
                to.buffer(dtype, shape)?.inplace_copy_from(&from.buffer(dtype, shape)?)?;
            }
        }
        Ok(())
    }
}

/// The inputs of a run after another one: what that wrote, and what stays the same.
fn after<'a>(written: &[Memory<'a>], inputs: &[Memory<'a>], carried: usize) -> Vec<Memory<'a>> {
    written[..carried].iter().chain(&inputs[carried..]).copied().collect()
}
