//! Buffers, streams and memory on a GPU; skipped without one.

use std::ffi::{c_int, c_uint, c_void};
use std::io::Write;
use std::sync::Once;

use max_core::{Bool, DType, ErrorKind, Number, ViewIndex, dispatch};
use max_driver::{Access, Buffer, Device, Stream, cuda::Event, dlpack};

/// The first GPU. Without one, a single line says why the tests are skipped.
fn gpu() -> Option<Device> {
    static TOLD: Once = Once::new();
    match Device::accelerator(None) {
        Ok(device) => Some(device),
        Err(error) => {
            // Not eprintln!, whose output tests capture.
            TOLD.call_once(|| drop(writeln!(std::io::stderr(), "skipped: no GPU: {error}")));
            None
        }
    }
}

macro_rules! on_gpu {
    ($device:ident) => {
        let Some($device) = gpu() else { return };
    };
}

fn slice(start: Option<i64>, stop: Option<i64>, step: i64) -> ViewIndex {
    ViewIndex::Slice { start, stop, step }
}

fn numbers(shape: &[usize]) -> Buffer {
    let count: usize = shape.iter().product();
    Buffer::from_slice(&(0..count as i32).collect::<Vec<_>>(), shape).unwrap()
}

fn stat(device: &Device, name: &str) -> i128 {
    match device.stats().get(name) {
        Some(&Number::Int(value)) => value,
        other => panic!("{name} is {other:?} in {:?}", device.stats()),
    }
}

#[test]
fn a_gpu_describes_itself() {
    on_gpu!(device);
    let (major, minor) = device.gpu().unwrap().compute_capability();
    assert_eq!(device.architecture_name().unwrap(), format!("sm_{major}{minor}"));
    assert_eq!((device.label(), device.api(), device.is_host()), ("gpu", "cuda", false));
    assert!(!device.model_name().is_empty() && !device.is_host_unified());
    assert!(device.can_access(&device) && !device.can_access(&Device::cpu()));
    assert!(!Device::cpu().can_access(&device));
    assert_eq!(Device::from_ref(device.device_ref()), Ok(device.clone()));
    let error = Device::accelerator(Some(4000)).unwrap_err();
    assert!(error.message().contains("gpu:4000") && error.message().contains("this machine has"), "{error}");
    assert!(device.default_stream().handle().is_some_and(|handle| handle > 2));
}

#[test]
fn new_buffers_are_zero_whatever_the_memory_held() {
    on_gpu!(device);
    for &dtype in DType::ALL {
        for shape in [&[][..], &[0], &[3, 5], &[70_001], &[0, 7]] {
            let dirty = Buffer::uninit_pooled(dtype, shape, &device).unwrap();
            dirty.fill(Number::Int(1)).unwrap();
            drop(dirty);
            let buffer = Buffer::new(dtype, shape, &device).unwrap();
            assert!(buffer.is_contiguous() && !buffer.is_host() && !buffer.pinned());
            assert!(buffer.data_ptr().addr().is_multiple_of(256), "{:?}", buffer.data_ptr());
            assert_eq!(buffer.host_bytes().unwrap_err().kind(), ErrorKind::Runtime);
            let bytes = buffer.to(&Device::cpu()).unwrap().host_bytes().unwrap();
            assert!(bytes.iter().all(|&byte| byte == 0), "{dtype} {shape:?}");
        }
    }
}

#[test]
fn memory_is_reused_and_counted() {
    on_gpu!(device);
    let (elements, bytes) = (8 << 20, 32 << 20);
    let take = || Buffer::uninit_pooled(DType::Float32, &[elements], &device).unwrap();
    let (mut reused, mut pooled) = (false, false);
    // Other tests allocate concurrently, so success in one of many rounds is enough.
    for _ in 0..50 {
        let buffer = take();
        assert!(stat(&device, "bytes_in_use") >= bytes, "{:?}", device.stats());
        let address = buffer.data_ptr();
        drop(buffer);
        reused |= take().data_ptr() == address;
        device.synchronize().unwrap();
        pooled |= stat(&device, "bytes_pooled") > 0;
    }
    assert!(reused && pooled, "freed memory was never reused: {:?}", device.stats());
    assert!(stat(&device, "total_memory") >= stat(&device, "free_memory"));
    assert!(stat(&device, "free_memory") > 0);
    if let Some(watts) = device.stats().get("power_usage") {
        assert!(matches!(watts, Number::Float(watts) if *watts > 0.), "{:?}", device.stats());
        assert!((0..=100).contains(&stat(&device, "gpu_utilization")), "{:?}", device.stats());
    }
}

