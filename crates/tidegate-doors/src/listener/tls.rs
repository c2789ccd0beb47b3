//! A door's certificate: read from files, and replaced while it is in use.
//!
//! Connections that are open keep the certificate that they began with; the next handshake takes the new one. A pair of files that
//! cannot be used changes nothing. TLS 1.2 and 1.3, with ring; what they may use of either is rustls' choice.

use arc_swap::ArcSwap;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{RootCertStore, ServerConfig};
use std::fmt;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tidegate_core::Micros;
use tidegate_wire::calendar::date_and_time;
use tidegate_wire::certificate;
use tokio_rustls::TlsAcceptor;

/// Where a door's certificates are, in PEM.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TlsFiles {
    /// The certificate, and behind it those of its issuers.
    pub cert: PathBuf,
    /// The certificate's key.
    pub key: PathBuf,
    /// The authorities that sign the certificates which clients must have; `None`: they need none.
    pub client_ca: Option<PathBuf>,
}

/// What a door speaks, which it says in the handshake (ALPN).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Speaks {
    /// HTTP/1.1 alone.
    Http1,
    /// HTTP/2, and HTTP/1.1.
    Http1And2,
    /// HTTP/2 alone.
    Http2,
    /// The Redis protocol, which has no name there.
    Resp,
}

/// Why certificates cannot be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TlsError {
    /// The setting that is to blame: `cert`, `key` or `client_ca`.
    pub setting: &'static str,
    /// What is wrong with the file, and the remedy.
    pub message: String,
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.setting, self.message)
    }
}

impl std::error::Error for TlsError {}

/// The TLS of a door.
#[derive(Debug)]
pub struct Tls {
    speaks: Speaks,
    loaded: ArcSwap<Loaded>,
    completed: AtomicU64,
    failed: AtomicU64,
}

#[derive(Debug)]
struct Loaded {
    files: TlsFiles,
    config: Arc<ServerConfig>,
    expires: Micros,
}

/// Largest file: a hundred certificates of authorities fit.
const FILE_BYTES_MAX: u64 = 1 << 20;

impl Tls {
    /// Reads the files; `now` must be within the time for which the certificate is valid.
    ///
    /// # Errors
    /// Names the file that cannot be used, why, and the remedy.
    pub fn load(files: TlsFiles, speaks: Speaks, now: Micros) -> Result<Tls, TlsError> {
        let loaded = ArcSwap::from_pointee(load(files, speaks, now)?);
        Ok(Tls { speaks, loaded, completed: AtomicU64::new(0), failed: AtomicU64::new(0) })
    }

    /// Reads files that take the place of those before. Open connections go on as they are.
    ///
    /// # Errors
    /// As [`Tls::load`]; then what was there before stays.
    pub fn reload(&self, files: TlsFiles, now: Micros) -> Result<(), TlsError> {
        self.loaded.store(Arc::new(load(files, self.speaks, now)?));
        Ok(())
    }

    /// Where the certificates in use came from.
    #[must_use]
    pub fn files(&self) -> TlsFiles {
        self.loaded.load().files.clone()
    }

    /// When the certificate in use expires.
    #[must_use]
    pub fn expires(&self) -> Micros {
        self.loaded.load().expires
    }

    /// Handshakes that came to their end, and those that failed.
    #[must_use]
    pub fn handshakes(&self) -> [u64; 2] {
        [self.completed.load(Relaxed), self.failed.load(Relaxed)]
    }

    pub(super) fn note(&self, handshake: &io::Result<()>) {
        let count = if handshake.is_ok() { &self.completed } else { &self.failed };
        count.fetch_add(1, Relaxed);
    }

    pub(super) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(&self.loaded.load().config))
    }
}

fn load(files: TlsFiles, speaks: Speaks, now: Micros) -> Result<Loaded, TlsError> {
    let chain = certificates("cert", &files.cert)?;
    let expires = expiry(&files.cert, chain.first(), now)?;
    let key = private_key(&files.key)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| refused("cert", &files.cert, &format!("cannot be used: {error}")))?;
    let builder = match &files.client_ca {
        None => builder.with_no_client_auth(),
        Some(file) => builder.with_client_cert_verifier(verifier(file, provider)?),
    };
    let mut config = builder.with_single_cert(chain, key).map_err(|error| unfit(&files, &error))?;
    config.alpn_protocols = match speaks {
        Speaks::Http1 => vec![b"http/1.1".to_vec()],
        Speaks::Http1And2 => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
        Speaks::Http2 => vec![b"h2".to_vec()],
        Speaks::Resp => Vec::new(),
    };
    Ok(Loaded { files, config: Arc::new(config), expires })
}

