//! The hub over HTTP: which files a model has, and their contents.

use std::fs::File;
use std::io::{self, Read, Write};
use std::thread::sleep;
use std::time::Duration;

use max_core::{Error, Result, bail};
use serde_json::Value;
use ureq::http::{HeaderMap, Response};
use ureq::{Agent, Body};

use super::Repo;

/// How long to wait for a connection, an answer, and more of an answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// How often to try before giving up; each byte of contents counts as success.
const ATTEMPTS: u32 = 5;

/// The most bytes of the list of a model's files.
const MOST_LISTED: u64 = 16 << 20;

/// The most redirections of one request.
const MOST_REDIRECTIONS: usize = 8;

/// Requests to a hub about one repository.
pub struct Client<'a> {
    agent: Agent,
    endpoint: &'a str,
    token: Option<&'a str>,
    repo: &'a Repo,
}

/// What the hub has of a model.
#[derive(Debug)]
pub struct Listing {
    /// The commit that the revision stands for.
    pub commit: String,
    /// The names of its files.
    pub files: Vec<String>,
}

/// Where the contents of a file are.
#[derive(Debug)]
pub struct Found {
    /// The address, which may be that of another host.
    pub url: String,
    /// The name of the contents: a hash of them.
    pub hash: String,
    /// Their number of bytes.
    pub size: u64,
}

/// What a request is for.
#[derive(Clone, Copy, PartialEq)]
enum What {
    /// Only the headers. A redirection that has those of the contents is an answer too.
    Headers,
    /// The contents from a byte on.
    From(u64),
}

