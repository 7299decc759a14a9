//! Files on disk: several at once, written, replaced, cut off, converted and described.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use max_core::{DType, DeviceRef, ErrorKind, QuantizationEncoding, TensorType};
use max_driver::Buffer;
use max_graph::{Graph, encode, ops};
use max_weights::{
    FileKind, Metadata, MetadataArray, MetadataValue, Size, Target, WeightData, WeightsFormat, convert,
    inspect, load_weights, save_weights,
};

/// A folder of its own for each test, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("max-weights-{test}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn floats(values: &[f32], shape: &[usize]) -> WeightData {
    Buffer::from_slice(values, shape).unwrap().into()
}

fn all(entries: &[(&str, WeightData)]) -> BTreeMap<String, WeightData> {
    entries.iter().map(|(name, value)| (name.to_string(), value.clone())).collect()
}

fn read(path: &Path, name: &str) -> Vec<f32> {
    load_weights(&[path]).unwrap().get(name).unwrap().astype(DType::Float32).unwrap().data.to_vec().unwrap()
}

/// A matrix whose rows are whole blocks, from -1 to 1.
fn matrix() -> WeightData {
    let values: Vec<f32> = (0..512).map(|i| (i as f32 * 0.37).sin()).collect();
    floats(&values, &[2, 256])
}

#[test]
fn every_dtype_survives() {
    let folder = Folder::new("dtypes");
    for (name, lacking) in [("all.safetensors", 3), ("all.gguf", 13)] {
        let mut refused = 0;
        for &dtype in DType::ALL {
            let value = floats(&[0.0, 1.0, 1.0, 0.0], &[2, 2]).astype(dtype).unwrap();
            let bytes = value.data.host_bytes().unwrap();
            match save_weights(folder.file(name), &all(&[("w", value)]), &Metadata::new()) {
                Ok(()) => {
                    let loaded = load_weights(&[folder.file(name)]).unwrap().get("w").unwrap();
                    assert_eq!((loaded.dtype(), loaded.data.host_bytes().unwrap()), (dtype, bytes));
                }
                Err(error) => {
                    assert!(error.message().contains(dtype.name()), "{error}");
                    refused += 1;
                }
            }
        }
        assert_eq!(refused, lacking, "{name}");
    }
}

#[test]
fn every_encoding_survives() {
    let folder = Folder::new("encodings");
    let encodings = QuantizationEncoding::ALL.iter().filter(|encoding| encoding.blocks().is_some());
    let weights: Vec<_> =
        encodings.map(|&encoding| (encoding.name(), matrix().encode(encoding).unwrap())).collect();
    save_weights(folder.file("all.gguf"), &all(&weights), &Metadata::new()).unwrap();
    let loaded = load_weights(&[folder.file("all.gguf")]).unwrap();
    assert_eq!(loaded.len(), 11);
    for (name, value) in weights {
        let back = loaded.get(name).unwrap();
        assert_eq!(back.quantization_encoding, value.quantization_encoding);
        assert_eq!((back.shape(), back.data.host_bytes()), (value.shape(), value.data.host_bytes()));
        let address = back.data.data_ptr().addr();
        assert!(address.is_multiple_of(32), "{name}");
    }
    let refused = save_weights(
        folder.file("w.safetensors"),
        &all(&[("w", loaded.get("q4_k").unwrap())]),
        &Metadata::new(),
    );
    assert!(refused.unwrap_err().message().contains("encoded as q4_k"));
}

#[test]
fn metadata_survives() {
    let folder = Folder::new("metadata");
    let nested = MetadataArray::Array(vec![MetadataArray::Float32(vec![0.5]), MetadataArray::String(vec![])]);
    let metadata = Metadata::from([
        ("general.architecture".into(), "llama".into()),
        ("general.alignment".into(), 64u32.into()),
        ("count".into(), 7u64.into()),
        ("eps".into(), 1e-5f32.into()),
        ("flag".into(), true.into()),
        ("tokens".into(), vec!["a".to_string(), "\u{2581}b".into()].into()),
        ("nested".into(), MetadataValue::Array(nested)),
    ]);
    save_weights(folder.file("m.gguf"), &all(&[("w", matrix())]), &metadata).unwrap();
    let loaded = load_weights(&[folder.file("m.gguf")]).unwrap();
    let mut expected = metadata.clone();
    // Data is aligned as in files that do not say how.
    expected.remove("general.alignment");
    assert_eq!(*loaded.metadata(), expected);

    save_weights(folder.file("m.safetensors"), &all(&[("w", matrix())]), &metadata).unwrap();
    let loaded = load_weights(&[folder.file("m.safetensors")]).unwrap();
    assert_eq!(loaded.metadata()["count"].as_str(), Some("7"));
    assert_eq!(loaded.metadata()["tokens"].as_str(), Some("[\"a\",\"\u{2581}b\"]"));
}

