//! TLS of the client commands: the authorities that they trust, and their own certificate.

use super::http::Failure;
use rustls::AlertDescription;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
use std::path::{Path, PathBuf};
use ureq::tls::{Certificate, ClientCert, PemItem, PrivateKey, RootCerts, TlsConfig, TlsProvider, parse_pem};

/// Certificates for a server that is asked over https.
#[derive(clap::Args, Debug)]
pub(super) struct Trust {
    /// With https: who signs the server's certificate, in PEM; without it, the authorities that browsers trust
    #[arg(long, value_name = "FILE", env = "TIDEGATE_CA")]
    ca: Option<PathBuf>,
    /// With https: our own certificate, in PEM, for a server that asks for one
    #[arg(long, value_name = "FILE", env = "TIDEGATE_CERT", requires = "key_file")]
    cert: Option<PathBuf>,
    /// The certificate's key, in PEM
    #[arg(long = "key", value_name = "FILE", env = "TIDEGATE_KEY", requires = "cert")]
    key_file: Option<PathBuf>,
}

impl Trust {
    pub(super) fn is_empty(&self) -> bool {
        self.ca.is_none() && self.cert.is_none()
    }

    /// Reads the files.
    pub(super) fn load(&self) -> Result<TlsConfig, Failure> {
        let config = TlsConfig::builder().provider(TlsProvider::Rustls);
        let config = match &self.ca {
            Some(file) => config.root_certs(RootCerts::new_with_certs(&certificates("--ca", file)?)),
            None => config.root_certs(RootCerts::WebPki),
        };
        let client = match (&self.cert, &self.key_file) {
            (Some(cert), Some(key)) => {
                let pem = read("--key", key)?;
                let key = PrivateKey::from_pem(&pem).map_err(|error| refused("--key", key, &error))?;
                let chain = certificates("--cert", cert)?;
                check_pair(&chain, &key).map_err(|error| refused("--cert", cert, &error))?;
                Some(ClientCert::new_with_certs(&chain, key))
            }
            _ => None,
        };
        Ok(config.client_cert(client).build())
    }
}

/// The HTTP client would panic on a pair that it cannot use.
fn check_pair(chain: &[Certificate<'static>], key: &PrivateKey<'static>) -> Result<(), String> {
    use rustls::CertificateError::Other;
    let chain = chain.iter().map(|certificate| CertificateDer::from(certificate.der().to_vec())).collect();
    let key = PrivateKeyDer::try_from(key.der().to_vec()).map_err(str::to_owned)?;
    let config = rustls::ClientConfig::builder().with_root_certificates(rustls::RootCertStore::empty());
    match config.with_client_auth_cert(chain, key) {
        Ok(_) => Ok(()),
        Err(rustls::Error::InvalidCertificate(Other(other)))
            if format!("{other:?}").contains("UnsupportedCertVersion") =>
        {
            Err("it is no certificate of version 3, as openssl makes them with -extfile".to_owned())
        }
        Err(rustls::Error::InconsistentKeys(_)) => Err("--key is not its key".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

fn certificates(option: &str, file: &Path) -> Result<Vec<Certificate<'static>>, Failure> {
    let pem = read(option, file)?;
    let items: Result<Vec<_>, _> = parse_pem(&pem).collect();
    let items = items.map_err(|error| refused(option, file, &error))?;
    let found: Vec<_> = items
        .into_iter()
        .filter_map(|item| if let PemItem::Certificate(certificate) = item { Some(certificate) } else { None })
        .collect();
    if found.is_empty() { Err(refused(option, file, &"it has no certificate")) } else { Ok(found) }
}

fn read(option: &str, file: &Path) -> Result<Vec<u8>, Failure> {
    std::fs::read(file).map_err(|error| refused(option, file, &error))
}

fn refused(option: &str, file: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::new(format!("{option} {} cannot be used: {error}; name a PEM file", file.display()))
}

/// Why a handshake failed, with the remedy; `None`: none did.
pub(super) fn why_not(error: &ureq::Error) -> Option<String> {
    use rustls::CertificateError as Fault;
    let error = match error {
        ureq::Error::Rustls(error) => error,
        // The alert that says why may be lost when the server closes.
        ureq::Error::Io(error) if [BrokenPipe, ConnectionReset, UnexpectedEof].contains(&error.kind()) => {
            let why = "it closed the connection; if it asks for a certificate of ours, name one that it trusts with --cert FILE --key FILE";
            return Some(why.to_owned());
        }
        ureq::Error::Io(error) => error.get_ref()?.downcast_ref::<rustls::Error>()?,
        _ => return None,
    };
    let remedy = match error {
        rustls::Error::InvalidCertificate(Fault::Expired | Fault::ExpiredContext { .. }) => {
            "its certificate has expired; renew it on the server"
        }
        rustls::Error::InvalidCertificate(Fault::NotValidForName | Fault::NotValidForNameContext { .. }) => {
            "its certificate is made out to another name; ask under the name in it"
        }
        // An authority of the same name and with another key has not signed it either.
        rustls::Error::InvalidCertificate(Fault::UnknownIssuer | Fault::BadSignature) => {
            "nobody we trust has signed its certificate; name its authority with --ca FILE"
        }
        rustls::Error::AlertReceived(AlertDescription::CertificateRequired) => {
            "it asks for a certificate of ours; name one with --cert FILE --key FILE"
        }
        rustls::Error::AlertReceived(AlertDescription::UnknownCA | AlertDescription::DecryptError) => {
            "it does not trust our certificate; name another with --cert FILE --key FILE"
        }
        rustls::Error::InvalidMessage(_) => "it speaks no TLS; write http:// instead of https://",
        other => return Some(other.to_string()),
    };
    Some(remedy.to_owned())
}