fn verifier(
    file: &Path,
    provider: Arc<rustls::crypto::CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let cannot = |error: &dyn fmt::Display| {
        refused("client_ca", file, &format!("cannot be used as an authority: {error}; name its own certificate"))
    };
    let mut roots = RootCertStore::empty();
    for certificate in certificates("client_ca", file)? {
        roots.add(certificate).map_err(|error| cannot(&error))?;
    }
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().map_err(|error| cannot(&error))
}

fn certificates(setting: &'static str, file: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let bytes = read(setting, file)?;
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    match read {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(refused(setting, file, no_certificate(&bytes))),
        Err(error) => Err(refused(setting, file, &broken_pem(&error))),
    }
}

fn no_certificate(bytes: &[u8]) -> &'static str {
    if has(bytes, "PRIVATE KEY-----") {
        return "has a key and no certificate; are cert and key swapped?";
    }
    match bytes.first() {
        Some(0x30) => "is in DER, not PEM; convert it: openssl x509 -inform der -in FILE -out cert.pem",
        _ => "has no certificate in PEM, which begins with -----BEGIN CERTIFICATE-----; is it the right file?",
    }
}

fn private_key(file: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let bytes = read("key", file)?;
    PrivateKeyDer::from_pem_slice(&bytes).map_err(|error| match error {
        pem::Error::NoItemsFound => refused("key", file, no_key(&bytes)),
        other => refused("key", file, &broken_pem(&other)),
    })
}

fn no_key(bytes: &[u8]) -> &'static str {
    if has(bytes, "ENCRYPTED PRIVATE KEY-----") {
        return "is encrypted; decrypt it: openssl pkey -in FILE -out key.pem, and let only the server's user read it";
    }
    if has(bytes, "CERTIFICATE-----") {
        return "has a certificate and no key; are cert and key swapped?";
    }
    match bytes.first() {
        Some(0x30) => "is in DER, not PEM; convert it: openssl pkey -inform der -in FILE -out key.pem",
        _ => "has no key in PEM, which begins with -----BEGIN PRIVATE KEY-----; is it the right file?",
    }
}

fn has(bytes: &[u8], part: &str) -> bool {
    bytes.windows(part.len()).any(|window| window == part.as_bytes())
}

fn broken_pem(error: &pem::Error) -> String {
    format!("is broken PEM ({error:?}); write it anew")
}

fn read(setting: &'static str, file: &Path) -> Result<Vec<u8>, TlsError> {
    let mut bytes = Vec::new();
    let read = std::fs::File::open(file).and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes));
    match read {
        Ok(0) => Err(refused(setting, file, "is empty; write the certificate or the key into it, in PEM")),
        Ok(_) if bytes.len() as u64 > FILE_BYTES_MAX => {
            Err(refused(setting, file, "is larger than 1 MiB, the most; is it the right file?"))
        }
        Ok(_) => Ok(bytes),
        Err(error) => {
            Err(refused(setting, file, &format!("cannot be read: {error}; check the path and its permissions")))
        }
    }
}

/// When the first certificate expires, if it is valid now.
fn expiry(file: &Path, certificate: Option<&CertificateDer<'_>>, now: Micros) -> Result<Micros, TlsError> {
    let refused = |message: &str| refused("cert", file, message);
    let der = certificate.ok_or_else(|| refused("has no certificate"))?;
    let parsed = certificate::parse(der).map_err(|error| refused(&format!("cannot be used: {error}")))?;
    let shown = |seconds| {
        let (date, time) = date_and_time(seconds);
        format!("{date} {time} UTC")
    };
    let (from, until) = (Micros::from_secs(parsed.not_before), Micros::from_secs(parsed.not_after));
    if until < now {
        return Err(refused(&format!("expired on {}; renew it", shown(parsed.not_after))));
    }
    if now < from {
        let message = format!("is not valid before {}; wait until then, or set the clock", shown(parsed.not_before));
        return Err(refused(&message));
    }
    Ok(until)
}

/// What rustls says of a certificate with its key.
fn unfit(files: &TlsFiles, error: &rustls::Error) -> TlsError {
    let cert = files.cert.display();
    let message = match error {
        rustls::Error::InconsistentKeys(_) => format!(
            "does not belong to the first certificate in {cert}; name the key that it was requested with, and put the \
             certificate before those of its issuers"
        ),
        rustls::Error::InvalidCertificate(_) => {
            return refused("cert", &files.cert, &format!("cannot be used: {error}; request a new one"));
        }
        _ => format!("cannot be used: {error}; use an RSA key of 2048 bits or more, ECDSA P-256 or P-384, or Ed25519"),
    };
    refused("key", &files.key, &message)
}

fn refused(setting: &'static str, file: &Path, message: &str) -> TlsError {
    let name = file.display().to_string();
    TlsError { setting, message: format!("{name} {}", message.replace("FILE", &name)) }
}
