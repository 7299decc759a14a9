//! Checkpoints of PyTorch: what is read, and what is refused.

use max_core::{DType, ErrorKind, HostBytes};
use max_weights::{Weights, WeightsFormat};

fn load(bytes: Vec<u8>) -> max_core::Result<Weights> {
    Weights::from_bytes(HostBytes::new(bytes), WeightsFormat::Pytorch)
}

fn refused(bytes: Vec<u8>) -> String {
    let error = load(bytes).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Value, "{error}");
    error.to_string()
}

/// A zip archive of uncompressed entries, with numbers of 64 bits if wanted.
fn zip(entries: &[(&str, &[u8])], wide: bool) -> Vec<u8> {
    let (mut bytes, mut list) = (Vec::new(), Vec::new());
    for (name, data) in entries {
        let start = bytes.len() as u32;
        let size = data.len() as u32;
        let name_len = name.len() as u16;
        bytes.extend(b"PK\x03\x04\x14\0\0\0\0\0\0\0\0\0\0\0\0\0");
        bytes.extend([size, size].map(u32::to_le_bytes).concat());
        bytes.extend([name_len, 0].map(u16::to_le_bytes).concat());
        bytes.extend(name.as_bytes());
        bytes.extend(*data);

        let extra =
            if wide { [size, size, start].map(|n| u64::from(n).to_le_bytes()).concat() } else { vec![] };
        let shown = |number: u32| if wide { u32::MAX } else { number }.to_le_bytes();
        list.extend(b"PK\x01\x02\x14\0\x14\0\0\0\0\0\0\0\0\0\0\0\0\0");
        list.extend([shown(size), shown(size)].concat());
        let extra_len = if wide { extra.len() as u16 + 4 } else { 0 };
        list.extend([name_len, extra_len, 0, 0, 0].map(u16::to_le_bytes).concat());
        list.extend([0; 4]);
        list.extend(shown(start));
        list.extend(name.as_bytes());
        if wide {
            list.extend([1, extra.len() as u16].map(u16::to_le_bytes).concat());
            list.extend(extra);
        }
    }
    let (start, count) = (bytes.len() as u32, entries.len() as u16);
    let size = list.len() as u32;
    bytes.extend(list);
    if wide {
        let record = bytes.len() as u64;
        bytes.extend(b"PK\x06\x06");
        bytes.extend([44u64].map(u64::to_le_bytes).concat());
        bytes.extend([0; 12]);
        bytes.extend([count.into(), count.into(), size.into(), start.into()].map(u64::to_le_bytes).concat());
        bytes.extend(b"PK\x06\x07\0\0\0\0");
        bytes.extend(record.to_le_bytes());
        bytes.extend(1u32.to_le_bytes());
    }
    bytes.extend(b"PK\x05\x06\0\0\0\0");
    let shown = |number: u32| if wide { u32::MAX } else { number };
    bytes.extend([if wide { u16::MAX } else { count }; 2].map(u16::to_le_bytes).concat());
    bytes.extend([shown(size), shown(start)].map(u32::to_le_bytes).concat());
    bytes.extend([0, 0]);
    bytes
}

/// A checkpoint with a pickle and one storage.
fn checkpoint(pickle: &[u8], storage: &[u8]) -> Vec<u8> {
    zip(&[("model/data.pkl", pickle), ("model/byteorder", b"little"), ("model/data/0", storage)], false)
}

