//! A nest as CUDA C++.
//!
//! Names say what they are: `p` and a number is the memory of an access, `b` where a walk is at the start of a row and
//! `w` at a vector, `x` are vectors of a load, `k` values that are kept from pass to pass, `r` values of a row, `e` those
//! of an element, `a` accumulators, `t` the totals of those that count from zero at each step of a pass, `o` what is stored.

use std::fmt::Write;

use max_core::kernel::{Instr, Level, Reduction};
use max_core::scalar::source::{self, register_type};
use max_core::{DType, Result, bail};

use super::mapping::{Lies, Mapping, Scheme, lies_across};
use super::nest::Nest;
use super::words::{cast_text, combiner, divisor, literal_text, memory_type};
use crate::cuda::{Address, Param};
use crate::loops::{identity, register};

/// A function, its name left open, and its parameters.
pub(super) struct Written {
    pub(super) code: String,
    pub(super) params: Vec<Param>,
}

/// What stands for the name of the function.
pub(super) const NAME: &str = "NAME";

/// Writes a nest, mapped to threads.
pub(super) fn write(nest: &Nest, mapping: &Mapping) -> Result<Written> {
    let mut writer = Writer {
        nest,
        mapping,
        names: Vec::new(),
        params: Vec::new(),
        body: String::new(),
        depth: 1,
        kept: vec![false; nest.code.len()],
        loaded: vec![false; nest.code.len()],
    };
    writer.function()?;
    let [x, y] = mapping.block();
    let (index, count) = if nest.wide { ("i64", "u64") } else { ("int", "unsigned") };
    let code = format!(
        "extern \"C\" __global__ void __launch_bounds__({}) {NAME}({}) {{\n    typedef {index} I;\n    \
         typedef {count} U;\n{}}}\n",
        x * y,
        writer.names.join(", "),
        writer.body
    );
    Ok(Written { code, params: writer.params })
}

/// How a load is held until it is used.
#[derive(Clone, Copy)]
enum Held {
    /// As neighbours in memory.
    Packed,
    /// As one element for all.
    Same,
    /// As an element each.
    Apart,
}

struct Writer<'a> {
    nest: &'a Nest,
    mapping: &'a Mapping,
    /// The parameters as they are declared, and their values.
    names: Vec<String>,
    params: Vec<Param>,
    body: String,
    depth: usize,
    /// Values that passes leave to later ones.
    kept: Vec<bool>,
    /// Loads that have happened, where memory is read once.
    loaded: Vec<bool>,
}

