//! GGUF files: what is read, and what is refused.

use max_core::{DType, ErrorKind, HostBytes, QuantizationEncoding};
use max_weights::{MetadataArray, MetadataValue, Weights, WeightsFormat};

fn load(bytes: Vec<u8>) -> max_core::Result<Weights> {
    Weights::from_bytes(HostBytes::new(bytes), WeightsFormat::Gguf)
}

fn refused(bytes: Vec<u8>) -> String {
    let error = load(bytes).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Value, "{error}");
    error.to_string()
}

/// A file in the making.
#[derive(Clone, Default)]
struct File {
    values: Vec<Vec<u8>>,
    tensors: Vec<Vec<u8>>,
    data: Vec<u8>,
    alignment: Option<usize>,
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

impl File {
    fn value(mut self, key: &str, kind: u32, bytes: &[u8]) -> File {
        self.values.push([&text(key)[..], &kind.to_le_bytes(), bytes].concat());
        self
    }

    fn tensor(mut self, name: &str, sizes: &[u64], kind: u32, offset: u64) -> File {
        let axes = (sizes.len() as u32).to_le_bytes();
        let sizes: Vec<_> = sizes.iter().flat_map(|size| size.to_le_bytes()).collect();
        let parts = [&text(name)[..], &axes, &sizes, &kind.to_le_bytes(), &offset.to_le_bytes()];
        self.tensors.push(parts.concat());
        self
    }

    fn data(mut self, bytes: &[u8]) -> File {
        self.data.extend(bytes);
        self
    }

