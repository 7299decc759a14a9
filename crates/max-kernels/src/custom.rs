//! What custom ops run: functions on host memory, functions of shared libraries, and CUDA C++ source.

use std::any::Any;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};

use max_core::{DType, Element, Parameters, Result, bail};
use max_driver::Buffer;
use max_driver::extension::ForeignOp;

use crate::cuda;

/// What a custom op runs.
pub enum Implementation {
    /// A function on buffers, called when it is the op's turn.
    Function(Box<dyn Execute>),
    /// A kernel for GPUs.
    Cuda(cuda::CustomSource),
}

/// A function on buffers.
pub trait Execute: Send + Sync {
    /// Computes the results. All buffers are contiguous and on one device.
    fn execute(&self, work: &Work) -> Result<()>;
}

/// What a function on buffers computes with.
#[derive(Clone, Copy, Debug)]
pub struct Work<'a> {
    /// The operands.
    pub operands: &'a [Buffer],
    /// Which of them may be written.
    pub mutable: &'a [bool],
    /// The results, to be written.
    pub results: &'a [Buffer],
    /// The parameters of the call.
    pub parameters: &'a Parameters,
}

impl Work<'_> {
    /// Checks that what may be written overlaps nothing else.
    fn check_overlap(&self) -> Result<()> {
        let operands = self.operands.iter().zip(self.mutable.iter().copied());
        let all: Vec<(&Buffer, bool)> =
            operands.chain(self.results.iter().map(|result| (result, true))).collect();
        let range = |buffer: &Buffer| {
            let start = buffer.data_ptr().addr();
            start..start + buffer.num_bytes()
        };
        for (at, (a, a_written)) in all.iter().enumerate() {
            for (b, b_written) in &all[..at] {
                let (a, b) = (range(a), range(b));
                if (*a_written || *b_written) && a.start < b.end && b.start < a.end {
                    bail!(
                        value,
                        "a custom op would write to memory that is another of its operands: pass a copy of the buffer"
                    );
                }
            }
        }
        Ok(())
    }
}

/// A custom op in Rust, on host memory.
pub trait CustomKernel: Send + Sync + 'static {
    /// Computes the results of a call.
    fn run(&self, call: &mut Call) -> Result<()>;
}

impl<F: Fn(&mut Call) -> Result<()> + Send + Sync + 'static> CustomKernel for F {
    fn run(&self, call: &mut Call) -> Result<()> {
        self(call)
    }
}

/// What a [`CustomKernel`] computes with.
#[derive(Debug)]
pub struct Call<'a> {
    /// The tensors among its operands.
    pub inputs: Vec<View<'a>>,
    /// The buffers among its operands, which it may change.
    pub buffers: Vec<ViewMut<'a>>,
    /// Its results, whose elements it writes: they hold anything before.
    pub outputs: Vec<ViewMut<'a>>,
    /// The parameters of the call.
    pub parameters: &'a Parameters,
}

/// A contiguous tensor.
#[derive(Debug)]
pub struct View<'a> {
    buffer: &'a Buffer,
}

/// A contiguous tensor that may be written.
#[derive(Debug)]
pub struct ViewMut<'a> {
    buffer: &'a Buffer,
    /// Nobody else has this memory: see [`Work::check_overlap`].
    exclusive: PhantomData<&'a mut [u8]>,
}

macro_rules! views {
    ($($view:ident),*) => {$(
        impl $view<'_> {
            /// The type of its elements.
            pub fn dtype(&self) -> DType {
                self.buffer.dtype()
            }

            /// Its sizes.
            pub fn shape(&self) -> &[usize] {
                self.buffer.shape()
            }

            /// Its elements in row-major order; an error if they have another type.
            pub fn slice<T: Element>(&self) -> Result<&[T]> {
                let data = elements::<T>(self.buffer)?;
                // SAFETY: the buffer has that many initialized elements of the type at this aligned address, is
                // borrowed, and is not written meanwhile: only through a `ViewMut`, which overlaps no other view.
                Ok(unsafe { std::slice::from_raw_parts(data, self.buffer.num_elements()) })
            }
        }
    )*};
}

views!(View, ViewMut);

impl ViewMut<'_> {
    /// Its elements in row-major order, for writing; an error if they have another type.
    pub fn slice_mut<T: Element>(&mut self) -> Result<&mut [T]> {
        elements::<T>(self.buffer)?;
        let data = if self.buffer.num_elements() == 0 {
            std::ptr::NonNull::dangling().as_ptr()
        } else {
            self.buffer.data_ptr_mut()?.cast()
        };
        // SAFETY: as for `slice`; the view overlaps no other, and is borrowed exclusively.
        Ok(unsafe { std::slice::from_raw_parts_mut(data, self.buffer.num_elements()) })
    }
}