#[test]
fn elements_go_there_and_back() {
    on_gpu!(device);
    let cpu = Device::cpu();
    for count in [0, 1, 3, 1000, 3_000_001] {
        let host = numbers(&[count]);
        let there = host.to(&device).unwrap();
        assert_eq!((there.device(), there.shape()), (&device, host.shape()));
        let copy = there.copy(None).unwrap();
        assert!(count == 0 || copy.data_ptr() != there.data_ptr());
        there.fill(Number::Int(-1)).unwrap();
        assert_eq!(copy.to(&cpu).unwrap().to_vec::<i32>(), host.to_vec::<i32>());
        assert_eq!(there.to_vec::<i32>().unwrap(), vec![-1; count]);
        assert_eq!(there.to(&device).unwrap().data_ptr(), there.data_ptr());
        let target = Buffer::new(DType::Int32, &[count, 1], &cpu).unwrap();
        target.inplace_copy_from(&copy).unwrap();
        assert_eq!(target.to_vec::<i32>(), host.to_vec::<i32>());
        there.inplace_copy_from(&target).unwrap();
        assert_eq!(there.to_vec::<i32>(), host.to_vec::<i32>());
    }
    let error = numbers(&[2]).to(&device).unwrap().copy_from(&numbers(&[3])).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Value);
}

#[test]
fn scalars_items_and_text() {
    on_gpu!(device);
    for &dtype in DType::ALL {
        let one = Buffer::scalar(Number::Int(1), dtype, &device).unwrap();
        assert_eq!(one.shape(), []);
        assert_eq!(one.item(), Buffer::scalar(Number::Int(1), dtype, &Device::cpu()).unwrap().item());
    }
    let buffer = numbers(&[2, 3]).to(&device).unwrap();
    assert_eq!(buffer.to_string(), numbers(&[2, 3]).to_string());
    assert_eq!(
        format!("{buffer:?}"),
        format!("max.driver.Buffer(DType.int32, (2, 3), gpu[{}])", device.id())
    );
    assert_eq!(buffer.index(&[ViewIndex::At(1), ViewIndex::At(-1)]).unwrap().item(), Ok(Number::Int(5)));
    assert_eq!(buffer.item().unwrap_err().kind(), ErrorKind::Value);
    let refused = Buffer::new(DType::UInt8, &[4], &device).unwrap().fill(Number::Int(300)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Value);
}

