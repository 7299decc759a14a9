//! A hub on this machine that fails as hubs and networks do.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use super::*;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// What a server was asked.
#[derive(Clone, Debug)]
struct Request {
    method: String,
    path: String,
    headers: HashMap<String, String>,
}

/// What a server answers.
#[derive(Clone, Default)]
struct Reply {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
    /// The bytes of the body after which the connection breaks.
    breaks_after: Option<usize>,
}

impl Reply {
    fn new(status: u16, body: impl Into<Vec<u8>>) -> Reply {
        Reply { status, body: body.into(), ..Reply::default() }
    }

    fn header(mut self, name: &'static str, value: impl ToString) -> Reply {
        self.headers.push((name, value.to_string()));
        self
    }
}

/// A server that answers by a function until the test ends.
struct Server {
    url: String,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    fn new(answer: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (seen, answer) = (requests.clone(), Arc::new(answer));
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (seen, answer) = (seen.clone(), answer.clone());
                thread::spawn(move || serve(stream, &seen, &*answer));
            }
        });
        Server { url, requests }
    }

    fn requests(&self, part: &str) -> Vec<Request> {
        let requests = self.requests.lock().unwrap();
        requests.iter().filter(|request| request.path.contains(part)).cloned().collect()
    }
}

/// Answers one request and closes the connection.
fn serve(mut stream: TcpStream, seen: &Mutex<Vec<Request>>, answer: &dyn Fn(&Request) -> Reply) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(|line| line.ok());
    let Some(first) = lines.next() else { return };
    let mut words = first.split(' ').map(String::from);
    let (method, path) = (words.next().unwrap(), words.next().unwrap());
    let headers = lines.take_while(|line| !line.is_empty()).filter_map(|line| {
        let (name, value) = line.split_once(':')?;
        Some((name.to_lowercase(), value.trim().to_string()))
    });
    let request = Request { method, path, headers: headers.collect() };
    seen.lock().unwrap().push(request.clone());
    let reply = answer(&request);
    let mut head = format!("HTTP/1.1 {} X\r\nconnection: close\r\n", reply.status);
    if !reply.headers.iter().any(|(name, _)| *name == "content-length") {
        head += &format!("content-length: {}\r\n", reply.body.len());
    }
    reply.headers.iter().for_each(|(name, value)| head += &format!("{name}: {value}\r\n"));
    let body = &reply.body[..reply.breaks_after.unwrap_or(reply.body.len())];
    let body = if request.method == "HEAD" { &[] } else { body };
    // The client may have seen enough.
    let _ = stream
        .write_all(head.as_bytes())
        .and_then(|()| stream.write_all(b"\r\n"))
        .and_then(|()| stream.write_all(body));
}

/// The weights, which no text of the same length resembles.
fn weights() -> Vec<u8> {
    (0..100_000u32).flat_map(|i| i.wrapping_mul(2_654_435_761).to_le_bytes()).collect()
}

fn hash(contents: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, contents);
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The part of contents that a request asks for.
fn ranged(request: &Request, contents: &[u8]) -> Reply {
    let from = request
        .headers
        .get("range")
        .and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse::<usize>().ok());
    match from {
        None => Reply::new(200, contents),
        Some(from) => Reply::new(206, &contents[from..])
            .header("content-range", format!("bytes {from}-{}/{}", contents.len() - 1, contents.len())),
    }
}

/// A hub with one model whose weights are on another server.
fn hub_answer(request: &Request, store: &str) -> Reply {
    let small = |contents: &str| Reply::new(200, contents).header("etag", format!("\"{}\"", contents.len()));
    match request.path.as_str() {
        "/api/models/some/model/revision/main" => Reply::new(
            200,
            format!(
                r#"{{"sha": "{COMMIT}", "siblings": [{{"rfilename": "README.md"}}, {{"rfilename": "model.safetensors"}},
                   {{"rfilename": "config.json"}}, {{"rfilename": "1_Pooling/config.json"}},
                   {{"rfilename": "onnx/model.onnx"}}]}}"#
            ),
        ),
        path if path == format!("/some/model/resolve/{COMMIT}/config.json") => small("{}"),
        // Some files are moved within the hub.
        path if path == format!("/some/model/resolve/{COMMIT}/1_Pooling/config.json") => {
            Reply::new(307, "").header("location", "/moved")
        }
        "/moved" => small(r#"{"pooling_mode": "mean"}"#),
        path if path == format!("/some/model/resolve/{COMMIT}/model.safetensors") => Reply::new(302, "")
            .header("location", format!("{store}/weights"))
            .header("x-linked-etag", format!("\"{}\"", hash(&weights())))
            .header("x-linked-size", weights().len()),
        _ => Reply::new(404, ""),
    }
}

