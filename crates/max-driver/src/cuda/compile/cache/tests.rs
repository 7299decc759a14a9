use super::*;
use std::sync::Barrier;

/// A folder for one test, removed when the test is over.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("max-rs-cache-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        Folder(path)
    }

    fn cache(&self) -> Cache {
        Cache::new(Some(self.0.clone()), LIMIT)
    }

    fn files(&self) -> Vec<PathBuf> {
        fs::read_dir(&self.0).map_or(Vec::new(), |files| files.flatten().map(|file| file.path()).collect())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn stored_entries_are_there_for_the_next_process() {
    let folder = Folder::new("stored");
    let (one, two) = (Key::of(&[b"source", b"sm_90"]), Key::of(&[b"source", b"sm_80"]));
    assert_eq!(folder.cache().get(&one), None);
    folder.cache().put(&one, b"code");
    folder.cache().put(&two, b"");
    assert_eq!(folder.cache().get(&one).as_deref(), Some(&b"code"[..]));
    assert_eq!(folder.cache().get(&two).as_deref(), Some(&b""[..]));
    folder.cache().put(&one, b"newer code");
    assert_eq!(folder.cache().get(&one).as_deref(), Some(&b"newer code"[..]));
    assert_eq!(folder.files().len(), 2, "only entries remain: {:?}", folder.files());
}

#[test]
fn a_damaged_entry_is_missing_and_can_be_stored_again() {
    let folder = Folder::new("damaged");
    let (cache, key) = (folder.cache(), Key::of(&[b"source"]));
    cache.put(&key, b"some code");
    let path = cache.path(&key).unwrap();
    let whole = fs::read(&path).unwrap();
    for byte in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[byte] ^= 0x10;
        fs::write(&path, damaged).unwrap();
        assert_eq!(cache.get(&key), None, "byte {byte} was changed");
        fs::write(&path, &whole[..byte]).unwrap();
        assert_eq!(cache.get(&key), None, "only {byte} bytes are left");
    }
    fs::write(&path, [&whole[..], b"more"].concat()).unwrap();
    assert_eq!(cache.get(&key), None, "there are extra bytes");
    cache.put(&key, b"some code");
    assert_eq!(cache.get(&key).as_deref(), Some(&b"some code"[..]));
}

#[test]
fn an_entry_of_another_key_is_missing() {
    let folder = Folder::new("foreign");
    let (cache, key, other) = (folder.cache(), Key::of(&[b"source"]), Key::of(&[b"other"]));
    cache.put(&other, b"other code");
    fs::rename(cache.path(&other).unwrap(), cache.path(&key).unwrap()).unwrap();
    assert_eq!(cache.get(&key), None);
    fs::remove_file(cache.path(&key).unwrap()).unwrap();
    fs::create_dir(cache.path(&key).unwrap()).unwrap();
    cache.put(&key, b"code");
    assert_eq!(cache.get(&key), None, "a folder is not an entry");
    assert_eq!(folder.files().len(), 1, "a temporary file that could not be renamed is removed");
    #[cfg(unix)]
    for endless in ["/dev/zero", "/dev/tty"] {
        let _ = fs::remove_dir(cache.path(&key).unwrap());
        let _ = fs::remove_file(cache.path(&key).unwrap());
        std::os::unix::fs::symlink(endless, cache.path(&key).unwrap()).unwrap();
        assert_eq!(cache.get(&key), None, "{endless} is not an entry");
    }
}

#[test]
fn without_a_folder_there_is_no_cache() {
    let folder = Folder::new("unwritable");
    let key = Key::of(&[b"source"]);
    fs::write(&folder.0, "a file where the folder should be").unwrap();
    for place in [None, Some(folder.0.clone()), Some(folder.0.join("below")), Some("/proc/none".into())] {
        let cache = Cache::new(place, LIMIT);
        cache.put(&key, b"code");
        assert_eq!(cache.get(&key), None);
    }
    fs::remove_file(&folder.0).unwrap();
}

#[test]
fn many_may_read_and_write_an_entry_at_once() {
    let folder = Folder::new("threads");
    let (key, start) = (Key::of(&[b"source"]), Barrier::new(8));
    let contents: Vec<Vec<u8>> = (0..8u8).map(|n| vec![n; 10_000 + usize::from(n)]).collect();
    std::thread::scope(|scope| {
        for content in &contents {
            scope.spawn(|| {
                let cache = folder.cache();
                start.wait();
                for _ in 0..50 {
                    cache.put(&key, content);
                    let found = cache.get(&key).expect("an entry exists once the first is stored");
                    assert!(contents.contains(&found), "an entry is one of the stored contents, intact");
                }
            });
        }
    });
    assert_eq!(folder.files().len(), 1);
}

#[test]
fn the_oldest_entries_go_when_the_folder_is_full() {
    let folder = Folder::new("full");
    let keys: Vec<Key> = (0..10u8).map(|n| Key::of(&[&[n]])).collect();
    let (content, cache) = ([0; 1000], folder.cache());
    for (age, key) in keys.iter().enumerate() {
        cache.put(key, &content);
        let file = File::open(cache.path(key).unwrap()).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(10_000 * (10 - age as u64))).unwrap();
    }
    for (name, age) in [("old.tmp", 7200), ("young.tmp", 60), ("foreign.txt", 100_000)] {
        let file = File::create(folder.0.join(name)).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(age)).unwrap();
    }
    // Reading an entry marks it as recently used: the oldest is now the second.
    assert!(cache.get(&keys[0]).is_some());
    // Ten entries of a little more than 1,000 bytes are over the limit of 10,000, seven fit into three quarters of it.
    let full = Cache::new(Some(folder.0.clone()), 10_000);
    full.put(&keys[9], &content);
    let there: Vec<bool> = keys.iter().map(|key| cache.path(key).unwrap().exists()).collect();
    assert_eq!(there, [true, false, false, false, true, true, true, true, true, true]);
    let names = ["old.tmp", "young.tmp", "foreign.txt"].map(|name| folder.0.join(name).exists());
    assert_eq!(names, [false, true, true]);
}

#[test]
fn a_folder_is_checked_again_as_it_grows() {
    let folder = Folder::new("grows");
    let cache = Cache::new(Some(folder.0.clone()), 100_000);
    for n in 0..1000u32 {
        cache.put(&Key::of(&[&n.to_le_bytes()]), &[0; 1000]);
    }
    let bytes: u64 = folder.files().iter().map(|path| path.metadata().unwrap().len()).sum();
    assert!(bytes <= 110_000, "{bytes} bytes are left");
}

#[test]
fn the_environment_names_the_folder() {
    let folder = |variables: &[(&str, &str)]| {
        let found =
            |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into());
        super::folder(found)
    };
    let (home, caches) = (("HOME", "/home/me"), ("XDG_CACHE_HOME", "/caches"));
    assert_eq!(folder(&[home, caches, ("MAX_CACHE_DIR", "/mine")]), Some("/mine".into()));
    assert_eq!(folder(&[home, caches, ("MAX_CACHE_DIR", "")]), None);
    assert_eq!(folder(&[home, caches]), Some("/caches/max-rs/kernels".into()));
    assert_eq!(
        folder(&[home, ("XDG_CACHE_HOME", "relative")]),
        Some("/home/me/.cache/max-rs/kernels".into())
    );
    assert_eq!(folder(&[home]), Some("/home/me/.cache/max-rs/kernels".into()));
    assert_eq!(folder(&[]), None);
}
