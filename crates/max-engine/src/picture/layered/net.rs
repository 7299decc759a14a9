//! Rows of items and of lanes for the wires that pass: their order, then their positions.

use super::{Item, Layout, Port, Row, Spacing, Strand};

/// The distance between lanes.
const LANE: f64 = 14.0;
/// How many sweeps sort rows and position them; in the last ones, rows are positioned between those above and below.
const ORDER_SWEEPS: usize = 12;
const PLACE_SWEEPS: usize = 48;
const LAST_SWEEPS: usize = 24;

/// Items and wire lanes, linked from row to row.
pub(super) struct Net {
    /// Widths; the items come first.
    pub(super) vertices: Vec<f64>,
    items: usize,
    rows: Vec<Vec<usize>>,
    /// The index of each vertex in its row.
    place: Vec<usize>,
    links: Vec<Link>,
    above: Vec<Vec<usize>>,
    below: Vec<Vec<usize>>,
}

/// Links a vertex to one in the next row.
#[derive(Clone, Copy)]
struct Link {
    from: Port,
    to: Port,
}

impl Net {
    pub(super) fn new(items: &[Item], rows: &[usize]) -> Net {
        let count = items.len();
        let mut net = Net {
            vertices: items.iter().map(|item| item.width).collect(),
            items: count,
            rows: vec![Vec::new(); rows.iter().max().map_or(0, |last| last + 1)],
            place: vec![0; count],
            links: Vec::new(),
            above: vec![Vec::new(); count],
            below: vec![Vec::new(); count],
        };
        (0..count).for_each(|item| net.stand(item, rows[item]));
        net
    }

    fn stand(&mut self, vertex: usize, row: usize) {
        self.place[vertex] = self.rows[row].len();
        self.rows[row].push(vertex);
    }

    fn link(&mut self, from: Port, to: Port) {
        self.below[from.item].push(self.links.len());
        self.above[to.item].push(self.links.len());
        self.links.push(Link { from, to });
    }

    /// Routes a wire to its ends, which are sorted by row: one lane, from which the ends branch off.
    pub(super) fn lead(&mut self, mut from: Port, ends: &[Port], rows: &[usize]) {
        let mut row = rows[from.item];
        let mut ends = ends;
        while !ends.is_empty() {
            row += 1;
            let (here, further) = ends.split_at(ends.partition_point(|to| rows[to.item] <= row));
            here.iter().for_each(|&to| self.link(from, to));
            ends = further;
            if !ends.is_empty() {
                let lane = self.vertices.len();
                self.vertices.push(0.0);
                self.place.push(0);
                self.above.push(Vec::new());
                self.below.push(Vec::new());
                self.stand(lane, row);
                let lane = Port { item: lane, offset: 0.0, aim: 0.0 };
                self.link(from, lane);
                from = lane;
            }
        }
    }

    /// The position of a port in the order of its row.
    fn rank(&self, port: Port) -> f64 {
        let width = self.vertices[port.item];
        self.place[port.item] as f64 + if width > 0.0 { 0.9 * port.offset / width } else { 0.45 }
    }

    /// Sorts rows so that few links cross.
    pub(super) fn order(&mut self) {
        let mut best = (self.crossings(), self.rows.clone());
        for sweep in 0..ORDER_SWEEPS {
            if best.0 == 0 {
                break;
            }
            let down = sweep % 2 == 0;
            for step in 0..self.rows.len() {
                let row = if down { step } else { self.rows.len() - 1 - step };
                self.sort(row, down);
            }
            let crossings = self.crossings();
            if crossings < best.0 {
                best = (crossings, self.rows.clone());
            }
        }
        self.rows = best.1;
        for row in &self.rows {
            row.iter().enumerate().for_each(|(place, &vertex)| self.place[vertex] = place);
        }
    }

    /// Sorts a row by the positions of its neighbours, above or below.
    fn sort(&mut self, row: usize, up: bool) {
        let key = |&vertex: &usize| {
            let links = if up { &self.above[vertex] } else { &self.below[vertex] };
            let other = |&link: &usize| if up { self.links[link].from } else { self.links[link].to };
            let sum: f64 = links.iter().map(|link| self.rank(other(link))).sum();
            if links.is_empty() { self.place[vertex] as f64 } else { sum / links.len() as f64 }
        };
        let mut keyed: Vec<(f64, usize)> = self.rows[row].iter().map(|v| (key(v), *v)).collect();
        keyed.sort_by(|a, b| a.0.total_cmp(&b.0));
        for (place, &(_, vertex)) in keyed.iter().enumerate() {
            self.place[vertex] = place;
            self.rows[row][place] = vertex;
        }
    }

