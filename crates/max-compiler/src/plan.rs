//! Where temporaries are in the arenas of a segment, one per device: best fit by lifetime, aligned to 64 bytes.

use std::collections::{BTreeMap, BTreeSet};

use max_core::{Result, bail};

use crate::program::{Lifetime, Origin, Program};

/// Temporaries are aligned to this many bytes: a cache line, and the widest vector register.
pub const ALIGNMENT: usize = 64;

/// The arenas of one segment for known sizes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryPlan {
    /// The offset of each temporary of the segment in the arena of its device, by slot; `None` for other slots.
    pub offsets: Vec<Option<usize>>,
    /// The bytes of the arena on each device of the program.
    pub bytes: Vec<usize>,
    /// The bytes of all temporaries without reuse.
    pub bytes_without_reuse: usize,
}

/// Plans the arenas of a segment, given the bytes of every slot.
pub fn plan(program: &Program, segment: usize, sizes: &[usize]) -> Result<MemoryPlan> {
    let steps = program.segments[segment].steps.clone();
    // Temporaries in the order in which they are first used, and in the order in which they are last used.
    let mut births: Vec<(usize, &Lifetime)> = Vec::with_capacity(program.slots.len());
    births.extend(program.slots.iter().enumerate().filter_map(|(slot, info)| match &info.origin {
        Origin::Temporary(lifetime) if steps.contains(&lifetime.first) => Some((slot, lifetime)),
        _ => None,
    }));
    let mut deaths: Vec<(usize, usize)> =
        births.iter().map(|(slot, lifetime)| (lifetime.last, *slot)).collect();
    births.sort_by_key(|(_, lifetime)| lifetime.first);
    deaths.sort_unstable();
    let (mut births, mut deaths) = (births.into_iter().peekable(), deaths.into_iter().peekable());
    let mut plan = MemoryPlan { offsets: vec![None; program.slots.len()], ..MemoryPlan::default() };
    let mut arenas: Vec<Arena> = program.devices.iter().map(|_| Arena::default()).collect();
    let home = |slot: usize| program.device_number(program.slots[slot].device);
    let mut passed_on = vec![false; program.slots.len()];
    for step in steps {
        while let Some((slot, lifetime)) = births.next_if(|(_, lifetime)| lifetime.first == step) {
            let size = round_up(sizes[slot])?;
            plan.bytes_without_reuse = add(plan.bytes_without_reuse, size)?;
            let fits = |&from: &usize| round_up(sizes[from]) == Ok(size) && home(from) == home(slot);
            let heir = lifetime.reuses.map(|from| from.0 as usize).filter(fits);
            let offset = match heir {
                Some(from) => {
                    passed_on[from] = true;
                    plan.offsets[from]
                }
                None => Some(arenas[home(slot)].take(size)?),
            };
            plan.offsets[slot] = offset;
        }
        while let Some((_, slot)) = deaths.next_if(|(last, _)| *last == step) {
            if let Some(offset) = plan.offsets[slot].filter(|_| !passed_on[slot]) {
                arenas[home(slot)].give_back(offset, round_up(sizes[slot])?);
            }
        }
    }
    plan.bytes = arenas.iter().map(|arena| arena.end).collect();
    Ok(plan)
}

fn round_up(size: usize) -> Result<usize> {
    match size.checked_next_multiple_of(ALIGNMENT) {
        Some(size) => Ok(size),
        None => bail!(memory, "a temporary of {size} bytes is too large"),
    }
}

fn add(a: usize, b: usize) -> Result<usize> {
    match a.checked_add(b).filter(|&sum| isize::try_from(sum).is_ok()) {
        Some(sum) => Ok(sum),
        None => bail!(memory, "the temporaries of an execution exceed 64 bits"),
    }
}

/// Free blocks below the end of an arena, indexed by size and by offset.
#[derive(Default)]
struct Arena {
    end: usize,
    by_size: BTreeSet<(usize, usize)>,
    by_place: BTreeMap<usize, usize>,
}

impl Arena {
    /// The smallest block that is large enough, or the end of the arena together with a free block before it.
    fn take(&mut self, size: usize) -> Result<usize> {
        if size == 0 {
            return Ok(0);
        }
        if let Some(&(len, offset)) = self.by_size.range((size, 0)..).next() {
            self.remove(offset, len);
            if len > size {
                self.insert(offset + size, len - size);
            }
            return Ok(offset);
        }
        let last = self.by_place.last_key_value().map(|(&offset, &len)| (offset, len));
        let start = match last {
            Some((offset, len)) if offset + len == self.end => {
                self.remove(offset, len);
                offset
            }
            _ => self.end,
        };
        self.end = add(start, size)?;
        Ok(start)
    }

    /// Frees a block and merges it with its neighbours.
    fn give_back(&mut self, mut offset: usize, mut len: usize) {
        if len == 0 {
            return;
        }
        let before = self.by_place.range(..offset).next_back().map(|(&o, &l)| (o, l));
        if let Some((o, l)) = before.filter(|(o, l)| o + l == offset) {
            self.remove(o, l);
            (offset, len) = (o, l + len);
        }
        if let Some(&l) = self.by_place.get(&(offset + len)) {
            self.remove(offset + len, l);
            len += l;
        }
        self.insert(offset, len);
    }

