//! Kernels on images, boxes and spectra, which write their results to memory.

use max_core::kernel::{Irfft, RoiAlign, Suppress};
use max_core::{Dim, Result, Shape, bail};
use max_graph::ir::Op;
use max_graph::{OpId, ops};

use super::Lowering;

impl Lowering<'_> {
    pub(super) fn irfft(&mut self, id: OpId, op: &Op, transform: &ops::irfft::Irfft) -> Result<()> {
        let device = self.device(op.results[0])?;
        let source = self.whole(id, op.operands[0], device)?;
        let results = self.results(op)?;
        let shape = &self.node(source).shape;
        let bins = shape[transform.axis].clone();
        let [outer, size, inner] = self.around(results[0], transform.axis)?;
        let parts = Dim::Static(if transform.complex { 2 } else { 1 });
        let kernel = Irfft {
            normalization: transform.normalization,
            source: self.flat(source, [&outer, &bins, &inner, &parts])?,
            out: self.flat(results[0], [&outer, &size, &inner])?,
            outer,
            bins,
            size,
            inner,
            parts,
        };
        self.standalone(id, op, kernel, results)
    }

    pub(super) fn roi_align(&mut self, id: OpId, op: &Op, regions: &ops::roi_align::RoiAlign) -> Result<()> {
        let device = self.device(op.results[0])?;
        let source = self.whole(id, op.operands[0], device)?;
        let rois = self.whole(id, op.operands[1], device)?;
        let results = self.results(op)?;
        let (images, numbers) = (self.node(source).shape.clone(), self.node(rois).shape.clone());
        let ([n, h, w, c], [m, five]) = (&images[..], &numbers[..]) else {
            bail!(internal, "regions of interest of other ranks")
        };
        let bins = [regions.height, regions.width].map(Dim::from);
        let kernel = RoiAlign {
            sampling: regions.sampling(),
            source: self.flat(source, [n, h, w, c])?,
            rois: self.flat(rois, [m, five])?,
            out: self.flat(results[0], [m, &bins[0], &bins[1], c])?,
            images: [n, h, w, c].map(Dim::clone),
            regions: [m, five].map(Dim::clone),
            bins,
        };
        self.standalone(id, op, kernel, results)
    }

    pub(super) fn suppress(&mut self, id: OpId, op: &Op) -> Result<()> {
        let device = self.device(op.results[0])?;
        let operands = op.operands.iter().map(|&value| self.whole(id, value, device));
        let operands = operands.collect::<Result<Vec<_>>>()?;
        let results = self.results(op)?;
        let ([boxes, scores, most, overlap, least], [out, count]) = (&operands[..], &results[..]) else {
            bail!(internal, "a suppression has five operands and two results")
        };
        let scored = self.node(*scores).shape.clone();
        let [batches, classes, places] = &scored[..] else { bail!(internal, "scores of another rank") };
        let (corners, columns) = (Dim::Static(4), Dim::Static(3));
        let rows = Shape::from(scored.as_slice()).num_elements()?;
        let kernel = Suppress {
            boxes: self.flat(*boxes, [batches, places, &corners])?,
            scores: self.flat(*scores, [batches, classes, places])?,
            most: self.flat(*most, [])?,
            overlap: self.flat(*overlap, [])?,
            least: self.flat(*least, [])?,
            out: self.flat(*out, [&rows, &columns])?,
            count: self.flat(*count, [])?,
            sizes: [batches, classes, places].map(Dim::clone),
            corners,
            rows: [rows, columns],
        };
        self.standalone(id, op, kernel, results)
    }
}