    /// How many pairs of links cross.
    fn crossings(&self) -> usize {
        let crossings = self.rows.iter().map(|row| {
            let links = row.iter().flat_map(|&vertex| &self.below[vertex]).map(|&link| self.links[link]);
            let mut ends: Vec<(f64, f64)> = links.map(|l| (self.rank(l.from), self.rank(l.to))).collect();
            ends.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
            inversions(&mut ends.into_iter().map(|(_, to)| to).collect::<Vec<_>>())
        });
        crossings.sum()
    }

    /// The left edges of all vertices: close to their neighbours, in the order of their rows.
    pub(super) fn place(&self, column: f64) -> Vec<f64> {
        let mut x = vec![0.0; self.vertices.len()];
        let gap = |a: usize, b: usize| if a.max(b) < self.items { column } else { LANE };
        for row in &self.rows {
            let mut next = 0.0;
            for (place, &vertex) in row.iter().enumerate() {
                x[vertex] = next;
                next += self.vertices[vertex] + row.get(place + 1).map_or(0.0, |&right| gap(vertex, right));
            }
        }
        for sweep in 0..PLACE_SWEEPS {
            // Downwards last, so that chains hang straight; then both ways, to settle between above and below.
            let (above, below) = match sweep {
                s if s + LAST_SWEEPS >= PLACE_SWEEPS => (true, true),
                s => (s % 2 == 1, s % 2 == 0),
            };
            for step in 0..self.rows.len() {
                let row = &self.rows[if sweep % 2 == 1 { step } else { self.rows.len() - 1 - step }];
                let wanted: Vec<(f64, f64)> = row.iter().map(|&v| self.wanted(v, &x, above, below)).collect();
                let gaps = row.windows(2).map(|pair| self.vertices[pair[0]] + gap(pair[0], pair[1]));
                for (&vertex, at) in row.iter().zip(spread(&wanted, gaps)) {
                    x[vertex] = at;
                }
            }
        }
        let left = x.iter().copied().fold(f64::INFINITY, f64::min);
        x.iter_mut().for_each(|x| *x = (*x - left).round());
        x
    }

    /// Where a vertex would be on its own, and how much that matters.
    fn wanted(&self, vertex: usize, x: &[f64], above: bool, below: bool) -> (f64, f64) {
        let (mut sum, mut weight) = (0.0, 0.0);
        let mut pull = |own: Port, other: Port| {
            let lanes = (own.item >= self.items) as usize + (other.item >= self.items) as usize;
            // A vertex with only one neighbour follows it and does not pull; and chains of items are straighter than lanes.
            let hangs = self.hangs(own.item) || self.hangs(other.item);
            let strength = if hangs { 0.02 } else { [1.0, 0.003, 30.0][lanes] };
            let has_width = self.vertices[own.item].min(self.vertices[other.item]) > 0.0;
            let apart = if has_width { other.aim - own.aim } else { other.offset - own.offset };
            sum += strength * (x[other.item] + apart);
            weight += strength;
        };
        if above {
            self.above[vertex].iter().for_each(|&l| pull(self.links[l].to, self.links[l].from));
        }
        if below {
            self.below[vertex].iter().for_each(|&l| pull(self.links[l].from, self.links[l].to));
        }
        if weight > 0.0 { (sum / weight, weight) } else { (x[vertex], 0.01) }
    }

    fn hangs(&self, vertex: usize) -> bool {
        self.above[vertex].len() + self.below[vertex].len() == 1
    }

