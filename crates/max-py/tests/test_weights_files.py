"""Files of weights: safetensors, GGUF, and checkpoints of PyTorch, against the packages that write them."""

from __future__ import annotations

import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import safetensors.numpy
from max.driver import Buffer
from max.dtype import DType
from max.engine import InferenceSession
from max.graph import DeviceRef, Graph, TensorType, ops
from max.graph.quantization import QuantizationEncoding, dequantize, quantize
from max.graph.weights import (
    GGUFWeights,
    PytorchWeights,
    SafetensorWeights,
    WeightData,
    Weights,
    WeightsFormat,
    load_weights,
    weights_format,
)

from helpers import dtype_of, pytorch

CHECKPOINTS = Path(__file__).parent / "goldens" / "checkpoints"

# Dtypes that NumPy lacks, and integers of their size.
BITS = {"bfloat16": np.int16, **{f"float8_{kind}": np.int8 for kind in ("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz")}}


def bits(buffer: Buffer) -> np.ndarray:
    """The elements of a buffer, or their bits."""
    name = buffer.dtype.name
    return buffer.view(DType.from_numpy(np.dtype(BITS[name]))).to_numpy() if name in BITS else buffer.to_numpy()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A safetensors file with names like those of a model."""
    tensors = {
        "model.layers.0.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
        "model.layers.0.bias": np.zeros(2, np.float32),
        "model.layers.10.weight": np.ones(1, np.int64),
        "scalar": np.array(3, np.float32),
        "data": np.ones(2, np.float32),
    }
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file(tensors, path, metadata={"format": "pt"})
    return path


def write_gguf(path: Path, tensors: dict[str, Any], metadata: Any = lambda writer: None) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    metadata(writer)
    for name, tensor in tensors.items():
        blocks, kind = tensor if isinstance(tensor, tuple) else (tensor, None)
        writer.add_tensor(name, blocks, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class TestFormats:
    def test_names_tell_them(self) -> None:
        assert weights_format([Path("a.safetensors"), Path("b.safetensors")]) is WeightsFormat.safetensors
        assert weights_format([Path("a.gguf")]) is WeightsFormat.gguf
        for name in ("a.bin", "a.pt", "a.pth"):
            assert weights_format([Path(name)]) is WeightsFormat.pytorch
        assert [member.value for member in WeightsFormat] == ["gguf", "safetensors", "pytorch"]
        assert str(WeightsFormat.gguf) == "WeightsFormat.gguf"

    @pytest.mark.parametrize("paths", [[], ["a.gguf", "b.safetensors"], ["a.txt"], ["a"]])
    def test_others_are_refused(self, paths: list[str]) -> None:
        with pytest.raises(ValueError, match="inferred"):
            weights_format([Path(path) for path in paths])
        with pytest.raises(ValueError, match="inferred"):
            load_weights([Path(path) for path in paths])

    @pytest.mark.parametrize("name", ["x.safetensors", "x.gguf", "x.pt"])
    def test_missing_and_damaged_files(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(ValueError, match="does not exist"):
            load_weights([tmp_path / name])
        for content in (b"", b"\0" * 100, b"GGUF", b"PK\x03\x04" * 20):
            (tmp_path / name).write_bytes(content)
            with pytest.raises(ValueError, match="x\\."):
                load_weights([tmp_path / name])


class TestNames:
    def test_paths(self, model: Path) -> None:
        weights = load_weights([model])
        assert isinstance(weights, SafetensorWeights) and isinstance(weights, Weights)
        assert (weights.name, weights.model.layers[0].name) == ("", "model.layers.0")
        assert weights.model.layers[0].weight.exists()
        assert weights["model"]["layers"]["0"].weight.exists()
        assert not weights.model.exists() and not weights.model.layers[5].weight.exists()
        assert not weights._private.exists()
        assert weights["data"].exists()
        for special in ("__array__", "__deepcopy__"):
            assert not hasattr(weights, special)
        with pytest.raises(TypeError):
            iter(weights)  # type: ignore[call-overload]
        assert repr(weights.model) == "SafetensorWeights('model')"

    def test_items(self, model: Path) -> None:
        weights = load_weights([model])
        names = {"model.layers.0.weight", "model.layers.0.bias", "model.layers.10.weight", "scalar", "data"}
        assert {name for name, _ in weights.items()} == names
        assert {(name, weight.name) for name, weight in weights.model.layers[0].items()} == {
            ("weight", "model.layers.0.weight"),
            ("bias", "model.layers.0.bias"),
        }
        assert list(weights.model.layers[1].items()) == []
        assert [(name, weight.name) for name, weight in weights.scalar.items()] == [("", "scalar")]
        state = {name: weight.data() for name, weight in weights.items()}
        np.testing.assert_array_equal(np.from_dlpack(state["model.layers.0.weight"]), [[0, 1, 2], [3, 4, 5]])

    def test_names_that_do_not_exist(self, model: Path) -> None:
        weights = load_weights([model])
        for call in (weights.model.data, weights.model.allocate, weights.model.allocate_as_bytes):  # type: ignore
            with pytest.raises(KeyError, match="'model' is not a weight"):
                call()
        with pytest.raises(KeyError, match="Did you mean 'model.layers.0.weight'"):
            weights.model.layers[0].wieght.data()

    def test_only_some(self, model: Path) -> None:
        weights = SafetensorWeights([model], tensors={"scalar"}, prefix="")
        assert [name for name, _ in weights.items()] == ["scalar"]
        assert not weights.model.layers[0].weight.exists()
        with pytest.raises(KeyError, match="asked for"):
            weights.model.layers[0].weight.data()
        below = SafetensorWeights([model], prefix="model.layers")
        assert below[0].weight.exists()


class TestAllocating:
    def test_weights_of_a_graph(self, model: Path, session: InferenceSession) -> None:
        weights = load_weights([model])
        layer = weights.model.layers[0]
        weight = layer.weight.allocate(DType.float32, [2, 3])
        bias = layer.bias.allocate()
        assert repr(weight) == "Weight(model.layers.0.weight, DType.float32, [Dim(2), Dim(3)], cpu:0)"
        assert set(weights.allocated_weights) == {"model.layers.0.weight", "model.layers.0.bias"}
        assert layer.allocated_weights is weights.allocated_weights
        with Graph("linear", input_types=[TensorType(DType.float32, ["batch", 3], DeviceRef.CPU())]) as graph:
            graph.output(ops.matmul(graph.inputs[0].tensor, ops.transpose(weight, 0, 1)) + bias)
        compiled = session.load(graph, weights_registry=weights.allocated_weights)
        result = compiled.execute(np.eye(3, dtype=np.float32))[0]
        np.testing.assert_array_equal(result.to_numpy(), [[0, 3], [1, 4], [2, 5]])
        assert layer.weight.allocate(device=DeviceRef.GPU(0)).device == DeviceRef.GPU(0)

    def test_what_is_wanted_is_checked(self, model: Path) -> None:
        weight = load_weights([model]).model.layers[0].weight
        with pytest.raises(ValueError, match="had different dtype .expected=DType.float16, actual=DType.float32"):
            weight.allocate(dtype=DType.float16)
        for shape in ((3, 2), (6,), ("a", 3)):
            with pytest.raises(ValueError, match="had different shape"):
                weight.allocate(shape=shape)
        with pytest.raises(ValueError, match="unquantized weight for model.layers.0.weight"):
            weight.allocate(quantization_encoding=QuantizationEncoding.Q4_0)
        assert weight.allocated_weights == {}

    def test_bytes(self, model: Path) -> None:
        weights = SafetensorWeights([model])
        weight = weights.model.layers[0].weight.allocate_as_bytes(DType.float32)
        assert (weight.dtype, weight.shape) == (DType.uint8, [2, 12])
        value = weights.allocated_weights["model.layers.0.weight"]
        expected = np.arange(6, dtype=np.float32).reshape(2, 3).view(np.uint8)
        np.testing.assert_array_equal(np.from_dlpack(value), expected)
        assert weights.scalar.allocate_as_bytes().shape == [4]
        with pytest.raises(ValueError, match="different dtype"):
            weights.scalar.allocate_as_bytes(DType.float16)


class TestSafetensors:
    def test_every_dtype(self, tmp_path: Path) -> None:
        path = tmp_path / "w.safetensors"
        dtypes = [DType.bool, *(d for d in DType if d.is_integral() or (d.is_float() and d.size_in_bytes > 1))]
        values = {d.name: WeightData.from_numpy(np.array([[0, 1, 1]], np.float32), "").astype(d) for d in dtypes}
        arrays = {name: bits(Buffer.from_dlpack(value)) for name, value in values.items()}
        header, data = {}, b""
        codes = {"bool": "BOOL", "bfloat16": "BF16"}
        for name, array in sorted(arrays.items(), key=lambda item: -item[1].itemsize):
            code = codes.get(name, name[0].upper() + name.lstrip("uintfloat"))
            header[name] = {"dtype": code, "shape": [1, 3], "data_offsets": [len(data), len(data) + array.nbytes]}
            data += array.tobytes()
        text = json.dumps(header).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + data)
        with safetensors.safe_open(path, "numpy") as file:  # it is a file for others too
            assert set(file.keys()) == set(arrays)
        weights = load_weights([path])
        for name, array in arrays.items():
            data_of = weights[name].data()
            assert (data_of.dtype, data_of.shape) == (dtype_of(name), [1, 3])
            np.testing.assert_array_equal(bits(Buffer.from_dlpack(data_of)), array)

    def test_shards(self, tmp_path: Path) -> None:
        files = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
        for value, (name, file) in enumerate(files.items()):
            safetensors.numpy.save_file({name: np.array([value], np.int32)}, tmp_path / file)
        index = tmp_path / "model.safetensors.index.json"
        index.write_text(json.dumps({"metadata": {}, "weight_map": files}))
        for paths in ([tmp_path / file for file in files.values()], [index]):
            weights = load_weights(paths)
            assert [name for name, _ in weights.items()] == ["a", "b"]
            assert Buffer.from_dlpack(weights.b.data()).to_numpy() == [1]

    def test_memory_is_that_of_the_file(self, model: Path) -> None:
        weights = load_weights([model])
        first, second = (weights.model.layers[0].weight.data().data for _ in range(2))
        assert isinstance(first, Buffer) and isinstance(second, Buffer)
        first[0, 0] = 7.0
        assert second[0, 0].item() == 7
        del weights, second
        assert first[0, 0].item() == 7
        assert load_weights([model]).model.layers[0].weight.data().data[0, 0].item() == 0  # type: ignore[index]
        assert load_weights([model]).metadata == {"format": "pt"}


class TestGGUF:
    @pytest.mark.parametrize("encoding", [e for e in QuantizationEncoding if e.is_gguf], ids=lambda e: e.name)
    def test_encodings(self, tmp_path: Path, encoding: QuantizationEncoding) -> None:
        values = np.random.default_rng(1).normal(size=(3, 512)).astype(np.float32)
        blocks = quantize(encoding, values)
        path = tmp_path / "w.gguf"
        write_gguf(path, {"blk.0.w": (blocks, gguf.GGMLQuantizationType[encoding.value])})
        weights = load_weights([path])
        assert isinstance(weights, GGUFWeights)
        data = weights.blk[0].w.data()
        assert (data.dtype, data.shape, data.quantization_encoding) == (DType.uint8, blocks.shape, encoding)
        np.testing.assert_array_equal(np.from_dlpack(data), blocks)
        decoded = data.astype(DType.float32)
        np.testing.assert_array_equal(np.from_dlpack(decoded), dequantize(encoding, blocks))

        weight = weights.blk[0].w.allocate(DType.uint8, quantization_encoding=QuantizationEncoding.Q4_0)
        assert (weight.quantization_encoding, weight.shape) == (encoding, blocks.shape)
        for shape in (values.shape, blocks.shape):
            assert weights.blk[0].w.allocate(shape=shape).shape == blocks.shape
        with pytest.raises(ValueError, match="different shape"):
            weights.blk[0].w.allocate(shape=(3, 511))
        with pytest.raises(ValueError, match="different dtype"):
            weights.blk[0].w.allocate(dtype=DType.float32)

    def test_dtypes(self, tmp_path: Path) -> None:
        kinds = (np.float32, np.float16, np.float64, np.int8, np.int16, np.int32, np.int64)
        arrays = {np.dtype(kind).name: np.arange(24).reshape(2, 3, 4).astype(kind) for kind in kinds}
        write_gguf(tmp_path / "w.gguf", arrays)
        weights = load_weights([tmp_path / "w.gguf"])
        for name, array in arrays.items():
            data = weights[name].data()
            assert (data.dtype, data.shape, data.quantization_encoding) == (dtype_of(name), [2, 3, 4], None)
            np.testing.assert_array_equal(np.from_dlpack(data), array)

    def test_metadata(self, tmp_path: Path) -> None:
        values = {
            "uint8": 200,
            "int8": -3,
            "uint16": 60000,
            "int16": -30000,
            "uint32": 4_000_000_000,
            "int32": -2_000_000_000,
            "uint64": 1 << 63,
            "int64": -(1 << 62),
            "float32": 0.25,
            "float64": 0.1,
            "bool": True,
            "string": "größer \u2581",
            "array": [1, 2, 3],
        }

        def add(writer: Any) -> None:
            for name, value in values.items():
                getattr(writer, f"add_{name}")(f"test.{name}", value)
            writer.add_array("test.tokens", ["a", "", "b"])
            writer.add_custom_alignment(128)

        path = tmp_path / "w.gguf"
        write_gguf(path, {"a": np.ones(3, np.float32), "b": np.ones((2, 5), np.int8)}, add)
        weights = load_weights([path])
        metadata = weights.metadata  # type: ignore[attr-defined]
        assert {name: metadata[f"test.{name}"] for name in values} == values
        assert metadata["test.tokens"] == ["a", "", "b"]
        assert (metadata["general.architecture"], metadata["general.alignment"]) == ("llama", 128)
        assert [name for name, _ in weights.items()] == ["a", "b"]
        np.testing.assert_array_equal(np.from_dlpack(weights.b.data()), np.ones((2, 5)))

    def test_a_reader_of_the_package(self, tmp_path: Path) -> None:
        path = tmp_path / "w.gguf"
        write_gguf(path, {"w": np.ones(3, np.float32)})
        for source in (path, str(path), gguf.GGUFReader(path)):
            assert GGUFWeights(source).w.exists()


class TestPytorch:
    @pytest.mark.parametrize("ending", [".pt", "-4.bin"])
    @pytest.mark.parametrize("name", ["modules", "dtypes", "views", "training"])
    def test_checkpoints(self, name: str, ending: str) -> None:
        weights = load_weights([CHECKPOINTS / f"{name}{ending}"])
        assert isinstance(weights, PytorchWeights)
        with np.load(CHECKPOINTS / f"{name}.npz") as expected:
            assert {path for path, _ in weights.items()} == set(expected)
            for path, weight in weights.items():
                data = weight.data()
                assert (data.dtype, data.shape) == (weight.dtype, weight.shape)
                assert weight.quantization_encoding is None
                found = bits(Buffer.from_dlpack(data))
                assert found.shape == expected[path].shape and found.dtype == expected[path].dtype
                np.testing.assert_array_equal(found, expected[path])

    def test_nothing_is_executed(self, tmp_path: Path) -> None:
        class Evil:
            def __reduce__(self) -> tuple[Any, ...]:
                return Path.touch, (tmp_path / "executed",)

        for protocol in (2, 3, 4, 5):
            path = tmp_path / f"evil{protocol}.pt"
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr("evil/data.pkl", pickle.dumps({"w": Evil()}, protocol))
            with pytest.raises(ValueError, match="is not among the few things that a state dict needs"):
                load_weights([path])
        assert not (tmp_path / "executed").exists()

    def test_what_is_no_checkpoint(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="PyTorch 1.6"):
            load_weights([CHECKPOINTS / "old.pth"])
        packed = tmp_path / "packed.pt"
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("m/data.pkl", pickle.dumps({}, 2) * 100)
        with pytest.raises(ValueError, match="compressed"):
            load_weights([packed])

    def test_what_torch_writes_now(self, tmp_path: Path) -> None:
        torch = pytorch()
        state = {"a": torch.randn(3, 4), "b": torch.randn(4, 6).to(torch.bfloat16)[:, ::2], "c": torch.randn(2, 3).T}
        torch.save(state, tmp_path / "w.pt")
        weights = load_weights([tmp_path / "w.pt"])
        for name, tensor in state.items():
            assert torch.equal(torch.from_dlpack(weights[name].data().data), tensor)