fn text(text: &str) -> Vec<u8> {
    [b"X", &(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat()
}

fn number(number: i64) -> Vec<u8> {
    [&[0x8a, 8], &number.to_le_bytes()[..]].concat()
}

fn numbers(all: &[i64]) -> Vec<u8> {
    [&b"("[..], &all.iter().map(|&n| number(n)).collect::<Vec<_>>().concat(), b"t"].concat()
}

/// The storage `0` of some elements of a type.
fn storage(kind: &str, elements: i64) -> Vec<u8> {
    let class = format!("ctorch\n{kind}\n");
    [b"(", &text("storage")[..], class.as_bytes(), &text("0"), &text("cpu"), &number(elements), b"tQ"]
        .concat()
}

/// A tensor over a storage.
fn tensor(storage: &[u8], offset: i64, shape: &[i64], strides: &[i64]) -> Vec<u8> {
    let hooks = b"\x89ccollections\nOrderedDict\n)R";
    let arguments = [storage, &number(offset), &numbers(shape), &numbers(strides), hooks].concat();
    [b"ctorch._utils\n_rebuild_tensor_v2\n(", &arguments[..], b"tR"].concat()
}

/// A pickle of a dict.
fn state(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let entries =
        entries.iter().map(|(key, value)| [&text(key)[..], value].concat()).collect::<Vec<_>>().concat();
    [b"\x80\x02}(", &entries[..], b"u."].concat()
}

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().map(|value| value.to_le_bytes()).collect::<Vec<_>>().concat()
}

#[test]
fn tensors_are_views_of_storages() {
    let data = floats(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    let storage = storage("FloatStorage", 6);
    let whole = tensor(&storage, 0, &[2, 3], &[3, 1]);
    let parameter = [b"ctorch._utils\n_rebuild_parameter\n(", &whole[..], b"\x89Nt", b"R"].concat();
    let pickle = state(&[
        ("whole", &whole),
        ("parameter", &parameter),
        ("tail", &tensor(&storage, 2, &[4], &[1])),
        ("turned", &tensor(&storage, 0, &[3, 2], &[1, 3])),
        ("repeated", &tensor(&storage, 5, &[4], &[0])),
        ("scalar", &tensor(&storage, 4, &[], &[])),
        ("empty", &tensor(&storage, 9, &[0, 3], &[3, 1])),
        ("epoch", &number(3)),
        ("nested", &[&b"}("[..], &text("w"), &whole, b"K\x07", &whole, b"u"].concat()),
        ("list", &[&b"]"[..], &whole, b"a"].concat()),
    ]);
    for wide in [false, true] {
        let entries: [(&str, &[u8]); 2] = [("archive/data.pkl", &pickle), ("archive/data/0", &data)];
        let weights = load(zip(&entries, wide)).unwrap();
        let get = |name: &str| weights.get(name).unwrap().data;
        assert_eq!(get("whole").to_vec::<f32>().unwrap(), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!(get("parameter").shape(), [2, 3]);
        assert_eq!(get("tail").to_vec::<f32>().unwrap(), [2.0, 3.0, 4.0, 5.0]);
        assert_eq!(get("turned").to_vec::<f32>().unwrap(), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
        assert!(get("turned").is_contiguous());
        assert_eq!(get("repeated").to_vec::<f32>().unwrap(), [5.0; 4]);
        assert_eq!(get("scalar").to_vec::<f32>().unwrap(), [4.0]);
        assert_eq!(get("empty").shape(), [0, 3]);
        assert_eq!(get("list.0").shape(), [2, 3]);
        assert!(weights.contains("nested.w") && weights.contains("nested.7") && !weights.contains("epoch"));
        assert_eq!(weights.info("turned").unwrap().num_bytes, 24);
    }
}

#[test]
fn dtypes_are_those_of_the_storage_or_of_the_tensor() {
    let kinds = [
        ("BFloat16Storage", DType::BFloat16),
        ("HalfStorage", DType::Float16),
        ("DoubleStorage", DType::Float64),
        ("LongStorage", DType::Int64),
        ("CharStorage", DType::Int8),
        ("BoolStorage", DType::Bool),
    ];
    for (kind, dtype) in kinds {
        let pickle = state(&[("w", &tensor(&storage(kind, 2), 0, &[2], &[1]))]);
        let weights = load(checkpoint(&pickle, &[0; 16])).unwrap();
        assert_eq!(weights.get("w").unwrap().dtype(), dtype);
    }
    let arguments = [
        &storage("UntypedStorage", 16)[..],
        &number(1),
        &numbers(&[3]),
        &numbers(&[1]),
        b"\x89ccollections\nOrderedDict\n)Rctorch\nuint32\n}",
    ];
    let typed = [b"ctorch._utils\n_rebuild_tensor_v3\n(", &arguments.concat()[..], b"tR"].concat();
    let weights = load(checkpoint(&state(&[("w", &typed)]), &[1; 16])).unwrap();
    assert_eq!(weights.get("w").unwrap().data.to_vec::<u32>().unwrap(), [0x0101_0101; 3]);
    let untyped = tensor(&storage("UntypedStorage", 16), 0, &[2], &[1]);
    assert!(refused(checkpoint(&state(&[("w", &untyped)]), &[1; 16])).contains("no dtype"));
}

#[test]
fn tensors_that_lie_are_refused() {
    let one = |offset: i64, shape: &[i64], strides: &[i64]| {
        let pickle = state(&[("w", &tensor(&storage("FloatStorage", 4), offset, shape, strides))]);
        refused(checkpoint(&pickle, &[0; 16]))
    };
    assert!(one(0, &[5], &[1]).contains("beyond the 4 elements"));
    assert!(one(1, &[4], &[1]).contains("beyond the 4 elements"));
    assert!(one(0, &[2, 2], &[4, 1]).contains("beyond the 4 elements"));
    assert!(one(i64::MAX, &[2], &[1]).contains("beyond the 4 elements"));
    assert!(one(0, &[2], &[i64::MAX]).contains("beyond the 4 elements"));
    assert!(one(0, &[3, 3], &[i64::MAX, i64::MAX]).contains("beyond the 4 elements"));
    assert!(one(0, &[1 << 40, 1 << 40], &[0, 0]).contains("overflows"));
    assert!(one(0, &[1 << 40], &[0]).contains("repeated"));
    assert!(one(0, &[2], &[-1]).contains("no numbers"));
    assert!(one(0, &[-2], &[1]).contains("no numbers"));
    assert!(one(-1, &[2], &[1]).contains("no number"));
    assert!(one(0, &[2, 2], &[1]).contains("2 sizes and 1 strides"));
    assert!(one(0, &[1; 65], &[1; 65]).contains("65 axes"));
    let with = |storage: &[u8], data: &[u8]| {
        refused(checkpoint(&state(&[("w", &tensor(storage, 0, &[1], &[1]))]), data))
    };
    assert!(with(&storage("FloatStorage", 5), &[0; 16]).contains("5 elements of 4 bytes, but 16 bytes"));
    assert!(with(&storage("FloatStorage", i64::MAX), &[0; 16]).contains("16 bytes"));
    assert!(with(&storage("FloatStorage", -1), &[0; 16]).contains("no size"));
    assert!(with(b"K\x01", &[]).contains("no storage"));
    assert!(with(b"}Q", &[]).contains("five values"));
    let elsewhere =
        [&b"("[..], &text("storage"), b"ctorch\nFloatStorage\n", &text("../x"), &text("cpu"), b"K\x01tQ"]
            .concat();
    assert!(with(&elsewhere, &[0; 4]).contains("no entry 'model/data/../x'"));
}

#[test]
fn nothing_is_executed() {
    let system = [&b"\x80\x02cos\nsystem\n"[..], &text("echo"), b"\x85R."].concat();
    assert!(refused(checkpoint(&system, &[])).contains("'os.system'"));
    let by_text = [&b"\x80\x04"[..], &text("builtins"), &text("eval"), b"\x93."].concat();
    assert!(refused(checkpoint(&by_text, &[])).contains("'builtins.eval'"));
    for code in [b'i', b'o', 0x92, 0x82, b'P', b'I', b'F', b'S', b'V', b'2', 0xff, 0x97, 0x98] {
        let pickle = [b"\x80\x02", &[code][..], b"os\nsystem\n."].concat();
        let message = refused(checkpoint(&pickle, &[]));
        assert!(message.contains("which no state dict needs"), "{code:#x}: {message}");
    }
    assert!(refused(checkpoint(b"\x80\x02}}R.", &[])).contains("no function"));
    assert!(refused(checkpoint(b"\x80\x02ctorch\nload\n.", &[])).contains("'torch.load'"));
}

#[test]
fn pickles_that_make_no_sense_are_refused() {
    let message = |pickle: &[u8]| refused(checkpoint(&[b"\x80\x02", pickle].concat(), &[]));
    assert!(message(b"").contains("truncated"));
    assert!(message(b".").contains("more values than it made"));
    assert!(message(b"N.").contains("not a state dict"));
    assert!(message(b"u.").contains("no mark"));
    assert!(message(b"}(.").contains("more values than it made"));
    assert!(message(b"}(Nu.").contains("not pairs"));
    assert!(message(b"](NNu.").contains("no dict"));
    assert!(message(b"}Na.").contains("no list"));
    assert!(message(b"h\0.").contains("no value with the number 0"));
    assert!(message(b"X\xff\xff\xff\xff").contains("truncated"));
    assert!(message(b"\x8d\xff\xff\xff\xff\xff\xff\xff\xff").contains("truncated"));
    assert!(message(b"ctorch").contains("truncated"));
    assert!(message(b"\x86.").contains("more values than it made"));
    assert!(load(checkpoint(b"\x80\x02}.", &[])).unwrap().is_empty());
}

#[test]
fn deep_and_endless_values_are_bounded() {
    // Tuples in tuples, without an end.
    let deep = [&b"\x80\x02"[..], &b"(".repeat(1_000_000), &b"t".repeat(1_000_000), b"."].concat();
    assert!(refused(checkpoint(&deep, &[])).contains("deeper"));
    let nested = [
        &b"\x80\x02"[..],
        &[&b"}"[..], &text("a")].concat().repeat(100_000),
        b"}",
        &b"s".repeat(100_000),
        b".",
    ];
    assert!(refused(checkpoint(&nested.concat(), &[])).contains("deeper"));
    // A list that contains itself.
    assert!(refused(checkpoint(b"\x80\x02]q\0h\0a.", &[])).contains("deeper"));
    // Lists that contain the one before twice: 2^30 paths.
    let mut doubled = b"\x80\x02]q\0".to_vec();
    for _ in 0..30 {
        doubled.extend(b"]q\x01h\0ah\0aq\0");
    }
    doubled.push(b'.');
    assert!(refused(checkpoint(&doubled, &[])).contains("than any state dict"));
    // A long key again and again.
    let key = text(&"k".repeat(1 << 20));
    let many = [&b"\x80\x02}("[..], &key, b"q\0N", &b"h\0N".repeat(10_000), b"u."].concat();
    assert!(refused(checkpoint(&many, &[])).contains("than any state dict"));
    // More values, marks and memories than anybody needs.
    for one in [&b"]"[..], b"N", b"(", b"}\x940"] {
        let many = [&b"\x80\x02"[..], &one.repeat((1 << 22) + 1), b"."].concat();
        assert!(refused(checkpoint(&many, &[])).contains("which no state dict has"), "{one:?}");
    }
    // A parameter that contains itself.
    let parameters = b"\x80\x02]q\0ctorch._utils\n_rebuild_parameter\nh\0Rq\x01a.";
    assert!(refused(checkpoint(parameters, &[])).contains("deeper"));
}

#[test]
fn archives_that_lie_are_refused() {
    let pickle = state(&[("w", &tensor(&storage("FloatStorage", 4), 0, &[4], &[1]))]);
    let good = checkpoint(&pickle, &[0; 16]);
    assert!(load(good.clone()).is_ok());
    for end in 0..good.len() {
        assert!(load(good[..end].to_vec()).is_err(), "{end}");
    }
    let legacy = refused(b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.".to_vec());
    assert!(legacy.contains("PyTorch 1.6"));
    assert!(refused(zip(&[("a", b"")], false)).contains("data.pkl"));
    assert!(refused(zip(&[("a/data.pkl", b"."), ("b/data.pkl", b".")], false)).contains("data.pkl"));
    assert!(refused(zip(&[("a/data.pkl", b"."), ("a/data.pkl", b".")], false)).contains("two entries"));
    assert!(
        refused(zip(&[("a/data.pkl", b"\x80\x02}."), ("a/byteorder", b"big")], false))
            .contains("little-endian")
    );

    let list = good.windows(4).position(|bytes| bytes == b"PK\x01\x02").unwrap();
    let changed = |at: usize, bytes: &[u8]| {
        let mut file = good.clone();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        file
    };
    assert!(refused(changed(list + 10, &[8, 0])).contains("compressed"));
    assert!(refused(changed(list + 8, &[1, 0])).contains("encrypted"));
    assert!(refused(changed(list + 20, &[0xff; 3])).contains("compressed"));
    assert!(refused(changed(list + 42, &[0xff; 3])).contains("truncated"));
    assert!(refused(changed(list + 42, &[1, 0, 0, 0])).contains("damaged"));
    assert!(refused(changed(list + 28, &[0xff; 2])).contains("list of entries"));
    let end = good.len() - 22;
    assert!(refused(changed(end + 10, &[0xfe; 2])).contains("entries"));
    assert!(refused(changed(end + 12, &[0xff, 0xff, 0xff])).contains("truncated"));
    assert!(refused(changed(end + 16, &[0xff; 4])).contains("truncated"));
    // A comment may follow, and may look like another end.
    let mut comment = changed(end + 20, &[26, 0]);
    comment.extend(b"PK\x05\x06");
    comment.extend([0; 22]);
    assert!(load(comment).is_ok());

    // Two storages that are the same bytes.
    let other =
        [&b"("[..], &text("storage"), b"ctorch\nFloatStorage\n", &text("1"), &text("cpu"), b"K\x04tQ"]
            .concat();
    let first = tensor(&storage("FloatStorage", 4), 0, &[4], &[1]);
    let pickle = state(&[("a", &first), ("b", &tensor(&other, 0, &[4], &[1]))]);
    let entries: [(&str, &[u8]); 3] =
        [("m/data.pkl", &pickle), ("m/data/0", &[0; 16]), ("m/data/1", &[0; 16])];
    let file = zip(&entries, false);
    assert!(load(file.clone()).is_ok());
    let places: Vec<_> =
        file.windows(4).enumerate().filter(|(_, b)| b == b"PK\x01\x02").map(|(at, _)| at + 42).collect();
    let mut file = file;
    file.copy_within(places[1]..places[1] + 4, places[2]);
    assert!(refused(file).contains("overlap"));
}