/// Operations on a view of a buffer do the same on the GPU as on the host.
fn same_as_on_the_host(device: &Device, shape: &[usize], dtype: DType, view: &[ViewIndex]) {
    let host = Buffer::new(dtype, shape, &Device::cpu()).unwrap();
    let count = host.num_elements();
    dispatch!(dtype, T => {
        let elements: Vec<T> = (0..count).map(|i| Number::Int((i % 7) as i128).to_element::<T>()
            .or_else(|_| Number::Bool(i % 7 > 3).to_element::<T>()).unwrap()).collect();
        host.copy_from(&Buffer::from_slice(&elements, shape).unwrap()).unwrap();
    });
    let there = host.to(device).unwrap();
    let bytes = |buffer: &Buffer| buffer.to(&Device::cpu()).unwrap().host_bytes().unwrap().to_vec();
    let context = || format!("{dtype} {shape:?} {view:?}");

    let (part, its) = (host.index(view).unwrap(), there.index(view).unwrap());
    assert_eq!(bytes(&its.contiguous().unwrap()), bytes(&part.contiguous().unwrap()), "{}", context());
    // From a strided view into one on the other device.
    let back = Buffer::new(dtype, shape, &Device::cpu()).unwrap();
    back.index(view).unwrap().copy_from(&its).unwrap();
    let wanted = Buffer::new(dtype, shape, &Device::cpu()).unwrap();
    wanted.index(view).unwrap().copy_from(&part).unwrap();
    assert_eq!(bytes(&back), bytes(&wanted), "{}", context());
    // Into a strided view, from the host and from the GPU.
    for source in [part.contiguous().unwrap(), its.contiguous().unwrap(), part.clone(), its.clone()] {
        let target = Buffer::new(dtype, shape, device).unwrap();
        target.index(view).unwrap().copy_from(&source).unwrap();
        assert_eq!(bytes(&target), bytes(&wanted), "{} from {source:?}", context());
    }
    its.fill(Number::Int(1)).unwrap();
    part.fill(Number::Int(1)).unwrap();
    assert_eq!(bytes(&there), bytes(&host), "{}", context());
}

#[test]
fn strided_views_of_every_type() {
    on_gpu!(device);
    let all = ViewIndex::ALL;
    let views: &[(&[usize], &[ViewIndex])] = &[
        (&[7], &[slice(None, None, -1)]),
        (&[40], &[slice(Some(1), None, 3)]),
        (&[6, 8], &[all, slice(Some(2), Some(6), 1)]),
        (&[6, 8], &[slice(None, None, -2), slice(None, None, 3)]),
        (&[6, 8], &[all, ViewIndex::At(3)]),
        (&[3, 4, 5], &[all, ViewIndex::NewAxis, slice(None, None, -1), slice(None, None, 2)]),
        (&[3, 4, 0], &[all, slice(None, None, 2), all]),
        (&[5, 64], &[slice(None, None, 2), slice(Some(16), Some(48), 1)]),
        (&[2; 9], &[slice(None, None, -1); 9]),
        (&[3; 8], &[slice(None, None, 2); 8]),
    ];
    for (shape, view) in views {
        for &dtype in DType::ALL {
            same_as_on_the_host(&device, shape, dtype, view);
        }
    }
}

#[test]
fn addresses_need_not_be_aligned() {
    on_gpu!(device);
    let bytes: Vec<u8> = (0..64).collect();
    let there = Buffer::from_slice(&bytes, &[64]).unwrap().to(&device).unwrap();
    let odd = |buffer: &Buffer| buffer.index(&[slice(Some(3), Some(51), 1)]).unwrap();
    let words = odd(&there).view(DType::UInt64, None).unwrap();
    let same = odd(&Buffer::from_slice(&bytes, &[64]).unwrap()).view(DType::UInt64, None).unwrap();
    assert_eq!(words.to_vec::<u64>(), same.to_vec::<u64>());
    let every = [slice(None, None, -2)];
    let (ours, theirs) = (words.index(&every).unwrap(), same.index(&every).unwrap());
    assert_eq!(ours.contiguous().unwrap().to_vec::<u64>(), theirs.to_vec::<u64>());
    ours.fill(Number::Int(1 << 40)).unwrap();
    theirs.fill(Number::Int(1 << 40)).unwrap();
    words
        .view(DType::UInt32, None)
        .unwrap()
        .index(&[ViewIndex::At(2)])
        .unwrap()
        .fill(Number::Int(77))
        .unwrap();
    same.view(DType::UInt32, None)
        .unwrap()
        .index(&[ViewIndex::At(2)])
        .unwrap()
        .fill(Number::Int(77))
        .unwrap();
    assert_eq!(words.to_vec::<u64>(), same.to_vec::<u64>());
}