impl Writer<'_> {
    fn line(&mut self, text: &str) {
        if text.starts_with('}') {
            self.depth -= 1;
        }
        if text.starts_with('#') {
            _ = writeln!(self.body, "{text}");
        } else {
            _ = writeln!(self.body, "{:1$}{text}", "", 4 * self.depth);
        }
        if text.ends_with('{') {
            self.depth += 1;
        }
    }

    fn param(&mut self, kind: &str, name: &str, value: Param) -> String {
        let declared = format!("{kind} {name}");
        if !self.names.contains(&declared) {
            self.names.push(declared);
            self.params.push(value);
        }
        name.to_string()
    }

    fn number(&mut self, name: &str, value: i64) -> String {
        self.param("i64", name, Param::Number(value))
    }

    fn memory(&mut self, access: usize) -> String {
        let seen = &self.nest.accesses[access];
        let kind = format!("{}*", memory_type(seen.dtype));
        self.param(&kind, &format!("p{access}"), Param::Address(Address::of(seen)))
    }

    fn type_of(&self, at: usize) -> &'static str {
        register_type(self.nest.dtypes[at])
    }

    fn vector(&self) -> usize {
        self.mapping.vector
    }

    /// Whether rows lie beside each other in a vector.
    fn is_across(&self) -> bool {
        matches!(self.mapping.scheme, Scheme::Across { .. })
    }

    /// Whether vectors lie along the last axis that is kept.
    fn along_last(&self) -> bool {
        !matches!(self.mapping.scheme, Scheme::Along { .. })
    }

    fn function(&mut self) -> Result<()> {
        for at in 0..self.nest.code.len() {
            if self.nest.live[at] && self.nest.is_constant(at) {
                self.define(at, &format!("const {} r{at}", self.type_of(at)), "")?;
            }
        }
        if !matches!(self.mapping.scheme, Scheme::Tile { .. }) {
            let items = self.mapping.items(self.nest);
            self.number("items", items);
        }
        match self.mapping.scheme {
            Scheme::Tile { axis, side, vector } => self.tiles(axis, side, vector),
            Scheme::Flat => {
                let block = self.mapping.items_of_block();
                self.line(&format!("const U first = (U)blockIdx.x * {block} + threadIdx.x;"));
            }
            Scheme::Along { group } => {
                let rows = self.mapping.items_of_block();
                self.line(&format!("const U part = threadIdx.x % {group};"));
                self.line(&format!("const U item = (U)blockIdx.x * {rows} + threadIdx.x / {group};"));
                self.row_start();
            }
            Scheme::Across { across, down } => {
                let room = (across * down * self.vector() * self.largest_accumulator()).div_ceil(16);
                self.line(&format!("__shared__ uint4 room[{room}];"));
                self.line("const U part = threadIdx.y;");
                self.line(&format!("const U item = (U)blockIdx.x * {across} + threadIdx.x;"));
                self.row_start();
            }
        }
        let last = self.nest.last();
        let needed = self.demands(last);
        for (stage, needed) in needed.iter().enumerate() {
            self.row_code(stage)?;
            self.pass(stage, needed, stage == last)?;
        }
        self.row_stores();
        Ok(())
    }

    /// The bytes of the largest accumulator: a position comes with its value.
    fn largest_accumulator(&self) -> usize {
        let reductions = self.nest.code.iter().zip(&self.nest.live).filter(|(_, live)| **live);
        let sizes = reductions.filter_map(|(instr, _)| match instr {
            Instr::Reduce(kind, _) if kind.gives_index() => Some(16),
            Instr::Reduce(_, arg) => Some(register(self.nest.dtypes[arg.0 as usize]).size_in_bytes()),
            _ => None,
        });
        sizes.max().unwrap_or(1)
    }

    /// Where the row of a thread starts. Threads without one have the first, and write nothing.
    fn row_start(&mut self) {
        let length = self.nest.row_length();
        self.number("length", length);
        self.line("const bool here = item < (U)items;");
        self.split("(here ? item : (U)0)");
        for walk in 0..self.nest.walks.len() {
            let place = self.place(walk);
            let of = if self.nest.walks[walk].counted { "i64" } else { "I" };
            self.line(&format!("const {of} b{walk} = {place};"));
        }
    }

    /// The indices of the axes that are kept, of the number of an item.
    fn split(&mut self, item: &str) {
        let rank = self.nest.kept.len();
        if rank == 1 {
            self.line(&format!("const U i0 = {item};"));
            return;
        }
        self.line(&format!("U rest = {item};"));
        for axis in (1..rank).rev() {
            let mut size = self.nest.kept[axis].size;
            if axis + 1 == rank && self.along_last() {
                size /= self.vector() as i64;
            }
            let bits = if self.nest.wide { size as u64 } else { divisor(size) };
            self.number(&format!("n{axis}"), size);
            self.param("u64", &format!("d{axis}"), Param::Bits(bits));
            self.line(&format!("const U q{axis} = lane::quotient(rest, d{axis});"));
            self.line(&format!("const U i{axis} = rest - q{axis} * (U)n{axis};"));
            self.line(&format!("rest = q{axis};"));
        }
        self.line("const U i0 = rest;");
    }

    /// The position of a walk at the indices of the axes that are kept.
    fn place(&mut self, walk: usize) -> String {
        let vector = if self.along_last() { self.vector() } else { 1 };
        self.place_by(walk, vector)
    }

    /// As `place`, where the last index counts vectors.
    fn place_by(&mut self, walk: usize, vector: usize) -> String {
        let of = if self.nest.walks[walk].counted { "i64" } else { "I" };
        let mut terms = Vec::new();
        for axis in 0..self.nest.kept.len() {
            let stride = self.nest.kept[axis].strides[walk];
            if stride == 0 {
                continue;
            }
            let mut term = format!("({of})i{axis}");
            if axis + 1 == self.nest.kept.len() && vector > 1 {
                _ = write!(term, " * {vector}");
            }
            if stride != 1 {
                let name = self.number(&format!("s{walk}_{axis}"), stride);
                _ = write!(term, " * ({of}){name}");
            }
            terms.push(term);
        }
        if terms.is_empty() { "0".to_string() } else { terms.join(" + ") }
    }

    /// How far apart the elements of a vector of a walk lie.
    fn step(&mut self, walk: usize) -> String {
        let (axis, name) = match self.mapping.scheme {
            Scheme::Along { .. } => (self.nest.reduce.as_ref(), format!("s{walk}_r")),
            _ => (self.nest.kept.last(), format!("s{walk}_{}", self.nest.kept.len() - 1)),
        };
        match axis.map_or(0, |axis| axis.strides[walk]) {
            stride @ (0 | 1) => stride.to_string(),
            stride => self.number(&name, stride),
        }
    }

    /// Opens a loop over the vectors of a thread, with the positions of walks.
    fn each_vector(&mut self, walks: &[usize]) {
        let repeat = self.mapping.repeat;
        self.line("#pragma unroll");
        self.line(&format!("for (int i = 0; i < {repeat}; i++) {{"));
        match self.mapping.scheme {
            Scheme::Flat => {
                self.line(&format!("const U item = first + i * {};", self.mapping.block()[0]));
                self.line("if (item < (U)items) {");
                self.split("item");
            }
            Scheme::Tile { axis, side, .. } => {
                let (last, vectors) = (self.nest.kept.len() - 1, side / self.vector());
                self.line(&format!("const U at = i * {} + threadIdx.x;", self.mapping.block()[0]));
                self.line(&format!("const U down = at / {vectors};"));
                self.line(&format!("const U right = at % {vectors};"));
                self.line(&format!("const U i{axis} = t{axis} * {side} + down;"));
                self.line(&format!("const U i{last} = t{last} * {vectors} + right;"));
                let vector = self.vector();
                self.line(&format!("if (i{axis} < (U)m{axis} && i{last} * {vector} < (U)m{last}) {{"));
            }
            Scheme::Along { group } => {
                let vector = self.vector();
                self.line(&format!("const U j = start + (i * {group} + part) * {vector};"));
                self.line("if (here && j < (U)length) {");
            }
            Scheme::Across { down, .. } => {
                self.line(&format!("const U j = start + i * {down} + part;"));
                self.line("if (here && j < (U)length) {");
            }
        }
        for &walk in walks {
            let of = if self.nest.walks[walk].counted { "i64" } else { "I" };
            let place = match &self.nest.reduce {
                None => self.place(walk),
                Some(axis) => match axis.strides[walk] {
                    0 => format!("b{walk}"),
                    1 => format!("b{walk} + ({of})j"),
                    stride => {
                        let name = self.number(&format!("s{walk}_r"), stride);
                        format!("b{walk} + ({of})j * ({of}){name}")
                    }
                },
            };
            self.line(&format!("const {of} w{walk} = {place};"));
        }
    }

    fn end_each_vector(&mut self) {
        self.line("}");
        self.line("}");
    }

    fn each_element(&mut self) {
        self.line("#pragma unroll");
        self.line(&format!("for (int v = 0; v < {}; v++) {{", self.vector()));
    }

    /// How many elements of a vector there are.
    fn count(&mut self) -> String {
        let vector = self.vector() as i64;
        match (self.mapping.scheme, self.nest.kept.as_slice()) {
            (Scheme::Flat, [only]) if vector > 1 => {
                self.number("n0", only.size);
                format!("n0 - (i64)i0 * {vector}")
            }
            _ => vector.to_string(),
        }
    }

    /// Reads the tile of a block of everything that lies across the stores into shared memory.
    fn tiles(&mut self, axis: usize, side: usize, vector: usize) {
        let (nest, last) = (self.nest, self.nest.kept.len() - 1);
        self.line("U rest = blockIdx.x;");
        for at in (0..=last).rev() {
            let size = nest.kept[at].size;
            let tiled = at == axis || at == last;
            let count = if tiled { (size as u64).div_ceil(side as u64) as i64 } else { size };
            let name = if tiled { "t" } else { "i" };
            if tiled {
                self.number(&format!("m{at}"), size);
            }
            if at == 0 {
                self.line(&format!("const U {name}0 = rest;"));
                break;
            }
            let bits = if nest.wide { count as u64 } else { divisor(count) };
            self.number(&format!("n{at}"), count);
            self.param("u64", &format!("d{at}"), Param::Bits(bits));
            self.line(&format!("const U q{at} = lane::quotient(rest, d{at});"));
            self.line(&format!("const U {name}{at} = rest - q{at} * (U)n{at};"));
            self.line(&format!("rest = q{at};"));
        }
        let mut done = Vec::new();
        for (_, access, written) in nest.touches() {
            if written || done.contains(&access) || !lies_across(nest, axis, access) {
                continue;
            }
            done.push(access);
            let dtype = nest.accesses[access].dtype;
            let (of, pad) = (memory_type(dtype), (4 / dtype.size_in_bytes()).max(1));
            let (walk, memory) = (nest.walk_of[access], self.memory(access));
            self.line(&format!("__shared__ {of} tile{access}[{side}][{}];", side + pad));
            self.line("#pragma unroll");
            let rounds = side * side / (vector * self.mapping.block()[0]);
            self.line(&format!("for (int i = 0; i < {rounds}; i++) {{"));
            let vectors = side / vector;
            self.line(&format!("const U at = i * {} + threadIdx.x;", self.mapping.block()[0]));
            self.line(&format!("const U right = at / {vectors};"));
            self.line(&format!("const U down = at % {vectors} * {vector};"));
            self.line(&format!("const U i{axis} = t{axis} * {side} + down;"));
            self.line(&format!("const U i{last} = t{last} * {side} + right;"));
            self.line(&format!("if (i{axis} < (U)m{axis} && i{last} < (U)m{last}) {{"));
            let place = self.place_by(walk, 1);
            self.line(&format!("lane::copy<{vector}>(&tile{access}[right][down], {memory} + ({place}));"));
            self.line("}");
            self.line("}");
        }
        self.line("__syncthreads();");
    }

    /// How a load is held until it is used.
    fn seen(&self, access: usize) -> Held {
        match (self.mapping.scheme, self.mapping.lies(self.nest, access)) {
            (Scheme::Tile { axis, .. }, _) if lies_across(self.nest, axis, access) => Held::Apart,
            (_, Lies::Together) => Held::Packed,
            (_, Lies::Same) => Held::Same,
            (_, Lies::Apart) => Held::Apart,
        }
    }

    /// Reads a vector at a position as it lies in memory.
    fn fetch(&mut self, access: usize, to: &str, at: &str) {
        let vector = self.vector();
        if let Scheme::Tile { axis, .. } = self.mapping.scheme
            && lies_across(self.nest, axis, access)
        {
            self.each_element();
            self.line(&format!("{to}[v] = tile{access}[right * {vector} + v][down];"));
            self.line("}");
            return;
        }
        let (memory, count) = (self.memory(access), self.count());
        let line = match self.seen(access) {
            Held::Packed => format!("{to}.fetch({memory} + {at}, {count});"),
            Held::Same => format!("{to} = {memory}[{at}];"),
            Held::Apart => {
                let step = self.step(self.nest.walk_of[access]);
                format!("lane::fetch_apart<{vector}>({to}, {memory} + {at}, {step}, {count});")
            }
        };
        self.line(&line);
    }

    /// Reads a vector of values of rows.
    fn load(&mut self, access: usize, to: &str, at: &str) {
        let (vector, memory) = (self.vector(), self.memory(access));
        let line = match self.mapping.lies(self.nest, access) {
            Lies::Together => format!("lane::load<{vector}>({to}, {memory} + {at});"),
            Lies::Same => format!("lane::load_same<{vector}>({to}, {memory} + {at});"),
            Lies::Apart => {
                let step = self.step(self.nest.walk_of[access]);
                format!("lane::load_apart<{vector}>({to}, {memory} + {at}, {step});")
            }
        };
        self.line(&line);
    }

    fn store(&mut self, access: usize, from: &str, at: &str) {
        let (vector, memory, count) = (self.vector(), self.memory(access), self.count());
        let walk = self.nest.walk_of[access];
        let line = match self.mapping.lies(self.nest, access) {
            Lies::Together => format!("lane::store<{vector}>({memory} + {at}, {from}, {count});"),
            Lies::Same | Lies::Apart => {
                let step = self.step(walk);
                format!("lane::store_apart<{vector}>({memory} + {at}, {from}, {step}, {count});")
            }
        };
        self.line(&line);
    }

    /// A value in the loop over the elements of a vector.
    fn value(&self, at: usize) -> String {
        let row = self.nest.levels[at] == Level::Row;
        match &self.nest.code[at] {
            _ if self.nest.is_constant(at) => format!("r{at}"),
            _ if row && self.is_across() => format!("r{at}[v]"),
            _ if row => format!("r{at}"),
            Instr::Load(access) => match self.seen(*access as usize) {
                Held::Packed => format!("lane::widen(x{at}[i].get(v))"),
                Held::Same => format!("lane::widen(x{at}[i])"),
                Held::Apart => format!("lane::widen(x{at}[i][v])"),
            },
            _ if self.kept[at] => format!("k{at}[i][v]"),
            _ => format!("e{at}"),
        }
    }

    /// Writes the line that defines a value; positions are those of walks with this letter.
    fn define(&mut self, at: usize, target: &str, walks: &str) -> Result<()> {
        let nest = self.nest;
        let dtype = |arg: usize| nest.dtypes[arg];
        let values: Vec<String> = nest.code[at].args().iter().map(|arg| self.value(arg.0 as usize)).collect();
        let arg = |place: usize| nest.code[at].args()[place].0 as usize;
        let text = match &nest.code[at] {
            Instr::Literal(literal) => literal_text(*literal),
            Instr::Size(size, to) => {
                let name = self.number(&format!("z{at}"), *size);
                cast_text(DType::Int64, *to, &name)
            }
            Instr::Index(access) => {
                let access = *access as usize;
                let walk = nest.walk_of[access];
                let offset = self.number(&format!("f{access}"), nest.accesses[access].offset);
                let along = nest.levels[at] == Level::Element || self.is_across();
                match self.step(walk).as_str() {
                    step if along && self.vector() > 1 && step != "0" => {
                        format!("{offset} + {walks}{walk} + v * {step}")
                    }
                    _ => format!("{offset} + {walks}{walk}"),
                }
            }
            Instr::Apply(op, _) => source::apply(*op, dtype(arg(0)), [&values[0], &values[1]]),
            Instr::Select(_) => format!("{} ? {} : {}", values[0], values[1], values[2]),
            Instr::Cast(_, to) => cast_text(dtype(arg(0)), *to, &values[0]),
            Instr::Random(distribution, of, _) => {
                let kind = register_type(*of);
                let (seed, position) = (&values[0], &values[1]);
                self.line(&format!(
                    "const lane::Units<{kind}> u{at} = lane::units<{kind}>((u64){seed}, {position});"
                ));
                source::draw(*distribution, *of, [&format!("u{at}.u"), &format!("u{at}.v")])
            }
            Instr::Load(_) | Instr::Product(_) | Instr::Reduce(..) | Instr::Store(..) => {
                bail!(internal, "{:?} is no expression", nest.code[at])
            }
        };
        self.line(&format!("{target} = {text};"));
        Ok(())
    }

    /// What each pass computes.
    fn demands(&mut self, last: usize) -> Vec<Vec<bool>> {
        let nest = self.nest;
        let mut needed = vec![vec![false; nest.code.len()]; last + 1];
        for stage in (0..=last).rev() {
            for at in (0..nest.code.len()).rev().filter(|&at| nest.live[at]) {
                let root = match nest.code[at] {
                    Instr::Reduce(..) => nest.ready[at] == stage + 1,
                    Instr::Store(..) => stage == last && !nest.stores_once(at),
                    _ => false,
                };
                needed[stage][at] |= root;
                if !needed[stage][at] {
                    continue;
                }
                if !root && self.mapping.held && nest.is_costly(at) && nest.ready[at] < stage {
                    self.kept[at] = true;
                    needed[nest.ready[at]][at] = true;
                    continue;
                }
                for arg in nest.code[at].args().iter().map(|arg| arg.0 as usize) {
                    needed[stage][arg] |= nest.levels[arg] == Level::Element;
                }
            }
        }
        needed
    }

    /// The values of rows that can be had before a pass.
    fn row_code(&mut self, stage: usize) -> Result<()> {
        let nest = self.nest;
        for at in 0..nest.code.len() {
            let other = matches!(nest.code[at], Instr::Reduce(..) | Instr::Store(..));
            let row = nest.levels[at] == Level::Row && nest.ready[at] == stage;
            if other || !row || !nest.live[at] || nest.is_constant(at) {
                continue;
            }
            let of = self.type_of(at);
            match (&nest.code[at], self.is_across()) {
                (Instr::Load(access), false) => {
                    let memory = self.memory(*access as usize);
                    let walk = nest.walk_of[*access as usize];
                    self.line(&format!("const {of} r{at} = lane::widen({memory}[b{walk}]);"));
                }
                (Instr::Load(access), true) => {
                    let walk = nest.walk_of[*access as usize];
                    self.line(&format!("{of} r{at}[{}];", self.vector()));
                    self.load(*access as usize, &format!("r{at}"), &format!("b{walk}"));
                }
                (_, false) => self.define(at, &format!("const {of} r{at}"), "b")?,
                (_, true) => {
                    self.line(&format!("{of} r{at}[{}];", self.vector()));
                    self.each_element();
                    self.define(at, &format!("r{at}[v]"), "b")?;
                    self.line("}");
                }
            }
        }
        Ok(())
    }

    /// The walks of what a pass touches, in order.
    fn walks_of(&self, instrs: &[usize]) -> Vec<usize> {
        let mut walks: Vec<usize> = instrs
            .iter()
            .filter_map(|&at| match self.nest.code[at] {
                Instr::Load(access) | Instr::Index(access) | Instr::Store(access, _) => {
                    Some(self.nest.walk_of[access as usize])
                }
                _ => None,
            })
            .collect();
        walks.sort_unstable();
        walks.dedup();
        walks
    }

    /// A pass over the elements.
    fn pass(&mut self, stage: usize, needed: &[bool], last: bool) -> Result<()> {
        let (nest, mapping, vector) = (self.nest, self.mapping, self.vector());
        let here: Vec<usize> = (0..nest.code.len()).filter(|&at| needed[at]).collect();
        if here.is_empty() {
            return Ok(());
        }
        let threads = match mapping.scheme {
            Scheme::Flat | Scheme::Tile { .. } => None,
            Scheme::Along { group } => Some(group * vector),
            Scheme::Across { down, .. } => Some(down),
        };
        // A thread sums the floats of each step, and corrects the sum over steps for rounding.
        let (totalled, others) = match threads {
            Some(_) if !mapping.held => here.iter().partition::<Vec<usize>, _>(|&&at| self.is_float_sum(at)),
            _ => (Vec::new(), here.clone()),
        };
        self.accumulators(&others);
        self.totals(&totalled);
        match threads.filter(|_| !mapping.held) {
            Some(threads) => {
                let step = threads * mapping.repeat;
                self.line(&format!("for (U start = 0; start < (U)length; start += {step}) {{"));
                self.accumulators(&totalled);
            }
            None if stage == 0 && threads.is_some() => self.line("const U start = 0;"),
            None => {}
        }
        let loads: Vec<usize> = here
            .iter()
            .copied()
            .filter(|&at| matches!(nest.code[at], Instr::Load(_)) && !(mapping.held && self.loaded[at]))
            .collect();
        for &at in &loads {
            self.loaded[at] = true;
            let Instr::Load(access) = nest.code[at] else { continue };
            let (of, repeat) = (memory_type(nest.accesses[access as usize].dtype), mapping.repeat);
            self.line(&match self.seen(access as usize) {
                Held::Packed => format!("lane::Pack<{vector}, {of}> x{at}[{repeat}];"),
                Held::Same => format!("{of} x{at}[{repeat}];"),
                Held::Apart => format!("{of} x{at}[{repeat}][{vector}];"),
            });
        }
        let kept: Vec<usize> =
            here.iter().copied().filter(|&at| self.kept[at] && nest.ready[at] == stage).collect();
        for at in kept {
            self.line(&format!("{} k{at}[{}][{vector}];", self.type_of(at), mapping.repeat));
        }
        // What comes from afar is asked for ahead. What a later pass reads for the first time is near, such as the weights
        // of a norm, which all rows share.
        let (near, afar) = loads.into_iter().partition::<Vec<_>, _>(|_| mapping.held && stage > 0);
        if !afar.is_empty() {
            self.each_vector(&self.walks_of(&afar));
            self.fetch_all(&afar);
            self.end_each_vector();
        }
        self.elements(stage, &here, &near)?;
        if threads.is_some() && !mapping.held {
            self.each_total(&totalled, |at, v| format!("t{at}{v}.add(a{at}{v});"));
            self.line("}");
            self.accumulators(&totalled);
            self.each_total(&totalled, |at, v| format!("a{at}{v} = t{at}{v}.sum;"));
        }
        self.combine(&here);
        debug_assert!(last || here.iter().all(|&at| !matches!(nest.code[at], Instr::Store(..))));
        Ok(())
    }

    fn fetch_all(&mut self, loads: &[usize]) {
        for &at in loads {
            let Instr::Load(access) = self.nest.code[at] else { continue };
            let walk = self.nest.walk_of[access as usize];
            self.fetch(access as usize, &format!("x{at}[i]"), &format!("w{walk}"));
        }
    }

    /// What a pass computes of vectors, of which some are still to be loaded.
    fn elements(&mut self, stage: usize, here: &[usize], loads: &[usize]) -> Result<()> {
        let (nest, vector) = (self.nest, self.vector());
        let is_load = |at: usize| matches!(nest.code[at], Instr::Load(_));
        let touched: Vec<usize> =
            here.iter().copied().filter(|at| !is_load(*at) || loads.contains(at)).collect();
        self.each_vector(&self.walks_of(&touched));
        self.fetch_all(loads);
        for &at in here {
            if let Instr::Store(..) = nest.code[at] {
                self.line(&format!("{} o{at}[{vector}];", self.type_of(at)));
            }
        }
        self.each_element();
        for &at in here {
            let of = self.type_of(at);
            match nest.code[at] {
                Instr::Load(_) => {}
                Instr::Store(_, arg) => {
                    let value = self.value(nest.unrounded(arg.0 as usize));
                    self.line(&format!("o{at}[v] = {value};"));
                }
                Instr::Reduce(kind, arg) => self.accumulate(kind, at, arg.0 as usize),
                _ if self.kept[at] && nest.ready[at] < stage => {}
                _ if self.kept[at] => self.define(at, &format!("k{at}[i][v]"), "w")?,
                _ => self.define(at, &format!("const {of} e{at}"), "w")?,
            }
        }
        self.line("}");
        for &at in here {
            if let Instr::Store(access, _) = nest.code[at] {
                let walk = nest.walk_of[access as usize];
                self.store(access as usize, &format!("o{at}"), &format!("w{walk}"));
            }
        }
        self.end_each_vector();
        Ok(())
    }

    /// What reductions start from.
    fn accumulators(&mut self, here: &[usize]) {
        for &at in here {
            let Instr::Reduce(kind, arg) = self.nest.code[at] else { continue };
            let of = self.nest.dtypes[arg.0 as usize];
            let (name, start) = match kind.gives_index() {
                true => (format!("lane::Best<{}>", register_type(of)), "{ 0, -1 }".to_string()),
                false => (register_type(of).to_string(), literal_text(identity(kind, register(of)))),
            };
            if self.is_across() {
                self.line(&format!("{name} a{at}[{}];", self.vector()));
                self.each_element();
                let start = if kind.gives_index() { format!("{name}{start}") } else { start };
                self.line(&format!("a{at}[v] = {start};"));
                self.line("}");
            } else {
                self.line(&format!("{name} a{at} = {start};"));
            }
        }
    }

    fn is_float_sum(&self, at: usize) -> bool {
        matches!(self.nest.code[at], Instr::Reduce(Reduction::Sum, _)) && self.nest.dtypes[at].is_float()
    }

    /// The totals of sums over several steps.
    fn totals(&mut self, sums: &[usize]) {
        for &at in sums {
            let count = if self.is_across() { format!("[{}]", self.vector()) } else { String::new() };
            self.line(&format!("lane::Total<{}> t{at}{count};", self.type_of(at)));
        }
        self.each_total(sums, |at, v| format!("t{at}{v}.sum = t{at}{v}.error = 0;"));
    }

    /// A line for each of some sums, which is given its number and the index of its row in a vector.
    fn each_total(&mut self, sums: &[usize], line: impl Fn(usize, &str) -> String) {
        let across = self.is_across();
        for &at in sums {
            if across {
                self.each_element();
            }
            self.line(&line(at, if across { "[v]" } else { "" }));
            if across {
                self.line("}");
            }
        }
    }

    fn accumulate(&mut self, kind: Reduction, at: usize, arg: usize) {
        let (value, of, op) = (self.value(arg), self.type_of(arg), combiner(kind));
        let to = if self.is_across() { format!("a{at}[v]") } else { format!("a{at}") };
        let index = if self.is_across() { "(i64)j" } else { "(i64)j + v" };
        let line = match kind.gives_index() {
            true => format!("{to} = {op}::of({to}, lane::Best<{of}>{{ {value}, {index} }});"),
            false => format!("{to} = {op}::of({to}, {value});"),
        };
        self.line(&line);
    }

    /// Combines what the threads of a row have.
    fn combine(&mut self, here: &[usize]) {
        for &at in here {
            let Instr::Reduce(kind, _) = self.nest.code[at] else { continue };
            let (of, op) = (self.type_of(at), combiner(kind));
            let index = if kind.gives_index() { ".index" } else { "" };
            match self.mapping.scheme {
                Scheme::Across { across, down } => {
                    self.line(&format!("lane::reduce_down<{op}, {across}, {down}>(a{at}, room);"));
                    self.line(&format!("{of} r{at}[{}];", self.vector()));
                    self.each_element();
                    self.line(&format!("r{at}[v] = a{at}[v]{index};"));
                    self.line("}");
                }
                Scheme::Along { group } => {
                    let call = format!("lane::reduce<{op}, {group}>(a{at})");
                    self.line(&format!("const {of} r{at} = {call}{index};"));
                }
                Scheme::Flat | Scheme::Tile { .. } => {}
            }
        }
    }

    /// Stores that happen once a row, after all threads have read what is there.
    fn row_stores(&mut self) {
        let nest = self.nest;
        let stores: Vec<usize> =
            (0..nest.code.len()).filter(|&at| nest.live[at] && nest.stores_once(at)).collect();
        if stores.is_empty() {
            return;
        }
        self.line(match self.mapping.scheme {
            Scheme::Along { group } if group <= 32 => "__syncwarp();",
            _ => "__syncthreads();",
        });
        self.line("if (here && part == 0) {");
        for at in stores {
            let Instr::Store(access, arg) = nest.code[at] else { continue };
            let (access, arg) = (access as usize, arg.0 as usize);
            let walk = nest.walk_of[access];
            if self.is_across() {
                self.line(&format!("{} o{at}[{}];", self.type_of(at), self.vector()));
                self.each_element();
                let value = self.value(arg);
                self.line(&format!("o{at}[v] = {value};"));
                self.line("}");
                self.store(access, &format!("o{at}"), &format!("b{walk}"));
            } else {
                let (memory, value) = (self.memory(access), self.value(arg));
                self.line(&format!("lane::put({memory}[b{walk}], {value});"));
            }
        }
        self.line("}");
    }
}