/// An empty folder, removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = env::temp_dir().join(format!("max-hub-{}-{number}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        Scratch(folder)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn hub(cache: &Scratch, endpoint: &str) -> Hub {
    Hub { cache: cache.0.clone(), endpoint: endpoint.into(), token: Some("secret".into()), offline: false }
}

fn fetch(hub: &Hub) -> Result<PathBuf> {
    hub.fetch(&"some/model".parse()?, &|_| ())
}

#[test]
fn a_model_is_downloaded_once() {
    let store = Server::new(|request| ranged(request, &weights()));
    let url = store.url.clone();
    let server = Server::new(move |request| hub_answer(request, &url));
    let cache = Scratch::new();
    let hub = hub(&cache, &server.url);
    let told = Mutex::new(Vec::new());
    let repo = "some/model".parse().unwrap();
    let folder =
        hub.fetch(&repo, &|at| told.lock().unwrap().push((at.file.to_string(), at.done, at.total))).unwrap();
    assert_eq!(folder, cache.0.join(format!("models--some--model/snapshots/{COMMIT}")));
    assert_eq!(fs::read(folder.join("model.safetensors")).unwrap(), weights());
    assert_eq!(fs::read_to_string(folder.join("config.json")).unwrap(), "{}");
    assert!(fs::read_to_string(folder.join("1_Pooling/config.json")).unwrap().contains("mean"));
    assert!(!folder.join("README.md").exists() && !folder.join("onnx").exists());
    let size = weights().len() as u64;
    assert_eq!(told.lock().unwrap().last(), Some(&("model.safetensors".into(), size, size)));
    assert_eq!(fs::read_to_string(cache.0.join("models--some--model/refs/main")).unwrap(), COMMIT);
    // Only the hub itself gets the token.
    assert_eq!(server.requests("config.json")[0].headers["authorization"], "Bearer secret");
    assert!(!store.requests("weights")[0].headers.contains_key("authorization"));

    let before = server.requests("").len();
    assert_eq!(fetch(&Hub { offline: true, ..hub.clone() }), Ok(folder.clone()));
    assert_eq!(server.requests("").len(), before);
    let listed = hub.models();
    assert_eq!((listed.len(), &*listed[0].name, &listed[0].folder), (1, "some/model", &folder));
    assert_eq!(listed[0].bytes, size + 2 + 24);
}

#[test]
fn broken_connections_go_on_where_they_ended() {
    let breaks = AtomicUsize::new(0);
    let store = Server::new(move |request| Reply {
        breaks_after: (breaks.fetch_add(1, Ordering::Relaxed) < 3).then_some(90_001),
        ..ranged(request, &weights())
    });
    let url = store.url.clone();
    let server = Server::new(move |request| hub_answer(request, &url));
    let cache = Scratch::new();
    let folder = fetch(&hub(&cache, &server.url)).unwrap();
    assert_eq!(fs::read(folder.join("model.safetensors")).unwrap(), weights());
    let ranges = store.requests("weights").into_iter().map(|request| request.headers.get("range").cloned());
    let expected = [None, Some("bytes=90001-"), Some("bytes=180002-"), Some("bytes=270003-")];
    assert!(ranges.eq(expected.map(|range| range.map(String::from))));
}

#[test]
fn what_an_earlier_process_downloaded_is_kept() {
    let store = Server::new(|request| ranged(request, &weights()));
    let url = store.url.clone();
    let server = Server::new(move |request| hub_answer(request, &url));
    let cache = Scratch::new();
    let blobs = cache.0.join("models--some--model/blobs");
    fs::create_dir_all(&blobs).unwrap();
    let part = blobs.join(format!("{}.max.incomplete", hash(&weights())));
    fs::write(&part, &weights()[..123_456]).unwrap();
    let folder = fetch(&hub(&cache, &server.url)).unwrap();
    assert_eq!(fs::read(folder.join("model.safetensors")).unwrap(), weights());
    assert_eq!(store.requests("weights")[0].headers["range"], "bytes=123456-");
    assert!(!part.exists());
}

