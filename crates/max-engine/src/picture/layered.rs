//! Layered layout: items are in rows, and every wire leads downwards.
//!
//! Rows come from longest paths, the order within rows from barycenter sweeps, positions from order-preserving least
//! squares. A wire that passes a row has a lane of its own there, so no wire runs through an item.

mod net;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use net::Net;

/// Something to position.
pub(super) struct Item {
    pub(super) width: f64,
    pub(super) height: f64,
    pub(super) row: Row,
}

/// Which row an item may be in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Row {
    /// Above all free items.
    First,
    /// Wherever its wires pull it.
    Free,
    /// Below all free items.
    Last,
}

/// A point on the lower or upper edge of an item.
#[derive(Clone, Copy)]
pub(super) struct Port {
    pub(super) item: usize,
    /// The distance from the left edge.
    pub(super) offset: f64,
    /// What should be vertically aligned with the other item, as a distance from the left edge: the port itself, or for
    /// small items the middle, so that chains stay straight.
    pub(super) aim: f64,
}

/// A value from the lower edge of an item to the upper edges of others.
pub(super) struct Wire {
    pub(super) from: Port,
    pub(super) to: Vec<Port>,
}

/// Distances between rows and between items.
pub(super) struct Spacing {
    /// The minimum height of the first row, through which wires lead straight.
    pub(super) first: f64,
    pub(super) below_first: f64,
    pub(super) between: f64,
    pub(super) above_last: f64,
    pub(super) column: f64,
}

/// A piece of a wire; points above each other are joined by a line, others by a curve.
pub(super) struct Strand {
    pub(super) points: Vec<(f64, f64)>,
    /// The item it ends at, unless the wire continues.
    pub(super) ends: Option<usize>,
}

/// Where everything is.
pub(super) struct Layout {
    /// The upper left corners.
    pub(super) at: Vec<(f64, f64)>,
    pub(super) strands: Vec<Strand>,
    pub(super) width: f64,
    pub(super) height: f64,
}

/// If wires need more lanes than this, the rest are drawn straight, over whatever is in their way.
const MOST_LANES: usize = 40_000;

/// Positions items.
pub(super) fn layered(items: &[Item], wires: &[Wire], spacing: &Spacing) -> Layout {
    let sequence = sequence(items.len(), wires);
    let forward = |wire: &Wire, to: &Port| sequence[wire.from.item] < sequence[to.item];
    let rows = rows(items, wires, &sequence);
    let mut net = Net::new(items, &rows);
    let mut direct = Vec::new();
    for wire in wires {
        let (mut ends, back): (Vec<Port>, Vec<Port>) = wire.to.iter().partition(|to| forward(wire, to));
        direct.extend(back.into_iter().map(|to| (wire.from, to)));
        ends.sort_by_key(|to| rows[to.item]);
        let far = ends.last().map_or(0, |to| rows[to.item] - rows[wire.from.item] - 1);
        if net.vertices.len() + far > items.len() + MOST_LANES {
            let near = |to: &Port| rows[to.item] == rows[wire.from.item] + 1;
            direct.extend(ends.iter().filter(|to| !near(to)).map(|&to| (wire.from, to)));
            ends.retain(near);
        }
        net.lead(wire.from, &ends, &rows);
    }
    net.order();
    let x = net.place(spacing.column);
    net.layout(items, &rows, x, &direct, spacing)
}

/// The rank of each item in an order that follows the wires; where they form cycles, the lowest-numbered item is next.
fn sequence(count: usize, wires: &[Wire]) -> Vec<usize> {
    let mut missing = vec![0; count];
    let mut next: Vec<Vec<usize>> = vec![Vec::new(); count];
    for wire in wires {
        for to in &wire.to {
            missing[to.item] += 1;
            next[wire.from.item].push(to.item);
        }
    }
    const UNSEEN: usize = usize::MAX;
    let mut sequence = vec![UNSEEN; count];
    let mut ready: BinaryHeap<_> = (0..count).filter(|&i| missing[i] == 0).map(Reverse).collect();
    let (mut placed, mut lowest) = (0, 0);
    while placed < count {
        let item = match ready.pop() {
            Some(Reverse(item)) => item,
            None => {
                lowest = (lowest..count).find(|&i| sequence[i] == UNSEEN).unwrap_or(lowest);
                lowest
            }
        };
        if sequence[item] != UNSEEN {
            continue;
        }
        sequence[item] = placed;
        placed += 1;
        for &to in &next[item] {
            missing[to] -= 1;
            if missing[to] == 0 {
                ready.push(Reverse(to));
            }
        }
    }
    sequence
}

/// The row of each item: as high as its wires allow, except that an item without inputs is right above its first reader.
fn rows(items: &[Item], wires: &[Wire], sequence: &[usize]) -> Vec<usize> {
    let mut leaving: Vec<Vec<&Wire>> = (0..items.len()).map(|_| Vec::new()).collect();
    let mut is_source = vec![true; items.len()];
    for wire in wires {
        leaving[wire.from.item].push(wire);
        wire.to.iter().for_each(|to| is_source[to.item] = false);
    }
    let mut in_order: Vec<usize> = (0..items.len()).collect();
    in_order.sort_by_key(|&item| sequence[item]);
    let mut rows: Vec<usize> = items.iter().map(|item| (item.row != Row::First) as usize).collect();
    let targets = |item: usize| {
        let wires = leaving[item].iter().flat_map(|wire| &wire.to);
        wires.map(|to| to.item).filter(move |&to| sequence[item] < sequence[to])
    };
    for &item in &in_order {
        targets(item).for_each(|to| rows[to] = rows[to].max(rows[item] + 1));
    }
    let is_last = |item: usize| items[item].row == Row::Last;
    let last = 1 + (0..items.len()).filter(|&i| !is_last(i)).map(|i| rows[i]).max().unwrap_or(0);
    (0..items.len()).filter(|&i| is_last(i)).for_each(|item| rows[item] = last);
    for &item in &in_order {
        if is_source[item]
            && items[item].row == Row::Free
            && let Some(reader) = targets(item).map(|to| rows[to]).min()
        {
            rows[item] = reader - 1;
        }
    }
    rows
}
