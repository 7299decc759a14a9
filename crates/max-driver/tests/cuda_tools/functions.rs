use max_core::{DType, ErrorKind};
use max_driver::Stream;

use super::{add, address, download, gpu, source, upload};

#[test]
fn a_function_adds_numbers() {
    let Some((device, gpu)) = gpu() else { return };
    let n = 1000;
    let values: Vec<f64> = (0..n).map(f64::from).collect();
    let (a, b) = (upload(DType::Float32, &values, &device), upload(DType::Float32, &values, &device));
    let out = upload(DType::Float32, &vec![-1.0; n as usize], &device);
    let functions = gpu.functions(&[add()]).unwrap();
    let params = [address(&a), address(&b), address(&out), n as u64];
    let stream = device.default_stream();
    // SAFETY: the buffers have `n` elements and live until the results have been read.
    unsafe {
        functions[0].launch(&stream, [0, 1, 1], [256, 1, 1], 0, &params).unwrap();
        assert_eq!(download(&out), vec![-1.0; n as usize], "an empty grid does nothing");
        functions[0].launch(&stream, [4, 1, 1], [256, 1, 1], 0, &params).unwrap();
    }
    assert_eq!(download(&out), values.iter().map(|value| value * 2.0).collect::<Vec<_>>());
    // SAFETY: it never starts.
    let error = unsafe { functions[0].launch(&stream, [1, 1, 1], [4096, 1, 1], 0, &params) }.unwrap_err();
    assert!(
        error.message().contains("cuLaunchKernelEx of add") && error.message().contains("4096"),
        "{error}"
    );
    // SAFETY: as above.
    let error =
        unsafe { functions[0].launch(&Stream::from(&max_driver::CPU()), [1, 1, 1], [1, 1, 1], 0, &params) };
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Internal);
}

#[test]
fn a_function_may_have_no_parameters() {
    let Some((device, gpu)) = gpu() else { return };
    let nothing = source("nothing", "", r#"extern "C" __global__ void nothing() {}"#);
    let function = gpu.functions(&[nothing]).unwrap().remove(0);
    // SAFETY: it does nothing.
    unsafe { function.launch(&device.default_stream(), [1, 1, 1], [1, 1, 1], 0, &[]) }.unwrap();
    device.synchronize().unwrap();
}

#[test]
fn large_shared_memory_is_available() {
    let Some((device, gpu)) = gpu() else { return };
    // Both need more than 48 KiB in total; the second asks for less than that at launch.
    for (name, fixed, asked) in [("all_asked_for", 1, 16 << 10), ("half_asked_for", 8 << 10, 8 << 10)] {
        let code = r#"extern "C" __global__ void NAME(float* out, long long n) {
            extern __shared__ float place[];
            __shared__ float fixed[FIXED];
            for (long long i = threadIdx.x; i < n; i += blockDim.x) place[n - 1 - i] = out[i];
            for (long long i = threadIdx.x; i < FIXED; i += blockDim.x) fixed[i] = i;
            __syncthreads();
            for (long long i = threadIdx.x; i < n; i += blockDim.x) out[i] = place[i] + fixed[i % FIXED];
        }"#;
        let code = code.replace("NAME", name).replace("FIXED", &fixed.to_string());
        let function = gpu.functions(&[source(name, "", &code)]).unwrap().remove(0);
        let out = upload(DType::Float32, &(0..asked).map(f64::from).collect::<Vec<_>>(), &device);
        let params = [address(&out), asked as u64];
        for _ in 0..2 {
            // SAFETY: there is as much memory as the function assumes.
            unsafe {
                function
                    .launch(&device.default_stream(), [1, 1, 1], [1024, 1, 1], asked as u32 * 4, &params)
                    .unwrap();
            }
        }
        let found = download(&out);
        for i in 0..asked {
            // Reversed twice, with something added each time.
            let expected = f64::from(i + i % fixed + (asked - 1 - i) % fixed);
            assert_eq!(found[i as usize], expected, "element {i} of {name}");
        }
        // SAFETY: it never starts.
        let error =
            unsafe { function.launch(&device.default_stream(), [1, 1, 1], [1024, 1, 1], 1 << 20, &params) };
        assert!(error.unwrap_err().message().contains("1048576 bytes of shared memory"));
    }
}

#[test]
fn functions_of_a_module_share_a_prelude() {
    let Some((device, gpu)) = gpu() else { return };
    let prelude = "struct Pair { float x, y; }; float sum(Pair p) { return p.x + p.y; }";
    let code = r#"extern "C" __global__ void NAME(float* out) { out[0] = sum(Pair{out[0], VALUE}); }"#;
    let named =
        |name: &str, value: &str| source(name, prelude, &code.replace("NAME", name).replace("VALUE", value));
    let sources = [named("one_more", "1.0f"), named("two_more", "2.0f"), named("one_more", "1.0f")];
    let functions = gpu.module(&sources).unwrap();
    let again = gpu.functions(&sources).unwrap();
    assert_eq!(format!("{:?}", again), "[Function(one_more), Function(two_more), Function(one_more)]");
    let out = upload(DType::Float32, &[0.0], &device);
    for function in functions.iter().chain(&again) {
        // SAFETY: there is one element.
        unsafe { function.launch(&device.default_stream(), [1; 3], [1; 3], 0, &[address(&out)]) }.unwrap();
    }
    assert_eq!(download(&out), [8.0]);
}

#[test]
fn many_threads_ask_for_many_functions() {
    let Some((device, gpu)) = gpu() else { return };
    let code = r#"extern "C" __global__ void set_NUMBER(float* out) { out[NUMBER] = NUMBER + 1; }"#;
    let sources: Vec<_> =
        (0..24).map(|n| source(&format!("set_{n}"), "", &code.replace("NUMBER", &n.to_string()))).collect();
    let out = upload(DType::Float32, &[0.0; 24], &device);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (sources, device, out) = (&sources, &device, &out);
            scope.spawn(move || {
                let mut sources = sources.clone();
                sources.rotate_left(thread * 6);
                let functions = gpu.functions(&sources).unwrap();
                for function in &functions {
                    let stream = device.default_stream();
                    // SAFETY: every function writes its own element, and all threads write the same value.
                    unsafe { function.launch(&stream, [1; 3], [1; 3], 0, &[address(out)]) }.unwrap();
                }
            });
        }
    });
    assert_eq!(download(&out), (1..=24).map(f64::from).collect::<Vec<_>>());
}

#[test]
fn a_bad_source_is_explained() {
    let Some((_, gpu)) = gpu() else { return };
    let bad = source("bad", "", "extern \"C\" __global__ void bad() { nonsense; }");
    let error = gpu.functions(&[add(), bad]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Internal);
    assert!(error.to_string().contains("nonsense") && error.to_string().contains("bad"), "{error}");
    let misnamed = source("other", "", r#"extern "C" __global__ void name() {}"#);
    let error = gpu.functions(&[misnamed]).unwrap_err();
    assert!(error.message().contains("cuModuleGetFunction of other"), "{error}");
}
