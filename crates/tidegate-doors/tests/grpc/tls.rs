//! TLS: h2 by ALPN, and clients that are known by their certificates.

use crate::server::{Ended, Server, call, connect_over, ended, request};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use tidegate::Micros;
use tidegate_doors::access::{Access, Certificate, CertificatePattern, Grant, Rules, Scope, Tokens};
use tidegate_doors::grpc::GrpcSettings;
use tidegate_doors::listener::{Speaks, Tls, TlsFiles};
use tidegate_testkit::Folder;
use tidegate_testkit::certificates::{Authority, authority, certify, write_ca};
use tidegate_wire::grpc::framed;
use tidegate_wire::grpc::ratelimit::SHOULD_RATE_LIMIT;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// 2027: what is valid until 2099 is valid.
const NOW: Micros = Micros::from_secs(1_800_000_000);

fn client(trusted: &Authority, own: Option<&(PathBuf, PathBuf)>, alpn: &[&[u8]]) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(trusted.pem().as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_root_certificates(roots);
    let mut config = match own {
        None => config.with_no_client_auth(),
        Some((cert, key)) => {
            let chain = vec![CertificateDer::from_pem_file(cert).unwrap()];
            config.with_client_auth_cert(chain, PrivateKeyDer::from_pem_file(key).unwrap()).unwrap()
        }
    };
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    config
}

/// A call over a connection of this client.
fn ask(server: &Server, client: ClientConfig) -> io::Result<Ended> {
    server.runtime.block_on(async {
        let tcp = TcpStream::connect(server.address).await?;
        let name = ServerName::try_from("localhost").unwrap();
        let tls = TlsConnector::from(Arc::new(client)).connect(name, tcp).await?;
        let mut sender = connect_over(tls).await.map_err(io::Error::other)?;
        let asked = sender.send_request(call(SHOULD_RATE_LIMIT, framed(&request("user=a")))).await;
        Ok(ended(asked.map_err(io::Error::other)?).await)
    })
}

#[test]
fn http2_is_spoken_and_nothing_else() {
    let (folder, authority) = (Folder::new(), authority());
    let (cert, key) = certify(&folder.path(""), "door", &authority, "localhost", 2099);
    let tls = Tls::load(TlsFiles { cert, key, client_ca: None }, Speaks::Http2, NOW).unwrap();
    let server = Server::with(GrpcSettings { tls: Some(Arc::new(tls)), ..GrpcSettings::default() });
    assert_eq!(ask(&server, client(&authority, None, &[b"h2"])).unwrap().status, 0);
    assert_eq!(ask(&server, client(&authority, None, &[])).unwrap().status, 0, "gRPC clients may not say");
    assert!(ask(&server, client(&authority, None, &[b"http/1.1"])).is_err());
}

#[test]
fn s5_a_certificate_is_as_good_as_a_token() {
    let (folder, authority) = (Folder::new(), authority());
    let (cert, key) = certify(&folder.path(""), "door", &authority, "localhost", 2099);
    let files = TlsFiles { cert, key, client_ca: Some(write_ca(&folder.path(""), "ca.pem", &authority)) };
    let grant = Grant { scopes: [Scope::Check].into_iter().collect(), ..Grant::default() };
    let of = CertificatePattern::San("envoy.example".parse().unwrap());
    let known = Certificate { name: "envoy".to_owned(), of, grant };
    let rules = Rules { tokens: Some(Tokens::new(Vec::new(), vec![known]).unwrap()), ..Rules::default() };
    let tls = Some(Arc::new(Tls::load(files, Speaks::Http2, NOW).unwrap()));
    let server = Server::with(GrpcSettings { tls, access: Arc::new(Access::new(rules)), ..GrpcSettings::default() });
    let of_host = |name: &str, host: &str| certify(&folder.path(""), name, &authority, host, 2099);
    let (envoy, other) = (of_host("envoy", "envoy.example"), of_host("other", "other.example"));
    assert_eq!(ask(&server, client(&authority, Some(&envoy), &[b"h2"])).unwrap().status, 0);
    assert_eq!(ask(&server, client(&authority, Some(&other), &[b"h2"])).unwrap().status, 16);
    assert!(ask(&server, client(&authority, None, &[b"h2"])).is_err());
}
