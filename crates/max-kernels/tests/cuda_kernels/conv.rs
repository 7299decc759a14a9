//! Convolutions.

use max_core::DType;
use max_core::kernel::{Access, Conv2d, Instr, Kernel, Loop, Reg};
use max_core::scalar::NumericOp;

use super::case::{Case, Random, ordered, row_major, untouched};

#[derive(Clone, Copy)]
struct Shape {
    image: [i64; 4],
    /// Height, width and filters.
    filter: [i64; 3],
    stride: [usize; 2],
    dilation: [usize; 2],
    /// Before and after an axis.
    padding: [[usize; 2]; 2],
    groups: usize,
}

/// The layout of operands and results.
#[derive(Clone, Copy, PartialEq)]
enum Layout {
    /// Operands in random layouts; results row-major.
    Any,
    /// Everything row-major, channels last.
    Rows,
    /// The same, but images are upside down and mirrored.
    Turned,
    /// Channels before rows, and filters before everything in the filter.
    Planes,
}

const PLAIN: Shape = Shape {
    image: [1, 6, 9, 40],
    filter: [3, 3, 24],
    stride: [1; 2],
    dilation: [1; 2],
    padding: [[1; 2]; 2],
    groups: 1,
};

impl Shape {
    fn out(&self) -> [i64; 4] {
        let size = |axis: usize| {
            let [before, after] = self.padding[axis].map(|padding| padding as i64);
            let reach = self.dilation[axis] as i64 * (self.filter[axis] - 1);
            let padded = self.image[axis + 1] + before + after - reach - 1;
            (padded.div_euclid(self.stride[axis] as i64) + 1).max(0)
        };
        [self.image[0], size(0), size(1), self.filter[2]]
    }

    fn case(&self, random: &mut Random, dtype: DType, layout: Layout) -> Case {
        let [height, width, filters] = self.filter;
        let filter = [height, width, self.image[3] / self.groups as i64, filters];
        let out = self.out();
        let ((input, input_count), (filter, filter_count)) = match layout {
            Layout::Any => {
                (random.access(0, dtype, &self.image, true), random.access(1, dtype, &filter, true))
            }
            Layout::Rows => (row_major(0, dtype, &self.image), row_major(1, dtype, &filter)),
            Layout::Turned => {
                let (mut input, count) = row_major(0, dtype, &self.image);
                for axis in [1, 2] {
                    input.offset += (self.image[axis] - 1) * input.strides[axis];
                    input.strides[axis] *= -1;
                }
                ((input, count), row_major(1, dtype, &filter))
            }
            Layout::Planes => {
                (ordered(0, dtype, &self.image, &[2, 1, 3, 0]), ordered(1, dtype, &filter, &[1, 0, 2, 3]))
            }
        };
        let order: &[usize] = if layout == Layout::Planes { &[2, 1, 3, 0] } else { &[3, 2, 1, 0] };
        let (store, count) = ordered(3, dtype, &out, order);
        // One in three has an epilogue of bias and relu.
        let ended = random.below(3) == 0;
        let bias = Access { strides: vec![0, 0, 0, 1], ..row_major(2, dtype, &[filters]).0 };
        let (product, store_it) = (Instr::Product(dtype), |reg| Instr::Store(0, Reg(reg)));
        let code = match ended {
            true => vec![
                product,
                Instr::Load(1),
                Instr::Apply(NumericOp::Add.into(), [Reg(0), Reg(1)]),
                Instr::Apply(NumericOp::Relu.into(), [Reg(2), Reg(2)]),
                store_it(3),
            ],
            false => vec![product, store_it(0)],
        };
        let epilogue = Loop { shape: out.to_vec(), reduce: None, accesses: vec![store, bias], code };
        let kernel = Conv2d {
            out,
            input_size: [self.image[1], self.image[2], self.image[3]],
            filter_size: [height, width],
            depth: self.image[3] / self.groups as i64,
            stride: self.stride,
            dilation: self.dilation,
            padding: self.padding.map(|[before, _]| before),
            groups: self.groups,
            input,
            filter,
            epilogue,
        };
        let operands = [input_count, filter_count, filters as usize].map(|count| random.buffer(dtype, count));
        let buffers = operands.into_iter().chain([untouched(dtype, count)]).collect();
        Case::new(Kernel::Conv2d(kernel), buffers, 1)
    }

    /// All layouts of some types.
    fn cases(self, random: &mut Random) -> Vec<Case> {
        let types = [DType::Float32, DType::Float64, DType::Int32, DType::BFloat16, DType::Float16];
        let layouts = [Layout::Any, Layout::Rows, Layout::Planes];
        let pairs = types.into_iter().flat_map(|dtype| layouts.map(|layout| (dtype, layout)));
        pairs.map(|(dtype, layout)| self.case(random, dtype, layout)).collect()
    }
}

/// Small shapes of every type.
pub(crate) fn small() -> Vec<Case> {
    let mut random = Random(7);
    let mut cases = Vec::new();
    for at in 0..8 * DType::ALL.len() {
        let groups = random.pick(&[1, 1, 2, 3]);
        let (channels, filters) = (random.pick(&[1, 2, 5]), random.pick(&[1, 2, 5, 35]));
        let padding = [(); 4].map(|()| random.pick(&[0, 0, 1, 2, 7]));
        let shape = Shape {
            image: [
                random.pick(&[1, 2]),
                random.pick(&[1, 4, 9]),
                random.pick(&[1, 5, 12]),
                groups * channels,
            ],
            filter: [random.pick(&[1, 2, 3]), random.pick(&[1, 2, 5]), groups * filters],
            stride: [(); 2].map(|()| random.pick(&[1, 1, 2, 3])),
            dilation: [(); 2].map(|()| random.pick(&[1, 1, 2, 3])),
            padding: [[padding[0], padding[1]], [padding[2], padding[3]]],
            groups: groups as usize,
        };
        let layout = random.pick(&[Layout::Any, Layout::Any, Layout::Rows, Layout::Planes]);
        cases.push(shape.case(&mut random, DType::ALL[at % DType::ALL.len()], layout));
    }
    cases
}

