//! Custom ops for max-rs as a shared library: replace these two with your own.

mod interface;

use interface::{Operands, Parameters, Results, custom_ops};

custom_ops! {
    c"leaky_relu", c"float32[*shape] -> float32[*shape]" => leaky_relu;
    c"running_max", c"float64[n, k] -> float64[n, k], int64[n]" => running_max;
}

/// Negative elements are divided by the parameter `slope_divisor`.
fn leaky_relu(operands: &Operands, results: &mut Results, parameters: &Parameters) -> Result<(), String> {
    let divisor = parameters.int("slope_divisor")?;
    if divisor == 0 {
        return Err("slope_divisor must not be 0".into());
    }
    for (y, &x) in results.get::<f32>(0)?.iter_mut().zip(operands.get::<f32>(0)?) {
        *y = if x < 0.0 { x / divisor as f32 } else { x };
    }
    Ok(())
}

/// The greatest element so far along each row, and where the greatest of all is.
fn running_max(operands: &Operands, results: &mut Results, _: &Parameters) -> Result<(), String> {
    let (x, k) = (operands.get::<f64>(0)?, operands.shape(0)?[1] as usize);
    if k == 0 {
        return Err("a row without elements has no maximum".into());
    }
    let mut places = Vec::with_capacity(x.len() / k);
    for (row, maxima) in x.chunks(k).zip(results.get::<f64>(0)?.chunks_mut(k)) {
        let mut best = 0;
        for (at, maximum) in maxima.iter_mut().enumerate() {
            if row[at] > row[best] {
                best = at;
            }
            *maximum = row[best];
        }
        places.push(best as i64);
    }
    results.get::<i64>(1)?.copy_from_slice(&places);
    Ok(())
}
