//! One request to a server, and what may come of it.

use super::percent::encode;
use super::trust::{self, Trust};
use serde::Deserialize;
use std::io::{BufRead, BufReader, ErrorKind};
use std::time::Duration;
use ureq::Body;
use ureq::config::ConfigBuilder;
use ureq::http::{Method, Request, Response, request};
use ureq::tls::TlsConfig;
use ureq::typestate::AgentScope;

/// A server.
pub(super) struct Server {
    base: String,
    agent: ureq::Agent,
    tls: TlsConfig,
    /// What Authorization says.
    authorization: Option<String>,
    /// Why a change is made, for the server's audit; percent-encoded.
    reason: Option<String>,
}

/// An answer: its status and its JSON.
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) body: String,
}

/// Why there is no answer to show.
pub(super) struct Failure {
    /// What is wrong, and what to do.
    pub(super) message: String,
    /// The server's own words, if it had any.
    pub(super) body: Option<String>,
}

fn config(tls: &TlsConfig) -> ConfigBuilder<AgentScope> {
    let config = ureq::Agent::config_builder().tls_config(tls.clone());
    config.http_status_as_error(false).max_redirects(0).proxy(None)
}

/// How long a request may take. The server answers in milliseconds.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Largest answer that is read: a page of a thousand of the longest keys fits.
const BODY_MAX: u64 = 16 << 20;

impl Server {
    pub(super) fn at(url: &str, trust: &Trust) -> Result<Server, Failure> {
        let base = url.trim_end_matches('/');
        let host = base.strip_prefix("https://").or_else(|| base.strip_prefix("http://"));
        if host.is_none_or(str::is_empty) {
            return Err(Failure::new(format!(
                "--server {url} is no address; write http://HOST:PORT or https://HOST:PORT"
            )));
        }
        if base.starts_with("http://") && !trust.is_empty() {
            let message =
                format!("--ca and --cert are for https://, and --server is {url}; write https://, or leave them out");
            return Err(Failure::new(message));
        }
        let tls = trust.load()?;
        let agent = config(&tls).timeout_global(Some(TIMEOUT)).build().into();
        Ok(Server { base: base.to_owned(), agent, tls, authorization: None, reason: None })
    }

    /// Shows a token with every request.
    pub(super) fn with_token(self, token: Option<String>) -> Server {
        Server { authorization: token.map(|token| format!("Bearer {token}")), ..self }
    }

    /// The same, where requests say why.
    pub(super) fn because(self, reason: Option<&str>) -> Server {
        Server { reason: reason.map(|reason| encode(reason.as_bytes())), ..self }
    }

    fn request(&self, method: Method, path: &str) -> request::Builder {
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.base));
        if let Some(authorization) = &self.authorization {
            request = request.header("authorization", authorization);
        }
        if let Some(reason) = &self.reason {
            request = request.header("tidegate-reason", reason);
        }
        request
    }

    pub(super) fn get(&self, path: &str) -> Result<Reply, Failure> {
        self.send(Method::GET, path, None)
    }

    pub(super) fn delete(&self, path: &str) -> Result<Reply, Failure> {
        self.send(Method::DELETE, path, None)
    }

    pub(super) fn post(&self, path: &str, body: String) -> Result<Reply, Failure> {
        self.send(Method::POST, path, Some(body))
    }

    pub(super) fn put(&self, path: &str, body: String) -> Result<Reply, Failure> {
        self.send(Method::PUT, path, Some(body))
    }

    /// Sends a text as it stands, and takes any answer that is a tidegate server's.
    pub(super) fn post_text(&self, path: &str, text: String) -> Result<Reply, Failure> {
        let request = self.request(Method::POST, path).header("content-type", "text/plain").body(text);
        let sent = request.map_err(ureq::Error::from).and_then(|request| self.agent.run(request));
        let (status, body) = self.received(sent)?;
        if matches!(status, 201 | 409 | 507) { Ok(Reply { status, body }) } else { Err(self.refused(status, body)) }
    }

    /// Opens an answer that goes on without an end.
    pub(super) fn open(&self, path: &str) -> Result<impl BufRead + use<>, Failure> {
        let agent: ureq::Agent =
            config(&self.tls).timeout_connect(Some(TIMEOUT)).timeout_recv_response(Some(TIMEOUT)).build().into();
        let request = self.request(Method::GET, path).body(());
        let sent = request.map_err(ureq::Error::from).and_then(|request| agent.run(request));
        match sent {
            Ok(response) if response.status() == 200 => Ok(BufReader::new(response.into_body().into_reader())),
            other => {
                let (status, body) = self.received(other)?;
                Err(self.refused(status, body))
            }
        }
    }

    fn received(&self, sent: Result<Response<Body>, ureq::Error>) -> Result<(u16, String), Failure> {
        let mut response = sent.map_err(|error| self.unreachable(&error))?;
        let status = response.status().as_u16();
        let body = response.body_mut().with_config().limit(BODY_MAX).read_to_string();
        body.map(|body| (status, body)).map_err(|error| self.unreachable(&error))
    }

    /// Sends, and takes 200 and 429 for answers; anything else is a failure with the server's words.
    fn send(&self, method: Method, path: &str, body: Option<String>) -> Result<Reply, Failure> {
        let request = self.request(method, path);
        let sent = match body {
            Some(body) => {
                let request = request.header("content-type", "application/json").body(body);
                request.map_err(ureq::Error::from).and_then(|request| self.agent.run(request))
            }
            None => request.body(()).map_err(ureq::Error::from).and_then(|request| self.agent.run(request)),
        };
        let (status, body) = self.received(sent)?;
        if matches!(status, 200 | 429) {
            return Ok(Reply { status, body });
        }
        Err(self.refused(status, body))
    }

    fn unreachable(&self, error: &ureq::Error) -> Failure {
        let base = &self.base;
        Failure::new(match error {
            ureq::Error::Io(io) if io.kind() == ErrorKind::ConnectionRefused => format!(
                "no server listens at {base}; start one with: tidegate serve, or name another with --server URL"
            ),
            ureq::Error::HostNotFound => format!("the host of {base} is not known; check --server URL"),
            ureq::Error::Timeout(_) => {
                format!("{base} did not answer within {} seconds; is it a tidegate server?", TIMEOUT.as_secs())
            }
            ureq::Error::BadUri(_) | ureq::Error::Http(_) => {
                format!("--server {base} is no address ({error}); write http://HOST:PORT or https://HOST:PORT")
            }
            other => match trust::why_not(other).filter(|_| base.starts_with("https://")) {
                Some(why) => format!("no TLS with {base}: {why}"),
                None => format!("{base} cannot be asked: {other}; is it a tidegate server?"),
            },
        })
    }

    fn refused(&self, status: u16, body: String) -> Failure {
        #[derive(Deserialize)]
        struct Problem {
            detail: String,
        }
        match serde_json::from_str::<Problem>(&body) {
            Ok(problem) => Failure { message: problem.detail, body: Some(body) },
            Err(_) => Failure::new(format!("{} answered {status}; is it a tidegate server?", self.base)),
        }
    }
}

impl Failure {
    pub(super) fn new(message: String) -> Failure {
        Failure { message, body: None }
    }
}

impl Reply {
    /// The JSON, read.
    pub(super) fn read<T: serde::de::DeserializeOwned>(&self) -> Result<T, Failure> {
        serde_json::from_str(&self.body)
            .map_err(|error| Failure::new(format!("the answer cannot be read ({error}); is it a tidegate server?")))
    }
}
