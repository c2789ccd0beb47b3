//! Where requests go: one address, plain or with TLS.

use http::Uri;
use http::uri::{Authority, Scheme};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tidegate::{Tls, TlsFiles};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// An upstream: `http://HOST[:PORT]` or `https://HOST[:PORT]`.
#[derive(Clone)]
pub struct Upstream {
    authority: Authority,
    port: u16,
    tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
}

impl std::fmt::Debug for Upstream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}://{}", if self.tls.is_some() { "https" } else { "http" }, self.authority)
    }
}

impl Upstream {
    /// Reads a URL. For https the upstream's certificate is checked against Mozilla's roots, or
    /// against those in the PEM file `ca` alone.
    ///
    /// # Errors
    /// A sentence on what the URL or the file lacks.
    pub fn new(url: &str, ca: Option<&Path>) -> Result<Upstream, String> {
        let shown = url.escape_debug();
        let remedy = "write http://HOST:PORT or https://HOST:PORT";
        let uri: Uri = url.parse().map_err(|_| format!("\"{shown}\" is no URL; {remedy}"))?;
        let (Some(scheme), Some(authority)) = (uri.scheme(), uri.authority()) else {
            return Err(format!("\"{shown}\" has no scheme or no host; {remedy}"));
        };
        if uri.path_and_query().is_some_and(|path| path.as_str() != "/") {
            return Err(format!("\"{shown}\" has a path; paths are forwarded as they come, so {remedy}"));
        }
        if authority.as_str().contains('@') || authority.host().is_empty() {
            return Err(format!("\"{shown}\" has a user or no host; {remedy}"));
        }
        let is_tls = match scheme {
            scheme if *scheme == Scheme::HTTP => false,
            scheme if *scheme == Scheme::HTTPS => true,
            _ => return Err(format!("\"{shown}\" is neither http nor https; {remedy}")),
        };
        if !is_tls && ca.is_some() {
            return Err(format!("\"{shown}\" has no certificate to check; leave the CA out, or write https://"));
        }
        let port = match (authority.port_u16(), authority.port()) {
            (Some(port @ 1..), _) => port,
            (None, None) => {
                if is_tls {
                    443
                } else {
                    80
                }
            }
            _ => return Err(format!("\"{shown}\" has no port from 1 to 65535; {remedy}")),
        };
        let tls = if is_tls { Some((config(ca)?, server_name(authority)?)) } else { None };
        Ok(Upstream { authority: authority.clone(), port, tls })
    }

    /// `HOST[:PORT]` as it was written: the Host of requests that bring none.
    pub(crate) fn authority(&self) -> &str {
        self.authority.as_str()
    }

    /// Is it the same place, reached in the same way?
    pub(crate) fn is(&self, other: &Upstream) -> bool {
        let same_tls = match (&self.tls, &other.tls) {
            (None, None) => true,
            (Some((one, _)), Some((other, _))) => Arc::ptr_eq(one, other),
            _ => false,
        };
        same_tls && self.authority == other.authority
    }

    /// A new connection.
    ///
    /// # Errors
    /// When it cannot be made.
    pub(crate) async fn connect(&self) -> io::Result<Wire> {
        let host = self.authority.host().trim_start_matches('[').trim_end_matches(']');
        let stream = TcpStream::connect((host, self.port)).await?;
        stream.set_nodelay(true)?;
        match &self.tls {
            None => Ok(Wire::Plain(stream)),
            Some((config, name)) => {
                let connector = TlsConnector::from(Arc::clone(config));
                Ok(Wire::Tls(Box::new(connector.connect(name.clone(), stream).await?)))
            }
        }
    }
}

fn server_name(authority: &Authority) -> Result<ServerName<'static>, String> {
    let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
    ServerName::try_from(host.clone()).map_err(|_| format!("\"{host}\" is no host that a certificate can name"))
}

fn config(ca: Option<&Path>) -> Result<Arc<ClientConfig>, String> {
    let tls = Tls::load(TlsFiles { ca: ca.map(Path::to_owned), client: None })?;
    Ok(Arc::clone(tls.config()))
}

/// The bytes to and from the upstream.
pub(crate) enum Wire {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Wire {
    /// False: there is nothing to read, not even an end.
    pub(crate) fn may_have_bytes(&self, cx: &mut Context<'_>) -> bool {
        match self {
            Wire::Plain(stream) => stream.poll_read_ready(cx).is_ready(),
            // Some may have been read from the socket already.
            Wire::Tls(_) => true,
        }
    }
}

macro_rules! on_either {
    ($self:ident, $stream:ident => $call:expr) => {
        match $self.get_mut() {
            Wire::Plain(stream) => {
                let $stream = Pin::new(stream);
                $call
            }
            Wire::Tls(stream) => {
                let $stream = Pin::new(&mut **stream);
                $call
            }
        }
    };
}

impl AsyncRead for Wire {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        on_either!(self, stream => stream.poll_read(cx, buf))
    }
}

impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        on_either!(self, stream => stream.poll_write(cx, buf))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_either!(self, stream => stream.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_either!(self, stream => stream.poll_shutdown(cx))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        on_either!(self, stream => stream.poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Wire::Plain(stream) => stream.is_write_vectored(),
            Wire::Tls(stream) => stream.is_write_vectored(),
        }
    }
}