#[test]
fn fills_of_every_size() {
    on_gpu!(device);
    for &dtype in DType::ALL {
        for value in [Number::Int(0), Number::Int(1), Number::Float(0.5), Number::Int(100)] {
            let (here, there) =
                (Buffer::new(dtype, &[33], &Device::cpu()), Buffer::new(dtype, &[33], &device));
            let (here, there) = (here.unwrap(), there.unwrap());
            assert_eq!(here.fill(value), there.fill(value), "{dtype} {value:?}");
            let bytes = there.to(&Device::cpu()).unwrap().host_bytes().unwrap();
            assert_eq!(bytes, here.host_bytes().unwrap(), "{dtype} {value:?}");
        }
    }
    let flags = Buffer::new(DType::Bool, &[3], &device).unwrap();
    flags.index(&[ViewIndex::At(1)]).unwrap().fill(Number::Bool(true)).unwrap();
    assert_eq!(flags.to_vec::<Bool>().unwrap(), [Bool::FALSE, Bool::TRUE, Bool::FALSE]);
}

#[test]
fn overlapping_copies_read_before_they_write() {
    on_gpu!(device);
    let copied = |to: ViewIndex, from: ViewIndex| {
        let all = numbers(&[6]).to(&device).unwrap();
        all.index(&[to]).unwrap().copy_from(&all.index(&[from]).unwrap()).unwrap();
        all.to_vec::<i32>().unwrap()
    };
    assert_eq!(copied(slice(Some(1), None, 1), slice(None, Some(-1), 1)), [0, 0, 1, 2, 3, 4]);
    assert_eq!(copied(slice(None, Some(-1), 1), slice(Some(1), None, 1)), [1, 2, 3, 4, 5, 5]);
    assert_eq!(copied(ViewIndex::ALL, slice(None, None, -1)), [5, 4, 3, 2, 1, 0]);
    assert_eq!(copied(ViewIndex::ALL, ViewIndex::ALL), [0, 1, 2, 3, 4, 5]);
}

#[test]
fn streams_wait_where_they_are_told_to() {
    on_gpu!(device);
    // Copies of this size take a while; a reader that does not wait for them sees the zeros.
    let count = 64 << 20;
    let (first, second) = (Stream::new(&device).unwrap(), Stream::new(&device).unwrap());
    assert!(first != second && first != device.default_stream());
    assert_eq!(first.device(), &device);
    let target = Buffer::new(DType::Int32, &[count], &first).unwrap();
    assert_eq!(target.stream(), &first);
    for round in 1..=8 {
        let source = Buffer::uninit_pooled(DType::Int32, &[count], &first).unwrap();
        source.fill(Number::Int(round)).unwrap();
        target.copy_from(&source).unwrap();
    }
    // Through the buffer: the view on the other stream starts after the pending work.
    let seen = target.to_stream(&second).unwrap();
    assert_eq!(seen.data_ptr(), target.data_ptr());
    let last = seen.index(&[ViewIndex::At(-1)]).unwrap().copy_to_stream(&second).unwrap();
    assert_eq!(last.stream(), &second);
    assert_eq!(last.item(), Ok(Number::Int(8)));
    // Between devices and streams, implicitly.
    target.fill(Number::Int(9)).unwrap();
    second.wait_for(&first).unwrap();
    let event = Event::record(&second, false).unwrap();
    event.synchronize().unwrap();
    assert!(event.is_done().unwrap());
    device.default_stream().wait_for(&second).unwrap();
    first.wait_for(&device).unwrap();
    let other = target.copy_to_stream(&device.default_stream()).unwrap();
    target.fill(Number::Int(10)).unwrap();
    assert_eq!(other.index(&[ViewIndex::At(0)]).unwrap().item(), Ok(Number::Int(9)));
    first.synchronize().unwrap();
    device.synchronize().unwrap();
    assert_eq!(target.index(&[ViewIndex::At(count as i64 / 2)]).unwrap().item(), Ok(Number::Int(10)));
}

