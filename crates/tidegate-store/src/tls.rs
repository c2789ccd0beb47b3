//! TLS towards a store, and towards the proxy's upstream: the trusted CAs, and the client's certificate.
//!
//! Verification is always on. Files are read once, when the settings are.

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{CertificateError, ClientConfig, RootCertStore};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Where certificates are; none of them is needed.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct TlsFiles {
    /// The authority that may sign the server's certificate, in PEM; without it Mozilla's roots.
    pub ca: Option<PathBuf>,
    /// Our own certificate and its key, in PEM, for servers that ask for them.
    pub client: Option<(PathBuf, PathBuf)>,
}

/// How servers are talked to in secret.
#[derive(Clone)]
pub struct Tls {
    files: TlsFiles,
    config: Arc<ClientConfig>,
}

impl PartialEq for Tls {
    fn eq(&self, other: &Tls) -> bool {
        self.files == other.files
    }
}

impl Eq for Tls {}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.files.fmt(f)
    }
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// Names the file that cannot be used, and why.
    pub fn load(files: TlsFiles) -> Result<Tls, String> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = config.map_err(|error| error.to_string())?.with_root_certificates(roots(files.ca.as_deref())?);
        let config = match &files.client {
            None => config.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = certificates(certificate)?;
                let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| refusal(key, "a key", &error))?;
                config
                    .with_client_auth_cert(chain, secret)
                    .map_err(|error| refusal(key, "the certificate's key", &error))?
            }
        };
        Ok(Tls { files, config: Arc::new(config) })
    }

    /// The same for a caller that shakes hands itself.
    #[must_use]
    pub fn config(&self) -> &Arc<ClientConfig> {
        &self.config
    }

    /// Shakes hands with the server at this address.
    ///
    /// # Errors
    /// Why the handshake failed, with what is wrong with the certificate.
    pub async fn over(&self, stream: TcpStream, address: &str) -> Result<TlsStream<TcpStream>, String> {
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned());
        let name = name.map_err(|_| format!("\"{host}\" is no name that a certificate can have"))?;
        let connected = TlsConnector::from(Arc::clone(&self.config)).connect(name, stream).await;
        connected.map_err(|error| why_not(&error, host))
    }
}

fn roots(ca: Option<&Path>) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    match ca {
        None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
        Some(file) => {
            for certificate in certificates(file)? {
                roots.add(certificate).map_err(|error| refusal(file, "certificates", &error))?;
            }
        }
    }
    Ok(roots)
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let read = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let found = read.map_err(|error| refusal(file, "certificates", &error))?;
    if found.is_empty() { Err(refusal(file, "certificates", &"it has none")) } else { Ok(found) }
}

fn refusal(file: &Path, what: &str, error: &dyn fmt::Display) -> String {
    format!("{} cannot be read as {what}: {error}; name a PEM file", file.display())
}

/// Why a handshake failed, with the certificate's fault in words.
fn why_not(error: &std::io::Error, host: &str) -> String {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    let fault = match inner {
        Some(rustls::Error::InvalidCertificate(fault)) => fault,
        Some(other) => return format!("no TLS with it: {other}"),
        None => return format!("no TLS with it: {error}"),
    };
    let fault = match fault {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => "it has expired; renew it".to_owned(),
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => "it is not valid yet".to_owned(),
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "it is made out to another name; use the name in it".to_owned()
        }
        // A CA of the same name and with another key has not signed it either.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "nobody we trust has signed it; name its CA in ca_file".to_owned()
        }
        other => other.to_string(),
    };
    format!("the certificate of {host} is refused: {fault}")
}