    fn bytes(&self) -> Vec<u8> {
        let counts = [self.tensors.len() as u64, self.values.len() as u64].map(u64::to_le_bytes).concat();
        let mut bytes =
            [&b"GGUF\x03\0\0\0"[..], &counts, &self.values.concat(), &self.tensors.concat()].concat();
        bytes.resize(bytes.len().next_multiple_of(self.alignment.unwrap_or(32)), 0);
        bytes.extend(&self.data);
        bytes
    }
}

#[test]
fn axes_are_row_major_and_blocks_are_bytes() {
    let blocks = QuantizationEncoding::Q8_0.quantize(&[127.0; 96]).unwrap();
    let file = File::default()
        .tensor("q", &[32, 3], 8, 0)
        .tensor("f", &[2, 1, 3], 0, 128)
        .data(&blocks)
        .data(&[0; 26])
        .data(&[1f32, 2.0, 3.0, 4.0, 5.0, 6.0].map(f32::to_le_bytes).concat());
    let weights = load(file.bytes()).unwrap();
    assert_eq!(weights.names().collect::<Vec<_>>(), ["q", "f"]);
    let q = weights.info("q").unwrap();
    assert_eq!((q.dtype, &q.shape[..]), (DType::UInt8, &[3, 34][..]));
    assert_eq!(q.quantization_encoding, Some(QuantizationEncoding::Q8_0));
    let decoded = weights.get("q").unwrap().astype(DType::Float32).unwrap();
    assert_eq!((decoded.shape(), decoded.data.to_vec::<f32>().unwrap()[95]), (&[3, 32][..], 127.0));
    let f = weights.get("f").unwrap();
    assert_eq!((f.shape(), f.data.to_vec::<f32>().unwrap()[5]), (&[3, 1, 2][..], 6.0));
}

#[test]
fn metadata_has_all_types() {
    let strings = [&8u32.to_le_bytes()[..], &2u64.to_le_bytes(), &text("a"), &text("")].concat();
    let inner = [&7u32.to_le_bytes()[..], &2u64.to_le_bytes(), &[1, 0]].concat();
    let nested = [&9u32.to_le_bytes()[..], &1u64.to_le_bytes(), &inner].concat();
    let file = File::default()
        .value("u8", 0, &[200])
        .value("i8", 1, &[200])
        .value("u16", 2, &[1, 2])
        .value("i16", 3, &[0, 0x80])
        .value("u32", 4, &7u32.to_le_bytes())
        .value("i32", 5, &(-7i32).to_le_bytes())
        .value("f32", 6, &0.5f32.to_le_bytes())
        .value("bool", 7, &[1])
        .value("string", 8, &text("größe"))
        .value("strings", 9, &strings)
        .value("nested", 9, &nested)
        .value("u64", 10, &u64::MAX.to_le_bytes())
        .value("i64", 11, &i64::MIN.to_le_bytes())
        .value("f64", 12, &0.1f64.to_le_bytes());
    let weights = load(file.bytes()).unwrap();
    let metadata = weights.metadata();
    let expected: [(&str, MetadataValue); 14] = [
        ("u8", 200u8.into()),
        ("i8", (-56i8).into()),
        ("u16", 513u16.into()),
        ("i16", i16::MIN.into()),
        ("u32", 7u32.into()),
        ("i32", (-7i32).into()),
        ("f32", 0.5f32.into()),
        ("bool", true.into()),
        ("string", "größe".into()),
        ("strings", vec!["a".to_string(), String::new()].into()),
        ("nested", MetadataValue::Array(MetadataArray::Array(vec![MetadataArray::Bool(vec![true, false])]))),
        ("u64", u64::MAX.into()),
        ("i64", i64::MIN.into()),
        ("f64", 0.1f64.into()),
    ];
    assert_eq!(metadata.len(), expected.len());
    for (key, value) in expected {
        assert_eq!(metadata[key], value);
    }
}

#[test]
fn data_is_aligned_as_the_file_says() {
    let file = File { alignment: Some(128), ..File::default() };
    let file = file.value("general.alignment", 4, &128u32.to_le_bytes()).tensor("w", &[4], 24, 128);
    let file = file.data(&[0; 128]).data(&[1, 2, 3, 4]);
    assert_eq!(load(file.bytes()).unwrap().get("w").unwrap().data.to_vec::<i8>().unwrap(), [1, 2, 3, 4]);
    for (kind, bytes) in
        [(4, &0u32.to_le_bytes()[..]), (4, &24u32.to_le_bytes()), (5, &32i32.to_le_bytes()), (8, &text("32"))]
    {
        let file = File::default().value("general.alignment", kind, bytes);
        assert!(refused(file.bytes()).contains("general.alignment"));
    }
}

#[test]
fn tensors_that_lie_are_refused() {
    let one = |sizes: &[u64], kind: u32, offset: u64| {
        refused(File::default().tensor("w", sizes, kind, offset).data(&[0; 64]).bytes())
    };
    assert!(one(&[1 << 40, 1 << 40], 0, 0).contains("overflows"));
    assert!(one(&[1 << 40, 1 << 40], 12, 0).contains("overflows"));
    assert!(one(&[u64::MAX - 255], 12, 0).contains("w"));
    assert!(one(&[u64::MAX], 0, 0).contains("overflows"));
    assert!(one(&[1 << 62, 0], 8, 0).contains("overflows"));
    assert!(one(&[17], 0, 0).contains("beyond the end"));
    assert!(one(&[8], 0, 64).contains("beyond the end"));
    assert!(one(&[8], 0, u64::MAX - 31).contains("beyond the end"));
    assert!(one(&[8], 0, 4).contains("not aligned"));
    assert!(one(&[31], 8, 0).contains("block of q8_0"));
    assert!(one(&[], 8, 0).contains("block of q8_0"));
    assert!(one(&[128], 14, 0).contains("block of q6_k"));
    assert!(one(&[1; 5], 0, 0).contains("5 axes"));
    for unknown in [4, 5, 9, 15, 16, 23, 29, 31, 38, 40, u32::MAX] {
        assert!(one(&[32], unknown, 0).contains(&format!("the type {unknown}")));
    }
    let two =
        |at: u64| File::default().tensor("a", &[16], 0, 0).tensor("b", &[4], 0, at).data(&[0; 128]).bytes();
    assert!(refused(two(32)).contains("overlaps"));
    assert!(load(two(64)).is_ok());
    let same = File::default().tensor("a", &[4], 0, 0).tensor("a", &[4], 0, 32).data(&[0; 128]);
    assert!(refused(same.bytes()).contains("two tensors"));
    let empty = File::default().tensor("a", &[0, 4], 0, u64::MAX).tensor("b", &[0], 8, 0);
    let empty = load(empty.bytes()).unwrap();
    assert_eq!((empty.get("a").unwrap().shape(), empty.get("b").unwrap().shape()), (&[4, 0][..], &[0][..]));
}

#[test]
fn counts_are_checked_before_they_are_used() {
    let bytes = |tensors: u64, values: u64, rest: &[u8]| {
        [&b"GGUF\x03\0\0\0"[..], &tensors.to_le_bytes(), &values.to_le_bytes(), rest].concat()
    };
    assert!(refused(bytes(u64::MAX, 0, &[])).contains("tensors"));
    assert!(refused(bytes(0, u64::MAX, &[])).contains("values"));
    assert!(refused(bytes(1, 0, &[0; 15])).contains("tensors"));
    let key = text("k");
    let value = |kind: u32, rest: &[u8]| bytes(0, 1, &[&key[..], &kind.to_le_bytes(), rest].concat());
    let array = |kind: u32, count: u64| [&kind.to_le_bytes()[..], &count.to_le_bytes(), &[0; 64]].concat();
    assert!(
        refused(value(8, &[&u64::MAX.to_le_bytes()[..], &[b'x'; 30]].concat())).contains("bytes of text")
    );
    assert!(refused(value(9, &array(0, 65))).contains("values in an array"));
    assert!(refused(value(9, &array(8, 1 << 60))).contains("values in an array"));
    assert!(refused(value(9, &array(9, 1 << 60))).contains("arrays in an array"));
    assert!(refused(value(9, &array(13, 1))).contains("unknown type 13"));
    assert!(refused(value(13, &[0; 64])).contains("unknown type 13"));
    assert!(refused(value(7, &[2])).contains("neither true nor false"));
    assert!(refused(value(8, &[&1u64.to_le_bytes()[..], &[0xff]].concat())).contains("UTF-8"));
    let deep = [&9u32.to_le_bytes()[..], &1u64.to_le_bytes()].concat().repeat(1000);
    assert!(refused(value(9, &deep)).contains("arrays in arrays"));
    let twice = File::default().value("k", 0, &[1]).value("k", 0, &[1]);
    assert!(refused(twice.bytes()).contains("two values"));
}

#[test]
fn other_files_are_refused() {
    assert!(refused(b"GGML".repeat(20)).contains("does not start with GGUF"));
    assert!(refused(b"GG".to_vec()).contains("truncated"));
    let version = |version: [u8; 4]| refused([&b"GGUF"[..], &version, &[0; 16]].concat());
    assert!(version([1, 0, 0, 0]).contains("version 1"));
    assert!(version([4, 0, 0, 0]).contains("version 4"));
    assert!(version([0, 0, 0, 3]).contains("big-endian"));
    assert!(load([&b"GGUF\x02\0\0\0"[..], &[0; 16]].concat()).unwrap().is_empty());
}

#[test]
fn every_truncation_is_an_error() {
    let whole = File::default().value("k", 8, &text("v")).tensor("w", &[2], 0, 0).data(&[0; 8]).bytes();
    for end in 0..whole.len() {
        assert!(load(whole[..end].to_vec()).is_err(), "{end}");
    }
    assert!(load(whole).is_ok());
}