#[test]
fn memory_is_not_reused_before_other_streams_have_read_it() {
    on_gpu!(device);
    let count = 32 << 20;
    let (home, reader) = (Stream::new(&device).unwrap(), Stream::new(&device).unwrap());
    // The reader is busy for a while before it gets to the copy.
    let busy = Buffer::new(DType::UInt8, &[1 << 30], &reader);
    for round in 0..4 {
        let source = Buffer::uninit_pooled(DType::Int32, &[count], &home).unwrap();
        source.fill(Number::Int(round)).unwrap();
        let view = source.to_stream(&reader).unwrap();
        for value in 0..4 {
            let _ = busy.as_ref().map(|busy| busy.fill(Number::Int(value)));
        }
        let copy = view.copy_to_stream(&reader).unwrap();
        drop((source, view));
        // The same memory, written immediately by its home stream.
        let next = Buffer::uninit_pooled(DType::Int32, &[count], &home).unwrap();
        next.fill(Number::Int(-1)).unwrap();
        let ends =
            [0, count as i64 / 3, -1].map(|i| copy.index(&[ViewIndex::At(i)]).unwrap().item().unwrap());
        assert_eq!(ends, [Number::Int(round); 3]);
    }
}

#[test]
fn pinned_memory_is_the_hosts_and_waits() {
    on_gpu!(device);
    let count = 16 << 20;
    let pinned = Buffer::new_pinned(DType::Int32, &[count], &device).unwrap();
    assert!(pinned.pinned() && pinned.is_host() && pinned.device() == &Device::cpu());
    assert!(pinned.host_bytes().unwrap().iter().all(|&byte| byte == 0));
    let there = Buffer::uninit_pooled(DType::Int32, &[count], &device).unwrap();
    for round in 1..=3 {
        // Each step starts while the one before may still be running.
        pinned.fill(Number::Int(round)).unwrap();
        there.copy_from(&pinned).unwrap();
        pinned.fill(Number::Int(-round)).unwrap();
        let ends = [0, -1].map(|i| there.index(&[ViewIndex::At(i)]).unwrap().item().unwrap());
        assert_eq!(ends, [Number::Int(round); 2]);
        there.fill(Number::Int(100 + round)).unwrap();
        pinned.copy_from(&there).unwrap();
        let read = pinned.index(&[slice(None, None, 1 << 20)]).unwrap().to_vec::<i32>().unwrap();
        assert!(read.iter().all(|&value| i128::from(value) == 100 + round), "{read:?}");
    }
    // The source is dropped while the copy may be running, and so is the target.
    there.copy_from(&pinned).unwrap();
    pinned.copy_from(&there).unwrap();
    drop(pinned);
    assert_eq!(there.index(&[ViewIndex::At(-1)]).unwrap().item(), Ok(Number::Int(103)));
    let any = Buffer::new_pinned(DType::Int8, &[0], &Device::cpu()).unwrap();
    assert!(any.pinned() && any.num_elements() == 0);
}

#[test]
fn out_of_memory_is_an_error_and_everything_keeps_working() {
    on_gpu!(device);
    let keep = numbers(&[1000]).to(&device).unwrap();
    let total = stat(&device, "total_memory") as usize;
    for bytes in [total + (1 << 30), 1 << 44, 1 << 60] {
        let error = Buffer::new(DType::UInt8, &[bytes], &device).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Memory, "{error}");
        let words = [&bytes.to_string(), &total.to_string(), "free"];
        assert!(words.iter().all(|word| error.message().contains(*word)), "{error}");
    }
    assert_eq!(keep.to_vec::<i32>(), numbers(&[1000]).to_vec::<i32>());
    let again = Buffer::new(DType::Int32, &[1000], &device).unwrap();
    again.copy_from(&keep).unwrap();
    assert_eq!(again.to_vec::<i32>(), numbers(&[1000]).to_vec::<i32>());
    device.synchronize().unwrap();
}