    fn insert(&mut self, offset: usize, len: usize) {
        self.by_place.insert(offset, len);
        self.by_size.insert((len, offset));
    }

    fn remove(&mut self, offset: usize, len: usize) {
        self.by_place.remove(&offset);
        self.by_size.remove(&(len, offset));
    }
}

/// Proves a plan free of overlap, from the steps alone: temporaries that are in use at the same step are disjoint, except
/// where one takes over the memory of another that the step reads for the last time, element by element. Different
/// devices have different arenas.
pub fn check(program: &Program, segment: usize, sizes: &[usize], plan: &MemoryPlan) -> Result<()> {
    let steps = program.segments[segment].steps.clone();
    let mut uses: BTreeMap<usize, (usize, usize)> = BTreeMap::new();
    for (number, step) in program.steps.iter().enumerate() {
        for slot in step.slots() {
            let slot = slot.0 as usize;
            if plan.offsets[slot].is_some() {
                uses.entry(slot).or_insert((number, number)).1 = number;
            }
        }
    }
    for later in &program.segments {
        for slot in later.facts.iter().flat_map(|fact| fact.claim.reads()) {
            if let Some((_, last)) = uses.get_mut(&(slot.0 as usize)) {
                *last = (*last).max(later.steps.start);
            }
        }
    }
    for step in steps {
        let mut live: Vec<(usize, usize, usize, usize)> = Vec::new();
        for (&slot, _) in uses.iter().filter(|(_, (first, last))| (*first..=*last).contains(&step)) {
            let Some(offset) = plan.offsets[slot] else { continue };
            let home = program.device_number(program.slots[slot].device);
            let room = plan.bytes.get(home).copied().unwrap_or(0);
            if offset % ALIGNMENT != 0 || offset + sizes[slot] > room {
                bail!(internal, "slot {slot} is at {offset} with {} bytes in {room}", sizes[slot]);
            }
            if sizes[slot] > 0 {
                live.push((home, offset, sizes[slot], slot));
            }
        }
        live.sort_unstable();
        for pair in live.windows(2) {
            let [(home, offset, size, a), (next_home, next, _, b)] = pair else { continue };
            let heir = |old: usize, new: usize| {
                let lifetime = match &program.slots[new].origin {
                    Origin::Temporary(lifetime) => lifetime,
                    _ => return false,
                };
                let reuses = lifetime.reuses.is_some_and(|from| from.0 as usize == old);
                reuses && uses[&old].1 == step && uses[&new].0 == step && sizes[old] == sizes[new]
            };
            let apart = home != next_home || offset + size <= *next;
            if !apart && !(offset == next && (heir(*a, *b) || heir(*b, *a))) {
                bail!(internal, "slots {a} and {b} overlap in step {step}");
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use max_core::{Bindings, DeviceRef};
    use max_graph::text;

    use crate::{Bound, Options, Program, Target, compile};

    fn bound(graph: &str) -> (Program, Bound) {
        let target = Target {
            devices: vec![DeviceRef::CPU],
            options: Options { fuse: false, fold_exactly: false, nccl: false },
        };
        let program = compile(text::parse(graph).unwrap(), &target, &mut |_, _| ()).unwrap();
        let bound = program.bind(0, &Bindings::new()).unwrap();
        (program, bound)
    }

    const CHAIN: &str = r#"graph "chain"(%0: float32[100]) {
      %1 = exp(%0) : float32[100]
      %2 = reduce(%1) {kind = "sum", axis = 0} : float32[1]
      %3 = mul(%1, %2) : float32[100]
      %4 = sin(%3) : float32[100]
      %5 = add(%4, %3) : float32[100]
      return %5
    }"#;

    #[test]
    fn memory_is_reused() {
        let (program, bound) = bound(CHAIN);
        // exp and sum, then mul in place of exp, then sin beside it.
        assert_eq!(bound.plan.bytes_without_reuse, 3 * 448 + 64);
        assert_eq!(bound.plan.bytes, [2 * 448]);
        assert!(program.check_plan(0, &bound).is_ok());
    }

    #[test]
    fn a_wrong_plan_is_found() {
        let (program, right) = bound(CHAIN);
        let placed: Vec<usize> =
            (0..right.plan.offsets.len()).filter(|&s| right.plan.offsets[s].is_some()).collect();
        for &slot in &placed {
            let (_, mut wrong) = bound(CHAIN);
            wrong.plan.offsets[slot] = Some(wrong.plan.bytes[0]);
            assert!(program.check_plan(0, &wrong).is_err(), "slot {slot} is outside");
            wrong.plan.offsets[slot] = Some(4);
            assert!(program.check_plan(0, &wrong).is_err(), "slot {slot} is not aligned");
        }
        let (_, mut wrong) = bound(CHAIN);
        placed.iter().for_each(|&slot| wrong.plan.offsets[slot] = Some(0));
        assert!(program.check_plan(0, &wrong).unwrap_err().message().contains("overlap"));
    }
}
