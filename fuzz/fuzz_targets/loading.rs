//! What the fuzz targets for files of weights check.

use max_core::{DType, HostBytes};
use max_weights::{Weights, WeightsFormat};

/// Arbitrary bytes are refused, or have weights that are what they are said to be and can be read.
pub fn check(bytes: &[u8], format: WeightsFormat) {
    let Ok(weights) = Weights::from_bytes(HostBytes::new(bytes.to_vec()), format) else { return };
    assert!(weights.get("no such name").is_err() || weights.contains("no such name"));
    for name in weights.names() {
        let info = weights.info(name).expect("a weight with a name");
        let Ok(value) = weights.get(name) else { panic!("'{name}' cannot be read") };
        assert_eq!((value.dtype(), value.shape()), (info.dtype, &info.shape[..]));
        assert_eq!((value.data.num_bytes(), value.quantization_encoding), (info.num_bytes, info.quantization_encoding));
        assert!(value.data.data_ptr().addr().is_multiple_of(info.dtype.align()) || info.num_bytes == 0);
        // Reads every byte.
        assert_eq!(value.data.contiguous().expect("a copy").num_bytes(), info.num_bytes);
        if value.quantization_encoding.is_some() && info.num_bytes < 1 << 16 {
            value.astype(DType::Float32).expect("whole blocks");
        }
    }
}