/// The address of the elements of a contiguous host buffer.
fn elements<T: Element>(buffer: &Buffer) -> Result<*const T> {
    if buffer.dtype() != T::DTYPE {
        bail!(type_, "the elements are {}, not {}", buffer.dtype(), T::DTYPE);
    }
    if buffer.num_elements() == 0 {
        return Ok(std::ptr::NonNull::dangling().as_ptr());
    }
    let data: *const T = buffer.data_ptr().cast();
    if !buffer.is_host() || !buffer.is_contiguous() || !data.is_aligned() {
        bail!(value, "{buffer:?} is not aligned host memory without gaps, so its elements are no slice");
    }
    Ok(data)
}

/// A Rust function as an implementation. A panic is an error.
pub fn host(kernel: impl CustomKernel) -> Implementation {
    Implementation::Function(Box::new(Host(kernel)))
}

struct Host<K>(K);

impl<K: CustomKernel> Execute for Host<K> {
    fn execute(&self, work: &Work) -> Result<()> {
        work.check_overlap()?;
        let mutable = |wanted: bool| {
            let operands = work.operands.iter().zip(work.mutable);
            operands.filter(move |(_, mutable)| **mutable == wanted).map(|(buffer, _)| buffer)
        };
        let view_mut = |buffer| ViewMut { buffer, exclusive: PhantomData };
        let mut call = Call {
            inputs: mutable(false).map(|buffer| View { buffer }).collect(),
            buffers: mutable(true).map(view_mut).collect(),
            outputs: work.results.iter().map(view_mut).collect(),
            parameters: work.parameters,
        };
        // What the kernel left behind is only its results, which nobody reads after an error.
        match catch_unwind(AssertUnwindSafe(|| self.0.run(&mut call))) {
            Ok(result) => result,
            Err(panic) => bail!(runtime, "it panicked: {}", panic_message(&*panic)),
        }
    }
}

/// What a panic says.
fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

impl Execute for ForeignOp {
    fn execute(&self, work: &Work) -> Result<()> {
        work.check_overlap()?;
        self.run(work.operands, work.results, work.parameters)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(
        kernel: impl CustomKernel,
        operands: &[Buffer],
        mutable: &[bool],
        results: &[Buffer],
    ) -> Result<()> {
        let Implementation::Function(function) = host(kernel) else { unreachable!() };
        let parameters = [("times", 3)].into();
        function.execute(&Work { operands, mutable, results, parameters: &parameters })
    }

    #[test]
    fn kernels_see_typed_elements() {
        let (x, seen, y) = (Buffer::from([1.0f32, 2.0]), Buffer::from([0i64]), Buffer::from([0.0f32, 0.0]));
        let kernel = |call: &mut Call| {
            let times = call.parameters.int("times")? as f32;
            let x = call.inputs[0].slice::<f32>()?;
            for (y, x) in call.outputs[0].slice_mut::<f32>()?.iter_mut().zip(x) {
                *y = times * x;
            }
            call.buffers[0].slice_mut::<i64>()?[0] += call.inputs[0].shape()[0] as i64;
            Ok(())
        };
        run(kernel, &[x, seen.clone()], &[false, true], std::slice::from_ref(&y)).unwrap();
        assert_eq!((y.to_vec::<f32>().unwrap(), seen.to_vec::<i64>().unwrap()), (vec![3.0, 6.0], vec![2]));
    }

    #[test]
    fn failures_are_errors() {
        let x = Buffer::from([1.0f32, 2.0]);
        let refusal = |kernel: fn(&mut Call) -> Result<()>| {
            let error = run(kernel, std::slice::from_ref(&x), &[false], &[]).unwrap_err();
            error.message().to_owned()
        };
        assert_eq!(
            refusal(|call| call.inputs[0].slice::<i32>().map(|_| ())),
            "the elements are float32, not int32"
        );
        assert_eq!(refusal(|_| panic!("bad {}", 3)), "it panicked: bad 3");
        assert!(
            refusal(|call| panic!("{}", call.inputs.len() / call.outputs.len())).contains("divide by zero")
        );
    }

    #[test]
    fn what_is_written_overlaps_nothing() {
        let x = Buffer::from([1.0f32, 2.0]);
        let nothing = |_: &mut Call| Ok(());
        let both = [x.clone(), x.clone()];
        assert!(run(nothing, &both, &[false, true], &[]).unwrap_err().message().contains("pass a copy"));
        assert!(run(nothing, &both[..1], &[false], &both[1..]).is_err());
        assert!(run(nothing, &both, &[false, false], &[]).is_ok());
    }
}
