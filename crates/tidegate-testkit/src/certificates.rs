//! Certificates for tests of TLS.

pub use rcgen::{self, CertificateParams, DnType, SanType, date_time_ymd};

use rcgen::{BasicConstraints, CertifiedIssuer, IsCa, KeyPair};
use std::path::{Path, PathBuf};

/// Who signs certificates.
pub type Authority = CertifiedIssuer<'static, KeyPair>;

/// A new authority, which nobody trusts yet.
pub fn authority() -> Authority {
    let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
    params.distinguished_name.push(DnType::CommonName, "an authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// Writes `NAME.pem` and `NAME.key`, signed for `host` and valid until a year.
pub fn certify(folder: &Path, name: &str, authority: &Authority, host: &str, until: i32) -> (PathBuf, PathBuf) {
    certify_with(folder, name, authority, host, |params| params.not_after = date_time_ymd(until, 1, 1))
}

/// The same, valid until 2099, with what `change` does to it.
pub fn certify_with(
    folder: &Path,
    name: &str,
    authority: &Authority,
    host: &str,
    change: impl FnOnce(&mut CertificateParams),
) -> (PathBuf, PathBuf) {
    let mut params = CertificateParams::new(vec![host.to_owned()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = date_time_ymd(2020, 1, 1);
    params.not_after = date_time_ymd(2099, 1, 1);
    change(&mut params);
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, authority).unwrap();
    let (cert_file, key_file) = (folder.join(format!("{name}.pem")), folder.join(format!("{name}.key")));
    std::fs::write(&cert_file, certificate.pem()).unwrap();
    std::fs::write(&key_file, key.serialize_pem()).unwrap();
    (cert_file, key_file)
}

/// Writes the authority's own certificate, for those who are to trust it.
pub fn write_ca(folder: &Path, name: &str, authority: &Authority) -> PathBuf {
    let file = folder.join(name);
    std::fs::write(&file, authority.pem()).unwrap();
    file
}
