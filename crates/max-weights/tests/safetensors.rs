//! Safetensors files: what is read, and what is refused.

use max_core::{DType, ErrorKind, HostBytes};
use max_weights::{MetadataValue, Weights, WeightsFormat};

/// A file with a header and some bytes of data.
fn file(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}

fn load(bytes: Vec<u8>) -> max_core::Result<Weights> {
    Weights::from_bytes(HostBytes::new(bytes), WeightsFormat::Safetensors)
}

fn refused(header: &str, data: &[u8]) -> String {
    let error = load(file(header, data)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Value, "{error}");
    error.to_string()
}

#[test]
fn tensors_and_metadata_are_found() {
    let header = r#"{"__metadata__":{"format":"pt"},
        "b":{"dtype":"F32","shape":[2,1],"data_offsets":[4,12]},
        "a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]},
        "none":{"dtype":"I64","shape":[3,0],"data_offsets":[12,12]},
        "one":{"dtype":"BOOL","shape":[],"data_offsets":[12,13]}}   "#;
    let mut data = vec![0x80, 0x3f, 0x00, 0x40];
    data.extend([1.5f32, -2.0].map(f32::to_le_bytes).concat());
    data.push(1);
    let weights = load(file(header, &data)).unwrap();
    assert_eq!(weights.names().collect::<Vec<_>>(), ["b", "a", "none", "one"]);
    assert_eq!(weights.metadata()["format"], MetadataValue::from("pt"));
    let info = weights.info("b").unwrap();
    assert_eq!((info.dtype, &info.shape[..], info.num_bytes), (DType::Float32, &[2, 1][..], 8));
    assert_eq!((info.file, info.quantization_encoding), (None, None));
    assert_eq!(weights.get("b").unwrap().data.to_vec::<f32>().unwrap(), [1.5, -2.0]);
    let halves = weights.get("a").unwrap();
    assert_eq!(halves.astype(DType::Float32).unwrap().data.to_vec::<f32>().unwrap(), [1.0, 2.0]);
    assert_eq!(weights.get("none").unwrap().shape(), [3, 0]);
    assert_eq!(weights.get("one").unwrap().dtype(), DType::Bool);

    let missing = weights.get("bb").unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::Key);
    assert!(missing.message().contains("Did you mean 'b'?"), "{missing}");
    assert!(weights.info("").is_err() && !weights.contains("") && weights.contains("a"));
}

#[test]
fn narrow_elements_are_packed_bytes() {
    let header = r#"{"w":{"dtype":"F4","shape":[2,6],"data_offsets":[0,6]}}"#;
    let weights = load(file(header, &[0x21; 6])).unwrap();
    let info = weights.info("w").unwrap();
    assert_eq!((info.dtype, &info.shape[..]), (DType::UInt8, &[2, 3][..]));
    let odd = r#"{"w":{"dtype":"F4","shape":[2,3],"data_offsets":[0,3]}}"#;
    assert!(refused(odd, &[0; 3]).contains("whole bytes"));
    assert!(refused(r#"{"w":{"dtype":"F4","shape":[],"data_offsets":[0,0]}}"#, &[]).contains("whole bytes"));
}

#[test]
fn misaligned_elements_are_copied() {
    // The header has an odd length, so the floats are at an odd address.
    let header = r#"{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    for spaces in 0..8 {
        let header = format!("{header}{}", " ".repeat(spaces));
        let data = load(file(&header, &7.5f32.to_le_bytes())).unwrap().get("w").unwrap().data;
        assert!(data.data_ptr().addr().is_multiple_of(4));
        assert_eq!(data.to_vec::<f32>().unwrap(), [7.5]);
    }
}

#[test]
fn headers_that_lie_are_refused() {
    let tensor = |dtype: &str, shape: &str, from: &str, to: &str| {
        format!(r#"{{"w":{{"dtype":"{dtype}","shape":[{shape}],"data_offsets":[{from},{to}]}}}}"#)
    };
    let size = 1u64 << 40;
    let huge = tensor("F32", &format!("{size},{size}"), "0", "4");
    assert!(refused(&huge, &[0; 4]).contains("overflows"));
    assert!(refused(&tensor("F32", "18446744073709551615", "0", "4"), &[0; 4]).contains("overflows"));
    assert!(refused(&tensor("F32", "18446744073709551616", "0", "4"), &[0; 4]).contains("header"));
    assert!(refused(&tensor("F32", "-1", "0", "4"), &[0; 4]).contains("header"));
    assert!(
        refused(&tensor("F32", "0,9223372036854775807,9223372036854775807", "0", "0"), &[])
            .contains("overflows")
    );
    assert!(refused(&tensor("F32", "2", "0", "4"), &[0; 4]).contains("8 bytes"));
    assert!(refused(&tensor("F32", "1", "4", "0"), &[0; 4]).contains("from byte 4 to 0"));
    assert!(refused(&tensor("F32", "1", "0", "18446744073709551615"), &[0; 4]).contains("of 4"));
    assert!(refused(&tensor("F32", "1", "0", "4"), &[0; 3]).contains("of 3"));
    assert!(refused(&tensor("F32", "1", "0", "4"), &[0; 5]).contains("belong to none"));
    assert!(refused(&tensor("F32", "1", "1", "5"), &[0; 5]).contains("gap"));
    assert!(refused(&tensor("C64", "1", "0", "8"), &[0; 8]).contains("'C64'"));
    assert!(refused(&tensor(&"x".repeat(1000), "1", "0", "8"), &[0; 8]).len() < 400);
    let axes = vec!["1"; 65].join(",");
    assert!(refused(&tensor("U8", &axes, "0", "1"), &[0]).contains("65 axes"));
    let a = r#""a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}"#;
    let b = r#""b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}"#;
    assert!(refused(&format!("{{{a},{b}}}"), &[0; 3]).contains("overlaps"));
    let empty = |name: &str| format!(r#""{name}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#);
    assert!(
        refused(&format!("{{{},{}}}", empty("x"), empty("x")), &[]).contains("two tensors with the name 'x'")
    );
}

#[test]
fn what_is_no_header_is_refused() {
    for header in ["", "[]", "{", "{} x", "null", r#"{"w":1}"#, r#"{"w":{"dtype":"F32"}}"#, r#" {}"#] {
        assert!(refused(header, &[]).contains("header"), "{header}");
    }
    assert!(refused(r#"{"__metadata__":{"a":1}}"#, &[]).contains("header"));
    assert!(refused(r#"{"__metadata__":{},"__metadata__":{}}"#, &[]).contains("two entries"));
    let deep = format!(r#"{{"w":{}{}}}"#, "[".repeat(100_000), "]".repeat(100_000));
    assert!(refused(&deep, &[]).contains("header"));
    assert!(load(vec![0xff; 7]).unwrap_err().message().contains("truncated"));
    assert!(load(vec![]).unwrap_err().message().contains("truncated"));
    assert!(load(vec![0xff; 100]).unwrap_err().message().contains("safetensors"));
    assert!(load(file("{}", &[])).unwrap().is_empty());
}

#[test]
fn every_truncation_is_an_error() {
    let header = r#"{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
    let whole = file(header, &[0; 8]);
    for end in 0..whole.len() {
        assert!(load(whole[..end].to_vec()).is_err(), "{end}");
    }
    assert!(load(whole).is_ok());
}