impl<'a> Client<'a> {
    pub fn new(endpoint: &'a str, token: Option<&'a str>, repo: &'a Repo) -> Client<'a> {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .timeout_connect(Some(PATIENCE))
            .timeout_recv_response(Some(PATIENCE))
            .timeout_per_read(Some(PATIENCE))
            .accept_encoding("identity")
            .user_agent(concat!("max-rs/", env!("CARGO_PKG_VERSION")));
        let agent = Agent::new_with_config(config.build());
        Client { agent, endpoint: endpoint.trim_end_matches('/'), token, repo }
    }

    /// The files of the repository.
    pub fn list(&self) -> Result<Listing> {
        let (endpoint, id, revision) = (self.endpoint, self.repo.id(), escaped(self.repo.revision()));
        let url = format!("{endpoint}/api/models/{id}/revision/{revision}");
        let (_, answer) = self.ask(&url, What::From(0))?;
        let text = answer.into_body().into_with_config().limit(MOST_LISTED).read_to_vec();
        let text = text.map_err(|error| self.broken(&error))?;
        let listing = serde_json::from_slice::<Value>(&text).ok().and_then(|answer| {
            let files = answer.get("siblings")?.as_array()?.iter();
            let names = files.map(|file| Some(file.get("rfilename")?.as_str()?.to_string()));
            let commit = answer.get("sha")?.as_str().filter(|sha| is_plain(sha))?.to_string();
            Some(Listing { commit, files: names.collect::<Option<_>>()? })
        });
        listing.ok_or_else(|| Error::runtime(format!("{endpoint} does not answer like a hub of models")))
    }

    /// Where a file of a commit is.
    pub fn find(&self, commit: &str, file: &str) -> Result<Found> {
        let (endpoint, id) = (self.endpoint, self.repo.id());
        let url = format!("{endpoint}/{id}/resolve/{commit}/{}", escaped(file));
        let (url, answer) = self.ask(&url, What::Headers).map_err(|e| e.context(format!("for '{file}'")))?;
        let headers = answer.headers();
        let hash = header(headers, "x-linked-etag").or(header(headers, "etag"));
        let hash = hash.map(|hash| hash.trim_start_matches("W/").trim_matches('"'));
        let size = header(headers, "x-linked-size").or(header(headers, "content-length"));
        match (hash.filter(|hash| is_plain(hash)), size.and_then(|size| size.parse().ok())) {
            (Some(hash), Some(size)) => Ok(Found { url, hash: hash.into(), size }),
            _ => bail!(runtime, "{endpoint} does not tell the hash and the size of '{file}' of {id}"),
        }
    }

    /// Completes a file with its contents. When a connection breaks, the next one goes on from there.
    pub fn download(
        &self,
        commit: &str,
        name: &str,
        found: &Found,
        file: &mut File,
        progress: &mut dyn FnMut(u64),
    ) -> Result<()> {
        let mut url = found.url.clone();
        let mut attempt = 1;
        loop {
            let before = file.metadata().map_err(disk)?.len();
            progress(before);
            if before == found.size {
                return Ok(());
            }
            let broken = match self.append(&url, found.size, file, before, progress) {
                Ok(()) => Error::runtime(format!("{url} ended after fewer than {} bytes", found.size)),
                Err(error) => error,
            };
            match file.metadata().map_err(disk)?.len() {
                length if length == found.size => continue,
                length if length > before => attempt = 1,
                _ if attempt == ATTEMPTS => return Err(broken.context(format!("for '{name}'"))),
                _ => attempt += 1,
            }
            pause(attempt);
            // The address may have been valid for a while only.
            url = self.find(commit, name)?.url;
        }
    }

    /// Appends the contents that one connection gives.
    fn append(
        &self,
        url: &str,
        size: u64,
        file: &mut File,
        from: u64,
        progress: &mut dyn FnMut(u64),
    ) -> Result<()> {
        let (_, answer) = self.ask(url, What::From(from))?;
        let continues = header(answer.headers(), "content-range")
            .is_some_and(|range| range.starts_with(&format!("bytes {from}-")));
        let mut done = from;
        if from > 0 && !(answer.status() == 206 && continues) {
            file.set_len(0).map_err(disk)?;
            done = 0;
        }
        let mut body = answer.into_body().into_reader();
        let mut buffer = vec![0; 1 << 16];
        while done < size {
            let most = buffer.len().min(usize::try_from(size - done).unwrap_or(usize::MAX));
            let count = match body.read(&mut buffer[..most]) {
                Ok(0) => return Ok(()),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(self.broken(&error)),
            };
            file.write_all(&buffer[..count]).map_err(disk)?;
            done += count as u64;
            progress(done);
        }
        Ok(())
    }

    /// The answer to a request, with the address that it came from, or that it leads to. Failures that may pass are tried
    /// again.
    fn ask(&self, url: &str, what: What) -> Result<(String, Response<Body>)> {
        let mut attempt = 1;
        loop {
            let failure = match self.ask_once(url, what) {
                Ok((url, answer)) => match answer.status().as_u16() {
                    429 | 500..600 => self.refusal(&answer),
                    400.. => return Err(self.refusal(&answer)),
                    _ => return Ok((url, answer)),
                },
                Err(error) => self.broken(&error),
            };
            if attempt == ATTEMPTS {
                return Err(failure);
            }
            attempt += 1;
            pause(attempt);
        }
    }

    /// Follows redirections. Only the hub itself gets the token.
    fn ask_once(&self, url: &str, what: What) -> Result<(String, Response<Body>), ureq::Error> {
        let mut url = url.to_string();
        for _ in 0..MOST_REDIRECTIONS {
            let mut request = match what {
                What::Headers => self.agent.head(&url),
                What::From(0) => self.agent.get(&url),
                What::From(from) => self.agent.get(&url).header("range", format!("bytes={from}-")),
            };
            if let Some(token) = self.token.filter(|_| origin(&url) == origin(self.endpoint)) {
                request = request.header("authorization", format!("Bearer {token}"));
            }
            let answer = request.call()?;
            let location = header(answer.headers(), "location").filter(|_| answer.status().is_redirection());
            let Some(location) = location else { return Ok((url, answer)) };
            url = match location.starts_with('/') {
                true => format!("{}{location}", origin(&url)),
                false => location.to_string(),
            };
            if what == What::Headers && answer.headers().contains_key("x-linked-etag") {
                return Ok((url, answer));
            }
        }
        Err(ureq::Error::TooManyRedirects)
    }

    fn broken(&self, error: &dyn std::fmt::Display) -> Error {
        let (id, endpoint) = (self.repo.id(), self.endpoint);
        Error::runtime(format!("cannot download '{id}' from {endpoint}: {error}"))
    }

    /// Why the hub refused.
    fn refusal(&self, answer: &Response<Body>) -> Error {
        let (endpoint, id, revision) = (self.endpoint, self.repo.id(), self.repo.revision());
        let code = header(answer.headers(), "x-error-code").unwrap_or_default();
        let message = match (answer.status().as_u16(), code) {
            (_, "RevisionNotFound") => format!("'{id}' has no branch, tag or commit '{revision}'"),
            (_, "GatedRepo") | (403, _) => format!(
                "'{id}' is gated: accept its conditions at {endpoint}/{id}, and set HF_TOKEN to a token that may read it"
            ),
            (401, _) => format!(
                "{endpoint} has no public model '{id}': check the name, or set HF_TOKEN to a token that may read it"
            ),
            (404, _) => format!("{endpoint} has no model '{id}' with the revision '{revision}'"),
            _ => format!("cannot download '{id}': {endpoint} answered {}", answer.status()),
        };
        Error::runtime(message)
    }
}

/// Waits a little longer before each attempt.
fn pause(attempt: u32) {
    sleep(Duration::from_millis(50 << attempt.min(ATTEMPTS)));
}

/// The scheme and the host of an address.
fn origin(url: &str) -> &str {
    let host = url.find("://").map_or(0, |at| at + 3);
    url[host..].find('/').map_or(url, |end| &url[..host + end])
}

/// Whether text is fit for the name of a file.
fn is_plain(text: &str) -> bool {
    !text.is_empty() && text.len() <= 128 && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
}

/// A path with everything escaped that means something in an address.
fn escaped(path: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    let escape = |byte: u8| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    path.bytes().map(escape).collect()
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

fn disk(error: io::Error) -> Error {
    Error::runtime(format!("cannot write what was downloaded: {error}"))
}