    pub(super) fn layout(
        &self,
        items: &[Item],
        rows: &[usize],
        x: Vec<f64>,
        direct: &[(Port, Port)],
        spacing: &Spacing,
    ) -> Layout {
        let mut bands: Vec<(f64, f64)> = Vec::with_capacity(self.rows.len());
        let free = |row: usize| self.rows[row].iter().any(|&v| v < self.items && items[v].row == Row::Free);
        for (number, row) in self.rows.iter().enumerate() {
            let tallest =
                row.iter().filter(|&&v| v < self.items).map(|&v| items[v].height).fold(0.0, f64::max);
            let top = match bands.last() {
                None => {
                    bands.push((0.0, spacing.first.max(tallest)));
                    continue;
                }
                Some(&(_, bottom)) if number == 1 => bottom + spacing.below_first,
                Some(&(_, bottom)) if free(number) => bottom + spacing.between,
                Some(&(_, bottom)) => bottom + spacing.above_last,
            };
            bands.push((top, top + tallest));
        }
        let y = |item: usize| {
            let (top, bottom) = bands[rows[item]];
            let room = bottom - top - items[item].height;
            match (self.above[item].is_empty(), self.below[item].is_empty()) {
                _ if items[item].row == Row::First => top,
                (true, false) => top + room,
                (false, true) => top,
                _ => top + (room / 2.0).round(),
            }
        };
        let at: Vec<(f64, f64)> = (0..items.len()).map(|item| (x[item], y(item))).collect();
        let x_of = |port: Port| x[port.item] + port.offset;
        let mut strands = Vec::with_capacity(self.links.len() + direct.len());
        for (number, row) in self.rows.iter().enumerate() {
            for &link in row.iter().flat_map(|&vertex| &self.below[vertex]) {
                let Link { from, to } = self.links[link];
                let mut points = Vec::with_capacity(4);
                if from.item < self.items {
                    points.push((x_of(from), at[from.item].1 + items[from.item].height));
                }
                points.push((x_of(from), bands[number].1));
                points.push((x_of(to), bands[number + 1].0));
                let ends = (to.item < self.items).then_some(to.item);
                points.push((x_of(to), ends.map_or(bands[number + 1].1, |item| at[item].1)));
                points.dedup();
                strands.push(Strand { points, ends });
            }
        }
        for &(from, to) in direct {
            let start = (x_of(from), at[from.item].1 + items[from.item].height);
            strands.push(Strand { points: vec![start, (x_of(to), at[to.item].1)], ends: Some(to.item) });
        }
        let right = x.iter().zip(&self.vertices).map(|(x, width)| x + width).fold(0.0, f64::max);
        Layout { at, strands, width: right, height: bands.last().map_or(0.0, |band| band.1) }
    }
}

/// The positions closest to the wanted ones, weighted, that keep the gaps between neighbours.
///
/// Where wanted positions are too close, neighbours form a pool and move together.
fn spread(wanted: &[(f64, f64)], gaps: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut shift = 0.0;
    let mut shifts = vec![0.0; wanted.len()];
    for (place, gap) in gaps.enumerate() {
        shift += gap;
        shifts[place + 1] = shift;
    }
    let mut pools: Vec<(f64, f64, usize)> = Vec::with_capacity(wanted.len());
    for (&(at, weight), shift) in wanted.iter().zip(&shifts) {
        let mut pool = (at - shift, weight, 1);
        while let Some(&(left, heavy, count)) = pools.last().filter(|left| left.0 > pool.0) {
            let total = heavy + pool.1;
            pool = ((left * heavy + pool.0 * pool.1) / total, total, count + pool.2);
            pools.pop();
        }
        pools.push(pool);
    }
    let pooled = pools.iter().flat_map(|&(at, _, count)| std::iter::repeat_n(at, count));
    pooled.zip(shifts).map(|(at, shift)| at + shift).collect()
}

/// How many pairs are in the wrong order; sorts the values.
fn inversions(values: &mut [f64]) -> usize {
    if values.len() < 2 {
        return 0;
    }
    let (left, right) = values.split_at_mut(values.len() / 2);
    let mut count = inversions(left) + inversions(right);
    let mut merged = Vec::with_capacity(left.len() + right.len());
    let mut taken = 0;
    for &value in right.iter() {
        while taken < left.len() && left[taken] <= value {
            merged.push(left[taken]);
            taken += 1;
        }
        count += left.len() - taken;
        merged.push(value);
    }
    merged.extend_from_slice(&left[taken..]);
    values.copy_from_slice(&merged);
    count
}