#[test]
fn a_server_that_starts_over_is_understood() {
    let breaks = AtomicUsize::new(0);
    let store = Server::new(move |_| Reply {
        breaks_after: (breaks.fetch_add(1, Ordering::Relaxed) == 0).then_some(5000),
        ..Reply::new(200, weights())
    });
    let url = store.url.clone();
    let server = Server::new(move |request| hub_answer(request, &url));
    let cache = Scratch::new();
    let folder = fetch(&hub(&cache, &server.url)).unwrap();
    assert_eq!(fs::read(folder.join("model.safetensors")).unwrap(), weights());
}

#[test]
fn wrong_contents_are_refused() {
    let store = Server::new(|_| Reply::new(200, vec![7; weights().len() + 1000]));
    let url = store.url.clone();
    let server = Server::new(move |request| hub_answer(request, &url));
    let cache = Scratch::new();
    let error = fetch(&hub(&cache, &server.url)).unwrap_err();
    assert!(error.message().contains("has the hash"), "{error}");
    let left = fs::read_dir(cache.0.join("models--some--model/blobs")).unwrap();
    assert!(left.flatten().all(|entry| entry.metadata().unwrap().len() < 100));
}

#[test]
fn a_hub_that_is_busy_is_asked_again() {
    let calls = AtomicUsize::new(0);
    let store = Server::new(|request| ranged(request, &weights()));
    let url = store.url.clone();
    let server = Server::new(move |request| match calls.fetch_add(1, Ordering::Relaxed) {
        0 | 3 => Reply::new(503, "busy"),
        _ => hub_answer(request, &url),
    });
    let cache = Scratch::new();
    assert!(fetch(&hub(&cache, &server.url)).is_ok());
}

#[test]
fn refusals_say_what_to_do() {
    let cases = [
        (404, "", "has no model 'some/model' with the revision 'main'"),
        (404, "RevisionNotFound", "has no branch, tag or commit 'main'"),
        (401, "", "set HF_TOKEN"),
        (401, "GatedRepo", "is gated: accept its conditions"),
        (403, "", "is gated: accept its conditions"),
        (418, "", "answered 418"),
    ];
    for (status, code, expected) in cases {
        let server = Server::new(move |_| Reply::new(status, "").header("x-error-code", code));
        let cache = Scratch::new();
        let error = fetch(&hub(&cache, &server.url)).unwrap_err();
        assert!(error.message().contains(expected), "{error}");
        assert_eq!(server.requests("").len(), 1, "no second attempt");
    }
}

#[test]
fn what_is_no_hub_is_recognized() {
    for body in
        ["", "<html>", "{}", r#"{"sha": "../..", "siblings": []}"#, r#"{"sha": "abc", "siblings": [3]}"#]
    {
        let server = Server::new(move |_| Reply::new(200, body));
        let error = fetch(&hub(&Scratch::new(), &server.url)).unwrap_err();
        assert!(error.message().contains("does not answer like a hub"), "{error}");
    }
    let listing = format!(r#"{{"sha": "{COMMIT}", "siblings": [{{"rfilename": "README.md"}}]}}"#);
    let server = Server::new(move |_| Reply::new(200, listing.clone()));
    assert!(fetch(&hub(&Scratch::new(), &server.url)).unwrap_err().message().contains("has no config.json"));
}

#[test]
fn names_of_files_stay_inside() {
    for name in ["1/../../../evil/config.json", "/evil.json", "..json/../../evil.json"] {
        let listing = format!(
            r#"{{"sha": "{COMMIT}", "siblings": [{{"rfilename": "{name}"}}, {{"rfilename": "config.json"}},
               {{"rfilename": "a.safetensors"}}]}}"#
        );
        let server = Server::new(move |request| match request.path.starts_with("/api") {
            true => Reply::new(200, listing.clone()),
            false => Reply::new(200, "x").header("etag", "abc"),
        });
        let cache = Scratch::new();
        // A file that no model has is not asked for; one that looks like a model's is refused.
        let fetched = fetch(&hub(&cache, &server.url));
        assert!(server.requests("evil").is_empty());
        assert!(fetched.is_ok() || fetched.unwrap_err().message().contains("outside of the model"));
    }
}

