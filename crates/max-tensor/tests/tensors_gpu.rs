//! Tensors on a GPU behave like those on the host, and give the same results.

use std::io::Write;

use max_core::{DType, DeviceRef, Number, Result};
use max_driver::{Buffer, Device};
use max_tensor::{Defaults, Tensor, functional, functions as F, lazy, random};

/// The first GPU. If there is none, a line on standard error says why, once.
fn gpu() -> Option<DeviceRef> {
    static SAID: std::sync::Once = std::sync::Once::new();
    match Device::accelerator(None) {
        Ok(device) => Some(device.device_ref()),
        Err(why) => {
            SAID.call_once(|| {
                let _ = writeln!(std::io::stderr(), "skipped: no GPU: {}", why.message());
            });
            None
        }
    }
}

/// Runs a function on float32 tensors created on a device.
fn on<R>(device: DeviceRef, function: impl FnOnce() -> R) -> R {
    Defaults { dtype: Some(DType::Float32), device: Some(device) }.during(function)
}

fn sample(device: DeviceRef) -> Result<Tensor> {
    Tensor::from([1.5f32, -2.0, 3.0, -4.0, 0.5]).to(device)
}

#[test]
fn bare_ops_run_where_their_operands_are() -> Result<()> {
    let Some(gpu) = gpu() else { return Ok(()) };
    let x = sample(gpu)?;
    let y = F::relu(&x)?;
    assert!(y.is_real() && y.device() == gpu);
    assert_eq!(y.to_vec::<f32>()?, [1.5, 0.0, 3.0, 0.0, 0.5]);
    assert_eq!(y.sum(-1)?.item()?, Number::Float(5.0));
    assert_eq!(x.to(gpu)?.device(), gpu);
    let text = y.to_string();
    assert_eq!(text, "Tensor([1.5 0.  3.  0.  0.5], shape=[5], dtype=float32, device=gpu:0)");
    Ok(())
}

#[test]
fn numbers_and_arrays_follow_the_device() -> Result<()> {
    let Some(gpu) = gpu() else { return Ok(()) };
    let x = sample(gpu)?;
    // The first number is compiled in; the others are inputs.
    for number in [2.0, 3.0, -0.5, 2.0] {
        let expected: Vec<f32> =
            sample(DeviceRef::CPU)?.to_vec::<f32>()?.iter().map(|e| e * number as f32).collect();
        assert_eq!((&x * number)?.to_vec::<f32>()?, expected);
    }
    for size in [2usize, 3, 300, 70_000] {
        let ones = on(gpu, || Tensor::ones([size as i64]))?;
        assert_eq!((ones + 1.0)?.to_vec::<f32>()?, vec![2.0; size]);
    }
    Ok(())
}

#[test]
fn regions_give_what_the_host_gives() -> Result<()> {
    let Some(gpu) = gpu() else { return Ok(()) };
    let compute = |device: DeviceRef| {
        on(device, || {
            let x = random::uniform([64, 300], -2.0, 2.0)?;
            functional(|| F::softmax(F::tanh((&x * 2.0)? + 0.25)?, -1))
        })
    };
    random::set_seed(3);
    let expected = compute(DeviceRef::CPU)?.to_vec::<f32>()?;
    random::set_seed(3);
    let first = compute(gpu)?;
    assert_eq!(first.device(), gpu);
    let first = first.to_vec::<f32>()?;
    random::set_seed(3);
    assert_eq!(compute(gpu)?.to_vec::<f32>()?, first, "the same bits twice");
    let off = first.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(off < 1e-6, "off by {off}");
    Ok(())
}

#[test]
fn a_region_spans_devices() -> Result<()> {
    let Some(gpu) = gpu() else { return Ok(()) };
    let x = sample(DeviceRef::CPU)?;
    let y = functional(|| {
        let there = (x.to(gpu)? * 2.0)?;
        there.to(DeviceRef::CPU)? + &x
    })?;
    assert_eq!((y.device(), y.to_vec::<f32>()?), (DeviceRef::CPU, vec![4.5, -6.0, 9.0, -12.0, 1.5]));
    let error = (&x + sample(gpu)?).unwrap_err();
    assert!(error.message().contains("same device"), "{error}");
    Ok(())
}

#[test]
fn what_is_lazy_is_computed_when_it_is_read() -> Result<()> {
    let Some(gpu) = gpu() else { return Ok(()) };
    let x = sample(gpu)?;
    let y = lazy(|| F::abs(&x))?;
    assert!(!y.is_real() && y.device() == gpu);
    assert_eq!(y.to_vec::<f32>()?, [1.5, 2.0, 3.0, 4.0, 0.5]);
    Ok(())
}

#[test]
fn memory_is_shared_with_buffers() -> Result<()> {
    let Some(gpu) = gpu() else { return Ok(()) };
    let buffer = Buffer::from_slice(&[1f32, 2.0], &[2])?.to(&Device::from_ref(gpu)?)?;
    let x = Tensor::from_buffer(buffer.clone());
    assert_eq!(x.device(), gpu);
    assert_eq!(x.buffer()?.data_ptr(), buffer.data_ptr());
    assert_eq!(x.matmul(&x.reshape([2, 1])?)?.to_vec::<f32>()?, [5.0]);
    Ok(())
}