#[test]
fn buffers_are_exported_by_dlpack_and_imported_again() {
    on_gpu!(device);
    let buffer = numbers(&[3, 4]).to(&device).unwrap();
    let view = buffer.index(&[slice(None, None, -1), slice(Some(1), None, 2)]).unwrap();
    // SAFETY: the legacy stream always exists.
    unsafe { view.release_to(Some(1)).unwrap() };
    let tensor = dlpack::export_versioned(&view, false);
    // SAFETY: the tensor is alive until it is consumed, once.
    let (place, again) = unsafe { ((*tensor).dl_tensor.device, dlpack::import_versioned(tensor).unwrap()) };
    assert_eq!((place.device_type, place.device_id), (2, device.id() as i32));
    assert_eq!(
        (again.device(), again.data_ptr(), again.strides()),
        (&device, view.data_ptr(), view.strides())
    );
    let wanted = view.to_vec::<i32>().unwrap();
    drop((buffer, view));
    assert_eq!(again.to_vec::<i32>().unwrap(), wanted);
    again.fill(Number::Int(5)).unwrap();
    assert_eq!(again.to_vec::<i32>().unwrap(), [5; 6]);
    // SAFETY: as above; managed memory is used like memory of its device.
    let managed = unsafe {
        let tensor = dlpack::export(&again).unwrap();
        (*tensor).dl_tensor.device.device_type = 13;
        dlpack::import(tensor).unwrap()
    };
    assert_eq!(managed.device(), &device);
}

/// A buffer that borrows the memory of another.
fn borrow(owner: &Buffer) -> Buffer {
    let (ptr, device) = (owner.data_ptr().cast_mut(), owner.device());
    let shape = owner.shape();
    // SAFETY: the buffer that owns the memory is kept as the owner.
    unsafe {
        Buffer::from_raw(ptr, owner.dtype(), shape, None, device, Access::ReadWrite, Box::new(owner.clone()))
    }
    .unwrap()
}

/// The last element, read in the order of a stream that knows of no other.
fn last_seen_on(stream: &Stream, buffer: &Buffer) -> Number {
    let seen = Buffer::uninit_pooled(buffer.dtype(), buffer.shape(), stream).unwrap();
    seen.copy_from(buffer).unwrap();
    seen.index(&[ViewIndex::At(-1)]).unwrap().item().unwrap()
}

#[test]
fn foreign_memory_is_released_when_its_work_is_done() {
    on_gpu!(device);
    let theirs = Buffer::new(DType::Int32, &[16 << 20], &device).unwrap();
    device.synchronize().unwrap();
    let stream = Stream::new(&device).unwrap();
    let view = borrow(&theirs).to_stream(&stream).unwrap();
    view.fill(Number::Int(3)).unwrap();
    drop(view);
    // The owner may use it in any order afterwards: nothing is pending.
    assert_eq!(last_seen_on(&Stream::new(&device).unwrap(), &theirs), Number::Int(3));
}

#[test]
fn memory_that_was_given_back_is_not_waited_for() {
    on_gpu!(device);
    let owners = Stream::new(&device).unwrap();
    let theirs = Buffer::uninit_pooled(DType::Int32, &[64 << 20], &owners).unwrap();
    for value in 0..20 {
        let ours = borrow(&theirs);
        (0..20).for_each(|_| ours.fill(Number::Int(-1)).unwrap());
        ours.fill(Number::Int(value)).unwrap();
        let pending = Event::record(&device.default_stream(), false).unwrap();
        owners.wait_for(&device).unwrap();
        // SAFETY: the owner's stream waits for our work, of which there is no more.
        unsafe { ours.give_back() };
        drop(ours);
        assert!(!pending.is_done().unwrap(), "filling takes milliseconds, and nothing waits for it");
        assert_eq!(last_seen_on(&owners, &theirs), Number::Int(value));
    }
    // SAFETY: memory that is not borrowed needs no giving back.
    unsafe { Buffer::from([1i32]).give_back() };
}