#[test]
fn hashes_that_are_no_names_are_refused() {
    let server = Server::new(|request| match request.path.starts_with("/api") {
        true => hub_answer(request, ""),
        false => Reply::new(200, "x").header("etag", "\"../../evil\""),
    });
    let error = fetch(&hub(&Scratch::new(), &server.url)).unwrap_err();
    assert!(error.message().contains("does not tell the hash"), "{error}");
}

#[test]
fn redirections_end() {
    let server = Server::new(|_| Reply::new(302, "").header("location", "/again"));
    let error = fetch(&hub(&Scratch::new(), &server.url)).unwrap_err();
    assert!(error.message().contains("redirect"), "{error}");
}

#[test]
fn offline_is_honoured() {
    let server = Server::new(|request| hub_answer(request, ""));
    let offline = Hub { offline: true, ..hub(&Scratch::new(), &server.url) };
    let error = fetch(&offline).unwrap_err();
    assert!(error.message().contains("HF_HUB_OFFLINE"), "{error}");
    assert!(server.requests("").is_empty());
}

#[test]
fn a_model_with_missing_parts_is_not_complete() {
    let cache = Scratch::new();
    let folder = &cache.0;
    assert!(!is_complete(folder) && !is_complete(&folder.join("nothing")));
    fs::write(folder.join("config.json"), "{}").unwrap();
    assert!(!is_complete(folder));
    fs::write(folder.join("a.safetensors"), "").unwrap();
    assert!(is_complete(folder));
    let index = r#"{"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}"#;
    fs::write(folder.join("model.safetensors.index.json"), index).unwrap();
    assert!(!is_complete(folder));
    fs::write(folder.join("b.safetensors"), "").unwrap();
    assert!(is_complete(folder));
    fs::write(folder.join("model.safetensors.index.json"), "[").unwrap();
    assert!(!is_complete(folder));
}

#[test]
fn names_are_checked() {
    let repo = |text: &str| text.parse::<Repo>();
    assert_eq!(repo("a/b").unwrap().to_string(), "a/b");
    assert_eq!(repo("gpt2@v1.0/x").unwrap().revision(), "v1.0/x");
    let long = "a".repeat(97);
    for wrong in [
        "", "a/b/c", "../b", "a/..", "a--b/c", "a/b@", "a/b@../c", "a b", "/a", "a/", "-a/b", &long, "a/b@/x",
    ] {
        assert!(repo(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn files_of_models_are_chosen() {
    let files = |names: &[&str]| -> Vec<String> {
        let all: Vec<String> = names.iter().map(|name| name.to_string()).collect();
        model_files(&all).into_iter().map(String::from).collect()
    };
    assert_eq!(
        files(&[
            "pytorch_model.bin",
            "model.safetensors",
            "config.json",
            "1_Pooling/config.json",
            "a/config.json"
        ]),
        ["config.json", "1_Pooling/config.json", "model.safetensors"]
    );
    assert_eq!(files(&["config.json", "pytorch_model.bin"]), ["config.json", "pytorch_model.bin"]);
    assert_eq!(files(&["README.md", "model.gguf"]), ["model.gguf"]);
    assert!(files(&["a.gguf", "b.gguf"]).is_empty());
    assert!(files(&["config.json"]).is_empty());
    assert!(files(&["model.safetensors"]).is_empty());
}

#[test]
fn the_environment_is_honoured() {
    let hub = |pairs: &[(&str, &str)]| {
        let pairs: HashMap<String, String> =
            pairs.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        Hub::from_variables(&move |name| pairs.get(name).cloned())
    };
    let default = hub(&[("XDG_CACHE_HOME", "/c")]);
    assert_eq!(default.cache, PathBuf::from("/c/huggingface/hub"));
    assert_eq!((&*default.endpoint, default.token, default.offline), ("https://huggingface.co", None, false));
    let own = hub(&[
        ("HF_HOME", "/h"),
        ("HF_TOKEN", " t \n"),
        ("HF_HUB_OFFLINE", "1"),
        ("HF_ENDPOINT", "http://x/"),
    ]);
    assert_eq!(own.cache, PathBuf::from("/h/hub"));
    assert_eq!((&*own.endpoint, own.token.as_deref(), own.offline), ("http://x/", Some("t"), true));
    assert_eq!(hub(&[("HF_HOME", "/h"), ("HF_HUB_CACHE", "/d")]).cache, PathBuf::from("/d"));
    assert!(!hub(&[("HF_HUB_OFFLINE", "0")]).offline);
}