/// Long windows, many positions, many filters, and large dilations.
pub(crate) fn large() -> Vec<Case> {
    let mut random = Random(8);
    let (none, far) = ([[0; 2]; 2], 1 << 40);
    let shapes = [
        PLAIN,
        Shape { image: [2, 16, 17, 3], filter: [7, 7, 64], stride: [2; 2], padding: [[3; 2]; 2], ..PLAIN },
        Shape { image: [2, 14, 14, 64], filter: [3, 3, 136], ..PLAIN },
        Shape { image: [1, 28, 28, 32], filter: [3, 3, 200], stride: [2; 2], ..PLAIN },
        Shape { image: [1, 7, 7, 130], filter: [3, 3, 70], ..PLAIN },
        Shape { image: [2, 3, 5, 256], filter: [1, 1, 48], padding: none, ..PLAIN },
        Shape { image: [2, 9, 3, 16], filter: [1, 1, 24], padding: none, stride: [2, 1], ..PLAIN },
        Shape {
            image: [1, 20, 31, 16],
            filter: [3, 3, 48],
            dilation: [2, 3],
            padding: [[2, 2], [3, 1]],
            ..PLAIN
        },
        Shape {
            image: [1, 4, 5, 8],
            filter: [2, 2, 24],
            dilation: [far; 2],
            padding: [[far / 2; 2]; 2],
            ..PLAIN
        },
        Shape { image: [1, 4, 4, 0], filter: [2, 2, 3], padding: none, ..PLAIN },
        Shape { image: [0, 4, 4, 2], filter: [2, 2, 3], padding: none, ..PLAIN },
        Shape { image: [1, 0, 4, 3], filter: [2, 2, 24], padding: [[2; 2]; 2], ..PLAIN },
    ];
    shapes.into_iter().flat_map(|shape| shape.cases(&mut random)).collect()
}

/// Channels and filters in whole vectors: tiles that end within one, steps that do, more tiles than a GPU has blocks, windows
/// that are split, strips of images and strides that leave none.
pub(crate) fn vectors() -> Vec<Case> {
    let mut random = Random(10);
    let same = Shape { image: [2, 9, 11, 64], filter: [3, 3, 64], ..PLAIN };
    let shapes = [
        same,
        Shape { image: [3, 7, 7, 128], filter: [3, 3, 72], ..same },
        Shape { image: [2, 14, 14, 256], filter: [3, 3, 136], stride: [2; 2], ..same },
        Shape { image: [2, 13, 10, 40], filter: [3, 3, 200], stride: [2, 1], ..same },
        Shape { image: [1, 17, 19, 96], filter: [5, 3, 64], dilation: [1, 2], padding: [[2; 2]; 2], ..same },
        Shape { image: [2, 8, 9, 128], filter: [3, 3, 128], groups: 2, ..same },
        Shape { image: [5, 6, 5, 64], filter: [2, 2, 64], padding: [[0; 2], [1; 2]], ..same },
        Shape { image: [4, 5, 5, 200], filter: [3, 3, 16], padding: [[0; 2]; 2], ..same },
        Shape { image: [1, 30, 33, 64], filter: [3, 7, 24], padding: [[1, 1], [3, 3]], ..same },
        Shape { image: [1, 4, 5, 64], filter: [3, 3, 64], padding: [[9; 2]; 2], ..same },
        Shape { image: [9, 56, 57, 40], ..same },
        Shape { image: [9, 56, 57, 32], filter: [3, 3, 128], ..same },
        Shape { image: [9, 112, 112, 32], stride: [2; 2], ..same },
        Shape { image: [7, 112, 112, 32], filter: [3, 3, 96], stride: [2; 2], ..same },
        // The first window of a line or of an image starts before the last one of what precedes it.
        Shape { image: [208, 12, 12, 64], filter: [3, 3, 128], stride: [2; 2], padding: [[4; 2]; 2], ..same },
        Shape {
            image: [32, 20, 10, 64],
            filter: [7, 1, 64],
            stride: [1, 2],
            padding: [[3; 2], [5; 2]],
            ..same
        },
    ];
    let layouts =
        [(DType::BFloat16, Layout::Rows), (DType::Float16, Layout::Rows), (DType::BFloat16, Layout::Turned)];
    let cases = shapes.into_iter().flat_map(|shape| layouts.map(|(dtype, layout)| (shape, dtype, layout)));
    cases.map(|(shape, dtype, layout)| shape.case(&mut random, dtype, layout)).collect()
}

/// Groups of one channel, of few and of many.
pub(crate) fn groups() -> Vec<Case> {
    let mut random = Random(9);
    let groups = [
        ([1, 20, 30, 130], 130, 130),
        ([2, 9, 30, 48], 48, 48),
        ([1, 9, 11, 20], 60, 20),
        ([1, 12, 12, 64], 64, 32),
        ([2, 8, 12, 64], 64, 2),
        ([1, 7, 7, 96], 96, 6),
        ([1, 7, 7, 96], 12, 6),
        ([1, 7, 7, 12], 240, 6),
    ];
    let shapes = groups.into_iter().flat_map(|(image, filters, groups)| {
        let plain = Shape { image, filter: [3, 3, filters], groups, ..PLAIN };
        [plain, Shape { stride: [2; 2], dilation: [2, 1], padding: [[0, 1], [3, 2]], ..plain }]
    });
    shapes.flat_map(|shape| shape.cases(&mut random)).collect()
}