#[test]
fn threads_share_a_gpu() {
    on_gpu!(device);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let device = &device;
            scope.spawn(move || {
                let own = Stream::new(device).unwrap();
                for round in 0..50i32 {
                    let place = if round % 2 == 0 { &own } else { &device.default_stream() };
                    let size = 1000 * (1 + (round as usize + thread) % 7);
                    let (value, cpu) = (thread as i32 * 1000 + round, Device::cpu());
                    let host = Buffer::from(vec![value; size]);
                    let there = host.copy_to_stream(place).unwrap();
                    let other = there.copy_to_stream(&own).unwrap();
                    let odd = other.index(&[slice(None, None, -3)]).unwrap().contiguous().unwrap();
                    there.fill(Number::Int(0)).unwrap();
                    drop(there);
                    let back = odd.to(&cpu).unwrap().to_vec::<i32>().unwrap();
                    assert!(back.len() == size.div_ceil(3) && back.iter().all(|&found| found == value));
                }
            });
        }
    });
    device.synchronize().unwrap();
}

#[test]
fn buffers_move_between_threads_and_are_dropped_anywhere() {
    on_gpu!(device);
    let (sender, receiver) = std::sync::mpsc::channel::<Buffer>();
    let summing = std::thread::spawn(move || {
        receiver.iter().map(|buffer| i128::from(buffer.to_vec::<i32>().unwrap()[0])).sum::<i128>()
    });
    for i in 0..100 {
        let stream = Stream::new(&device).unwrap();
        let buffer = Buffer::scalar(Number::Int(i), DType::Int32, &stream).unwrap();
        sender.send(buffer.view(DType::Int32, Some(&[1])).unwrap()).unwrap();
    }
    drop(sender);
    assert_eq!(summing.join().unwrap(), 4950);
}

#[test]
fn foreign_contexts_stay_current() {
    on_gpu!(device);
    let (kept, cpu) = (numbers(&[6]).to(&device).unwrap(), Device::cpu());
    let ended = kept.copy(None).unwrap();
    let other_library = || {
        // SAFETY: the driver is loaded already; the types of its functions are the published ones.
        unsafe {
            let driver = libloading::Library::new("libcuda.so.1").unwrap();
            type Create = unsafe extern "C" fn(*mut *mut c_void, c_uint, c_int) -> c_int;
            type Current = unsafe extern "C" fn(*mut *mut c_void) -> c_int;
            type Destroy = unsafe extern "C" fn(*mut c_void) -> c_int;
            let create = driver.get::<Create>("cuCtxCreate_v2").unwrap();
            let current = driver.get::<Current>("cuCtxGetCurrent").unwrap();
            let destroy = driver.get::<Destroy>("cuCtxDestroy_v2").unwrap();
            let (mut theirs, mut now) = (std::ptr::null_mut(), std::ptr::null_mut());
            assert_eq!(create(&raw mut theirs, 0, 0), 0);
            let stream = Stream::new(&device).unwrap();
            let there = kept.to_stream(&stream).unwrap();
            let odd = there.index(&[slice(None, None, -2)]).unwrap().contiguous().unwrap();
            assert_eq!(odd.to(&cpu).unwrap().to_vec::<i32>().unwrap(), [5, 3, 1]);
            let pinned = Buffer::new_pinned(DType::Int32, &[6], &device).unwrap();
            pinned.copy_from(&there).unwrap();
            assert_eq!(pinned.to_vec::<i32>().unwrap(), [0, 1, 2, 3, 4, 5]);
            assert!(Event::record(&stream, false).unwrap().synchronize().is_ok());
            drop((ended, there, odd, pinned, stream));
            device.synchronize().unwrap();
            assert_eq!(current(&raw mut now), 0);
            assert_eq!(now, theirs);
            assert_eq!(destroy(theirs), 0);
        }
    };
    std::thread::scope(|scope| scope.spawn(other_library).join().unwrap());
}

#[test]
fn without_a_gpu_pinned_memory_is_ordinary() {
    if max_driver::accelerator_count() > 0 {
        return;
    }
    let buffer = Buffer::new_pinned(DType::Int32, &[3], &Device::cpu()).unwrap();
    assert!(!buffer.pinned() && buffer.is_host());
    assert_eq!(buffer.to_vec::<i32>().unwrap(), [0; 3]);
}
