//! Virtual devices. What an accelerator's number means is decided once per process, so this is one test.

use max_core::{DType, DeviceRef, ErrorKind, Number};
use max_driver::{
    Buffer, Device, DeviceSpec, Stream, accelerator_api, accelerator_count, devices_exist, dlpack,
    get_virtual_device_count, is_virtual_device_mode, load_devices, scan_available_devices,
    set_virtual_device_count,
};

#[test]
fn virtual_devices_stand_in_for_gpus() {
    let gpus = accelerator_count();
    assert_eq!((get_virtual_device_count(), is_virtual_device_mode()), (0, false));
    assert_eq!(set_virtual_device_count(1 << 20).unwrap_err().kind(), ErrorKind::Value);
    set_virtual_device_count(3).unwrap();
    assert_eq!((get_virtual_device_count(), is_virtual_device_mode(), accelerator_count()), (3, true, 3));

    // As devices, they answer as GPUs do.
    assert_eq!(scan_available_devices(), [0, 1, 2].map(DeviceSpec::accelerator));
    assert!(devices_exist(&[DeviceSpec::accelerator(2)]) && !devices_exist(&[DeviceSpec::accelerator(3)]));
    let devices = load_devices(&scan_available_devices()).unwrap();
    let [first, second] = [&devices[0], &devices[1]];
    assert_eq!(first.to_string(), "Device(type=gpu,id=0)");
    assert_eq!((second.label(), second.id(), second.device_ref()), ("gpu", 1, DeviceRef::gpu(1)));
    assert_eq!(
        (second.api(), accelerator_api(), second.model_name()),
        ("virtual", "virtual", "VirtualGPU-1".into())
    );
    assert!(
        !second.is_host() && second.runs_on_host() && !second.is_host_unified() && second.is_compatible()
    );
    assert!(second.can_access(second) && !second.can_access(first) && !second.can_access(&Device::cpu()));
    assert!(second.architecture_name().unwrap_err().message().contains("virtual"));
    assert!(
        second.max_single_alloc_size().unwrap() > 0 && second.synchronize().is_ok() && second.gpu().is_none()
    );
    assert_eq!(Device::accelerator(Some(1)).as_ref(), Ok(second));
    assert_eq!(Stream::new(second).unwrap(), second.default_stream());
    let error = Device::accelerator(Some(3)).unwrap_err();
    assert!(
        error.message().contains("gpu:3") && error.message().contains("there are 3 virtual devices"),
        "{error}"
    );

    // Each has memory of its own, which counts as that of the device.
    let used = |device: &Device| device.stats()["bytes_in_use"];
    let before = [first, second].map(used);
    let on_second = Buffer::from([1f32, 2., 3., 4.]).to(second).unwrap();
    assert_eq!((used(first), used(second) == before[1]), (before[0], false));
    assert_eq!((on_second.device(), on_second.is_host(), on_second.pinned()), (second, false, false));
    assert_eq!(format!("{on_second:?}"), "max.driver.Buffer(DType.float32, (4,), gpu[1])");
    assert_eq!(on_second.host_bytes().unwrap_err().kind(), ErrorKind::Runtime);
    let elsewhere = on_second.to(first).unwrap();
    on_second.fill(Number::Int(7)).unwrap();
    assert_eq!(elsewhere.to_vec::<f32>().unwrap(), [1., 2., 3., 4.], "a transfer is a copy");
    assert_eq!(on_second.to_vec::<f32>().unwrap(), [7.; 4]);
    assert_eq!(on_second.to(second).unwrap().data_ptr(), on_second.data_ptr());
    let back = on_second.to(&Device::cpu()).unwrap();
    assert!(back.is_host() && back.data_ptr() != on_second.data_ptr());
    let zeros = Buffer::new(DType::Int64, &[2, 0], second).unwrap();
    assert_eq!(zeros.to_vec::<i64>().unwrap(), []);
    let pinned = Buffer::new_pinned(DType::Int8, &[4], second).unwrap();
    assert!(pinned.is_host() && !pinned.pinned());
    drop((on_second, zeros));
    assert_eq!(used(second), before[1]);

    // Other libraries do not know them, and would take their addresses for those of a GPU.
    let error = dlpack::export_versioned(&elsewhere, false).unwrap_err();
    assert!(error.message().contains("copy the elements to the CPU"), "{error}");
    assert!(dlpack::export(&elsewhere).is_err());
    let cuda = dlpack::DLDevice { device_type: 2, device_id: 0 };
    assert!(Device::try_from(cuda).unwrap_err().message().contains("virtual devices"));

    // The count may change while they are in use. The numbers never mean GPUs again.
    set_virtual_device_count(1).unwrap();
    assert!(Device::accelerator(Some(1)).is_err());
    assert_eq!(second.stats()["bytes_in_use"], before[1]);
    assert_eq!(elsewhere.to(second).unwrap().to_vec::<f32>().unwrap(), [1., 2., 3., 4.]);
    set_virtual_device_count(0).unwrap();
    assert_eq!(accelerator_count(), gpus);
    let error = Device::accelerator(None).unwrap_err();
    assert!(error.message().contains("this process has used virtual devices"), "{error}");
    set_virtual_device_count(2).unwrap();
    assert_eq!(Device::accelerator(Some(1)).as_ref(), Ok(second));
}