#[test]
fn weights_are_spread_over_files() {
    let folder = Folder::new("shards");
    let (one, two) = (folder.file("model-1.safetensors"), folder.file("model-2.safetensors"));
    save_weights(&one, &all(&[("a", floats(&[1.0], &[1])), ("c", floats(&[3.0], &[1]))]), &Metadata::new())
        .unwrap();
    save_weights(&two, &all(&[("b", floats(&[2.0], &[1]))]), &Metadata::from([("k".into(), "v".into())]))
        .unwrap();
    let index = folder.file("model.safetensors.index.json");
    let write = |map: &str| {
        fs::write(&index, format!(r#"{{"metadata":{{"total_size":12}},"weight_map":{{{map}}}}}"#)).unwrap()
    };
    write(r#""a":"model-1.safetensors","b":"model-2.safetensors","c":"model-1.safetensors""#);
    for weights in [load_weights(&[&one, &two]).unwrap(), load_weights(&[&index]).unwrap()] {
        assert_eq!(weights.names().collect::<Vec<_>>(), ["a", "c", "b"]);
        assert_eq!(weights.info("b").unwrap().file.as_deref(), Some(&*two));
        assert_eq!(weights.files().collect::<Vec<_>>(), [one.clone(), two.clone()]);
        assert_eq!((weights.format(), weights.metadata().len()), (WeightsFormat::Safetensors, 1));
    }
    assert_eq!(inspect(&index).unwrap().tensors.len(), 3);

    let refused = |map: &str| {
        write(map);
        load_weights(&[&index]).unwrap_err().to_string()
    };
    assert!(refused(r#""a":"model-2.safetensors""#).contains("'a' is not in 'model-2.safetensors'"));
    assert!(refused(r#""x":"model-1.safetensors""#).contains("'x' is not in"));
    for elsewhere in ["../model-1.safetensors", "/etc/passwd", "..", "", "a/b", "./x"] {
        assert!(refused(&format!(r#""a":"{elsewhere}""#)).contains("beside the index"), "{elsewhere}");
    }
    assert!(refused(r#""a":"missing.safetensors""#).contains("does not exist"));
    fs::write(&index, "[]").unwrap();
    assert!(load_weights(&[&index]).unwrap_err().message().contains("not an index"));
    let twice = load_weights(&[&one, &one]).unwrap_err();
    assert!(twice.message().contains("two tensors with the name 'a', one of them in"), "{twice}");
}

#[test]
fn files_that_are_none_are_errors() {
    let folder = Folder::new("none");
    let kind = |path: &Path| load_weights(&[path]).unwrap_err().kind();
    assert_eq!(kind(&folder.file("missing.gguf")), ErrorKind::Value);
    fs::create_dir(folder.file("folder.gguf")).unwrap();
    assert_eq!(kind(&folder.file("folder.gguf")), ErrorKind::Runtime);
    for name in ["empty.gguf", "empty.pt", "empty.safetensors"] {
        fs::write(folder.file(name), "").unwrap();
        assert_eq!(kind(&folder.file(name)), ErrorKind::Value);
        assert!(inspect(folder.file(name)).is_err());
    }
    fs::write(folder.file("text.txt"), "some text").unwrap();
    assert!(inspect(folder.file("text.txt")).unwrap_err().message().contains("cannot be inferred"));
    assert_eq!(
        save_weights(folder.file("w.pt"), &all(&[]), &Metadata::new()).unwrap_err().kind(),
        ErrorKind::Value
    );
    let nowhere = save_weights(folder.file("missing/w.gguf"), &all(&[]), &Metadata::new()).unwrap_err();
    assert_eq!(nowhere.kind(), ErrorKind::Runtime);
}

#[test]
fn nothing_is_half_written() {
    let folder = Folder::new("whole");
    let path = folder.file("w.gguf");
    save_weights(&path, &all(&[("w", floats(&[1.0; 4], &[4]))]), &Metadata::new()).unwrap();
    let old = load_weights(&[&path]).unwrap();
    // GGUF has no bool, so this fails, and leaves the file and the folder as they were.
    let flags = floats(&[1.0; 4], &[4]).astype(DType::Bool).unwrap();
    assert!(save_weights(&path, &all(&[("w", flags)]), &Metadata::new()).is_err());
    assert_eq!(read(&path, "w"), [1.0; 4]);
    // A file that is in use can be replaced.
    save_weights(&path, &all(&[("w", floats(&[2.0; 4], &[4]))]), &Metadata::new()).unwrap();
    assert_eq!(old.get("w").unwrap().data.to_vec::<f32>().unwrap(), [1.0; 4]);
    assert_eq!(read(&path, "w"), [2.0; 4]);
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1);
}

#[test]
fn files_that_shrink_are_noticed() {
    let folder = Folder::new("shrink");
    let path = folder.file("w.safetensors");
    let values = vec![1.0; 1 << 14];
    save_weights(&path, &all(&[("w", floats(&values, &[1 << 14]))]), &Metadata::new()).unwrap();
    let weights = load_weights(&[&path]).unwrap();
    fs::File::options().write(true).open(&path).unwrap().set_len(1 << 12).unwrap();
    let error = weights.get("w").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Runtime);
    assert!(error.message().contains("truncated after it was loaded"), "{error}");
    assert!(weights.info("w").is_ok());
}

#[test]
fn weights_are_not_copied() {
    let folder = Folder::new("mapped");
    let path = folder.file("w.safetensors");
    save_weights(&path, &all(&[("w", matrix())]), &Metadata::new()).unwrap();
    let weights = load_weights(&[&path]).unwrap();
    let (a, b) = (weights.get("w").unwrap().data, weights.get("w").unwrap().data);
    assert_eq!(a.data_ptr(), b.data_ptr());
    // They outlive what loaded them, and writes never reach the file.
    drop(weights);
    a.fill(7.into()).unwrap();
    assert_eq!(b.to_vec::<f32>().unwrap(), [7.0; 512]);
    assert_ne!(read(&path, "w"), [7.0; 512]);
}

#[test]
fn weights_are_converted() {
    let folder = Folder::new("convert");
    let input = folder.file("model.safetensors");
    let ids: WeightData = Buffer::from_slice(&[1i64, 2], &[1, 2]).unwrap().into();
    let entries = [
        ("norm", floats(&[1.0; 256], &[256])),
        ("proj", matrix()),
        ("odd", floats(&[1.0; 6], &[2, 3])),
        ("ids", ids),
    ];
    save_weights(&input, &all(&entries), &Metadata::from([("format".into(), "pt".into())])).unwrap();
    let to = |name: &str, target: Option<&str>| {
        let (path, mut seen) = (folder.file(name), Vec::new());
        let done = convert(&[&input], &path, target.map(|name| name.parse().unwrap()), |progress| {
            assert!(progress.written <= progress.total);
            seen.push(progress.written);
        })
        .unwrap();
        assert_eq!((done.tensors, seen.len(), *seen.last().unwrap()), (4, 5, done.bytes_written));
        (load_weights(&[path]).unwrap(), done)
    };

    let (same, done) = to("same.gguf", None);
    assert_eq!((done.converted, done.bytes_read), (0, done.bytes_written));
    assert_eq!(same.metadata()["format"].as_str(), Some("pt"));
    assert_eq!(same.get("odd").unwrap().shape(), [2, 3]);

    let (halves, done) = to("halves.safetensors", Some("bfloat16"));
    assert_eq!((done.converted, done.not_whole.len()), (2, 0));
    let dtypes = ["norm", "proj", "odd", "ids"].map(|name| halves.info(name).unwrap().dtype);
    assert_eq!(dtypes, [DType::Float32, DType::BFloat16, DType::BFloat16, DType::Int64]);

    let (blocks, done) = to("blocks.gguf", Some("q4_k"));
    assert_eq!((done.converted, &done.not_whole[..]), (1, &["odd".to_string()][..]));
    let proj = blocks.get("proj").unwrap();
    assert_eq!(proj.quantization_encoding, Some(QuantizationEncoding::Q4_K));
    let direct = matrix().encode(QuantizationEncoding::Q4_K).unwrap();
    assert_eq!(proj.data.host_bytes(), direct.data.host_bytes());
    assert_eq!(blocks.metadata()["general.quantization_version"].as_u64(), Some(2));

    // From blocks to another encoding, and back to floats.
    let gguf = folder.file("blocks.gguf");
    let target = |name: &str| Some(name.parse::<Target>().unwrap());
    convert(&[&gguf], folder.file("other.gguf"), target("q8_0"), |_| ()).unwrap();
    let other = load_weights(&[folder.file("other.gguf")]).unwrap().get("proj").unwrap();
    assert_eq!(other.quantization_encoding, Some(QuantizationEncoding::Q8_0));
    convert(&[&gguf], folder.file("back.safetensors"), target("float32"), |_| ()).unwrap();
    assert_eq!(read(&folder.file("back.safetensors"), "proj"), read(&gguf, "proj"));
    let encoded = convert(&[&gguf], folder.file("x.safetensors"), None, |_| ()).unwrap_err();
    assert!(encoded.message().contains("decode it to a dtype"), "{encoded}");

    for name in ["int8", "gptq", "q9", ""] {
        assert!(name.parse::<Target>().unwrap_err().message().contains("bfloat16"));
    }
    assert!(convert(&[&input], folder.file("w.bin"), None, |_| ()).is_err());
    // A file can be converted in place.
    convert(&[&input], &input, target("float16"), |_| ()).unwrap();
    assert_eq!(load_weights(&[&input]).unwrap().info("proj").unwrap().dtype, DType::Float16);
}

#[test]
fn long_weights_are_converted_in_pieces() {
    let folder = Folder::new("pieces");
    let values: Vec<f32> = (0..3 * 256 * 1111).map(|i| (i as f32 * 0.01).cos()).collect();
    let value = floats(&values, &[1111, 3 * 256]);
    save_weights(folder.file("f.safetensors"), &all(&[("w", value.clone())]), &Metadata::new()).unwrap();
    let target = Some(Target::Encoding(QuantizationEncoding::Q4_0));
    convert(&[folder.file("f.safetensors")], folder.file("q.gguf"), target, |_| ()).unwrap();
    let blocks = load_weights(&[folder.file("q.gguf")]).unwrap().get("w").unwrap();
    let direct = value.encode(QuantizationEncoding::Q4_0).unwrap();
    assert_eq!(blocks.data.host_bytes(), direct.data.host_bytes());
    convert(
        &[folder.file("q.gguf")],
        folder.file("h.safetensors"),
        Some(Target::DType(DType::BFloat16)),
        |_| (),
    )
    .unwrap();
    let halves = load_weights(&[folder.file("h.safetensors")]).unwrap().get("w").unwrap();
    assert_eq!(halves.data.host_bytes(), direct.astype(DType::BFloat16).unwrap().data.host_bytes());
}

#[test]
fn files_are_described() {
    let folder = Folder::new("inspect");
    let gguf = folder.file("w.gguf");
    let value = matrix().encode(QuantizationEncoding::Q4_K).unwrap();
    save_weights(&gguf, &all(&[("w", value)]), &Metadata::from([("a".into(), f32::NAN.into())])).unwrap();
    // Content counts, not the name.
    fs::copy(&gguf, folder.file("w.weights")).unwrap();
    let found = inspect(folder.file("w.weights")).unwrap();
    assert_eq!((found.kind, found.file_bytes), (FileKind::Gguf, fs::metadata(&gguf).unwrap().len()));
    let tensor = &found.tensors[0];
    assert_eq!((&*tensor.name, &*tensor.dtype, tensor.encoding.as_deref()), ("w", "uint8", Some("q4_k")));
    assert_eq!((&tensor.shape[..], tensor.num_bytes), (&[Size::Static(2), Size::Static(144)][..], Some(288)));
    let json = serde_json::to_value(&found).unwrap();
    assert_eq!((&json["kind"], &json["tensors"][0]["shape"]), (&"gguf".into(), &serde_json::json!([2, 144])));
}

#[test]
fn graphs_are_described() {
    let folder = Folder::new("graph");
    let input = TensorType::new(DType::Float32, ("batch", 4), DeviceRef::CPU);
    let graph = Graph::build("affine", [input], |x| {
        let scale = ops::constant_external("scale", TensorType::new(DType::Float32, [4], DeviceRef::CPU))?;
        let bias = max_graph::HostTensor::from_vec([4], vec![1f32; 4])?;
        ops::relu(((x[0].tensor()? * scale)? + ops::constant(bias, None, None)?)?)
    })
    .unwrap();
    let path = folder.file("affine.maxgraph");
    let bytes: Vec<u8> = encode::encode(&graph.body()).iter().flat_map(|piece| piece.to_vec()).collect();
    fs::write(&path, &bytes).unwrap();
    let found = inspect(&path).unwrap();
    assert_eq!(
        (found.kind, found.file_bytes, &*found.tensors[0].name),
        (FileKind::Graph, bytes.len() as u64, "scale")
    );
    let graph = found.graph.unwrap();
    assert_eq!((&*graph.name, &graph.inputs[..]), ("affine", &["float32[batch, 4]".to_string()][..]));
    assert_eq!((graph.outputs.len(), graph.constant_bytes, graph.ops["relu"]), (1, 16, 1));

    for (at, value) in [(9, 7), (40, 0xff), (bytes.len() - 1, 1)] {
        let mut damaged = bytes.clone();
        damaged[at] ^= value;
        fs::write(&path, damaged).unwrap();
        assert!(inspect(&path).is_err(), "{at}");
    }
}
