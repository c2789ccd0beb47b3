//! TLS: handshakes that come to their end and those that do not, certificates of clients, certificates that are replaced.

use crate::server::{Response, Server, check, limited, parse};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedProtocolVersion};
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use tidegate::Micros;
use tidegate_doors::http::{HttpSettings, Limits};
use tidegate_doors::listener::{
    self, Bounds, Caps, Census, CertificateNames, Connection, Protocol, Speaks, Tls, TlsFiles,
};
use tidegate_testkit::certificates::{Authority, DnType, SanType, authority, certify, certify_with, write_ca};
use tidegate_testkit::{Folder, eventually};

const HIT: &str = r#"POST /v1/hit {"limiter":"ten","key":"u1"}"#;
/// 2027: what is valid until 2099 is valid.
const NOW: Micros = Micros::from_secs(1_800_000_000);

/// An authority, with a certificate for localhost.
pub(super) struct Pki {
    pub(super) folder: Folder,
    pub(super) authority: Authority,
    pub(super) files: TlsFiles,
}

pub(super) fn pki() -> Pki {
    let (folder, authority) = (Folder::new(), authority());
    let (cert, key) = certify(&folder.path(""), "door", &authority, "localhost", 2099);
    Pki { folder, authority, files: TlsFiles { cert, key, client_ca: None } }
}

impl Pki {
    pub(super) fn tls(&self) -> Arc<Tls> {
        Arc::new(Tls::load(self.files.clone(), Speaks::Http1And2, NOW).unwrap())
    }

    fn door(&self) -> Server {
        Server::with(HttpSettings { tls: Some(self.tls()), ..HttpSettings::default() })
    }

    /// A client that trusts the authority.
    fn client(&self) -> ClientConfig {
        client(&self.authority, rustls::ALL_VERSIONS, None)
    }
}

pub(super) fn client(
    trusted: &Authority,
    versions: &[&'static SupportedProtocolVersion],
    own: Option<&(PathBuf, PathBuf)>,
) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(trusted.pem().as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_protocol_versions(versions).unwrap();
    let config = config.with_root_certificates(roots);
    match own {
        None => config.with_no_client_auth(),
        Some((cert, key)) => {
            let chain = vec![CertificateDer::from_pem_file(cert).unwrap()];
            config.with_client_auth_cert(chain, PrivateKeyDer::from_pem_file(key).unwrap()).unwrap()
        }
    }
}

pub(super) type Stream = StreamOwned<ClientConnection, TcpStream>;

/// Shakes hands.
pub(super) fn connect(address: SocketAddr, config: &ClientConfig, name: &'static str) -> io::Result<Stream> {
    let tcp = TcpStream::connect(address)?;
    tcp.set_nodelay(true)?;
    tcp.set_read_timeout(Some(Duration::from_secs(20)))?;
    let session = ClientConnection::new(Arc::new(config.clone()), ServerName::try_from(name).unwrap()).unwrap();
    let mut stream = StreamOwned::new(session, tcp);
    while stream.conn.is_handshaking() {
        stream.conn.complete_io(&mut stream.sock)?;
    }
    Ok(stream)
}

/// One request on a connection that stays open.
pub(super) fn ask(stream: &mut Stream, request: &str) -> io::Result<Response> {
    let (method, rest) = request.split_once(' ').unwrap();
    let (path, body) = rest.split_once(' ').unwrap_or((rest, ""));
    let length = body.len();
    let text = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n{body}");
    stream.write_all(text.as_bytes())?;
    let (mut bytes, mut chunk) = (Vec::new(), [0; 16 << 10]);
    loop {
        if let Some((response, _)) = parse(&bytes, false) {
            return Ok(response);
        }
        match stream.read(&mut chunk)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => bytes.extend_from_slice(&chunk[..count]),
        }
    }
}

/// What a client's handshake, and one request, ends with.
#[track_caller]
fn check_refused(address: SocketAddr, config: &ClientConfig, name: &'static str, expected: &str) {
    let outcome = connect(address, config, name).and_then(|mut stream| ask(&mut stream, HIT));
    let error = outcome.expect_err("the handshake must fail").to_string();
    assert!(error.contains(expected), "{expected:?} is not in {error:?}");
}

#[test]
fn https_answers_as_http_does_over_tls_1_2_and_1_3() {
    let pki = pki();
    let server = pki.door();
    for (version, remaining) in [(&rustls::version::TLS12, [9, 8]), (&rustls::version::TLS13, [7, 6])] {
        let mut stream = connect(server.address, &client(&pki.authority, &[version], None), "localhost").unwrap();
        for left in remaining {
            let response = ask(&mut stream, HIT).unwrap();
            assert_eq!(response.status, 200);
            assert!(response.body.contains(&format!("\"remaining\":{left}")), "{}", response.body);
        }
    }
    let page = ask(&mut connect(server.address, &pki.client(), "localhost").unwrap(), "GET /metrics").unwrap().body;
    assert!(page.contains("tidegate_tls_certificate_expiry_seconds{door=\"http\"} 4070908800"), "{page}");
    assert!(page.contains("tidegate_tls_handshakes_total{door=\"http\",outcome=\"completed\"} 3"), "{page}");
}

#[test]
fn large_answers_and_pieces_of_requests_pass() {
    let pki = pki();
    let server = pki.door();
    let mut stream = connect(server.address, &pki.client(), "localhost").unwrap();
    let page = ask(&mut stream, "GET /openapi.json").unwrap();
    assert!(page.status == 200 && page.body.len() > 20_000, "{}", page.body.len());
    let body = r#"{"limiter":"ten","key":"u1"}"#;
    let text = format!("POST /v1/hit HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    for piece in text.as_bytes().chunks(7) {
        stream.write_all(piece).unwrap();
        stream.flush().unwrap();
    }
    let mut came = Vec::new();
    while parse(&came, false).is_none() {
        let mut chunk = [0; 1024];
        let count = stream.read(&mut chunk).unwrap();
        came.extend_from_slice(&chunk[..count]);
    }
    assert!(parse(&came, false).unwrap().0.body.contains("\"remaining\":9"));
}

#[test]
fn clear_text_at_an_address_with_tls_is_told_so() {
    let pki = pki();
    let server = pki.door();
    let mut client = server.connect();
    client.send(HIT, "");
    let response = client.response().unwrap();
    assert_eq!(response.status, 400, "{}", response.body);
    assert!(response.body.contains("\"code\":\"tls_required\"") && response.body.contains("https://"));
    assert!(client.response().is_none(), "and the connection ends");
    for bytes in [&b"\0\0\0\0"[..], b"\x16\x03\x01\x00\x05hello", b"\x16\x01", b"ping"] {
        let mut client = server.connect();
        client.stream.write_all(bytes).unwrap();
        // It may be refused already.
        let _ = client.stream.shutdown(std::net::Shutdown::Write);
        let _ = client.stream.read_to_end(&mut Vec::new());
    }
    let page = || ask(&mut connect(server.address, &pki.client(), "localhost").unwrap(), "GET /metrics").unwrap().body;
    let failed = "tidegate_tls_handshakes_total{door=\"http\",outcome=\"failed\"} 5";
    eventually("five handshakes have failed", || page().contains(failed));
    let page = page();
    assert!(!page.contains("route=\"/v1/hit\""), "nothing was asked: {page}");
}

#[test]
fn a_client_that_speaks_something_else_is_refused_in_the_handshake() {
    let pki = pki();
    let server = pki.door();
    let offering = |protocols: &[&str]| {
        let mut config = pki.client();
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        config
    };
    check_refused(server.address, &offering(&["spdy/1"]), "localhost", "NoApplicationProtocol");
    for (offered, settled) in [(&["http/1.1"][..], Some("http/1.1")), (&["http/1.1", "h2"], Some("h2")), (&[], None)] {
        let stream = connect(server.address, &offering(offered), "localhost").unwrap();
        assert_eq!(stream.conn.alpn_protocol(), settled.map(str::as_bytes), "{offered:?}");
    }
}

#[test]
fn clients_refuse_certificates_that_expired_or_are_for_another_name_or_from_a_stranger() {
    let pki = pki();
    let server = pki.door();
    check_refused(server.address, &pki.client(), "other.example", "certificate not valid for name");
    check_refused(server.address, &client(&authority(), rustls::ALL_VERSIONS, None), "localhost", "BadSignature");
    let (cert, key) = certify(&pki.folder.path(""), "old", &pki.authority, "localhost", 2024);
    let old = TlsFiles { cert, key, client_ca: None };
    let in_2023 = Micros::from_secs(1_680_000_000);
    let tls = Arc::new(Tls::load(old, Speaks::Http1And2, in_2023).unwrap());
    let server = Server::with(HttpSettings { tls: Some(tls), ..HttpSettings::default() });
    check_refused(server.address, &pki.client(), "localhost", "expired");
}

#[test]
fn where_clients_need_certificates_those_without_or_from_a_stranger_are_refused() {
    let mut pki = pki();
    let (clients, stranger, folder) = (authority(), authority(), pki.folder.path(""));
    pki.files.client_ca = Some(write_ca(&folder, "clients.pem", &clients));
    let server = pki.door();
    let of = |name: &str, authority: &Authority, until| certify(&folder, name, authority, "client", until);
    let (known, unknown) = (of("known", &clients, 2099), of("unknown", &stranger, 2099));
    let expired = of("expired", &clients, 2024);
    for versions in [&[&rustls::version::TLS12][..], &[&rustls::version::TLS13]] {
        let with = |own| client(&pki.authority, versions, own);
        let mut stream = connect(server.address, &with(Some(&known)), "localhost").unwrap();
        assert_eq!(ask(&mut stream, HIT).unwrap().status, 200);
        for refused in [None, Some(&unknown), Some(&expired)] {
            let outcome = connect(server.address, &with(refused), "localhost").and_then(|mut s| ask(&mut s, HIT));
            assert!(outcome.is_err(), "{refused:?}");
        }
    }
    check_charged(&server, &pki, &known, 8);
}

/// What was refused has charged nothing.
#[track_caller]
fn check_charged(server: &Server, pki: &Pki, own: &(PathBuf, PathBuf), remaining: u32) {
    let config = client(&pki.authority, rustls::ALL_VERSIONS, Some(own));
    let mut stream = connect(server.address, &config, "localhost").unwrap();
    let peeked = ask(&mut stream, "GET /v1/limiters/ten/keys/u1").unwrap().body;
    assert!(peeked.contains(&format!("\"remaining\":{remaining}")), "{peeked}");
}

#[test]
fn the_connection_tells_the_names_in_the_clients_certificate() {
    let mut pki = pki();
    let folder = pki.folder.path("");
    pki.files.client_ca = Some(write_ca(&folder, "ca.pem", &pki.authority));
    let own = certify_with(&folder, "billing", &pki.authority, "billing.internal", |params| {
        params.distinguished_name.push(DnType::OrganizationName, "an organization");
        params.subject_alt_names.push(SanType::URI("spiffe://mesh/billing".try_into().unwrap()));
    });
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let tcp = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = tcp.local_addr().unwrap();
    let (told, names) = mpsc::channel();
    let second = Duration::from_secs(1);
    let bounds = Bounds {
        reserved: 0,
        head_timeout: second,
        idle_timeout: second,
        write_timeout: second,
        drain_timeout: second,
        send_buffer_bytes: None,
    };
    let serve = move |connection: Arc<Connection>| {
        let told = told.clone();
        async move {
            assert_eq!(connection.certificate(), None, "not before the handshake");
            let protocol = connection.protocol().await.unwrap();
            told.send((protocol, connection.certificate().cloned())).unwrap();
        }
    };
    runtime.spawn(listener::serve(
        tcp,
        bounds,
        Arc::new(Census::new(Caps::of(10))),
        Some(pki.tls()),
        std::future::pending(),
        serve,
    ));
    let mut config = client(&pki.authority, rustls::ALL_VERSIONS, Some(&own));
    config.alpn_protocols = vec![b"h2".to_vec()];
    let _stream = connect(address, &config, "localhost").unwrap();
    let expected = CertificateNames {
        common_name: Some("billing".to_owned()),
        alternative_names: vec!["billing.internal".to_owned(), "spiffe://mesh/billing".to_owned()],
    };
    assert_eq!(names.recv_timeout(Duration::from_secs(20)).unwrap(), (Protocol::Http2, Some(expected)));
}

#[test]
fn s1_slow_handshakes_are_cut() {
    let pki = pki();
    let settings = HttpSettings { header_timeout: Duration::from_millis(60), ..HttpSettings::default() };
    let server = Server::with(HttpSettings { tls: Some(pki.tls()), ..settings });
    let hello = client_hello(&pki);
    for sent in [0, 1, 5, hello.len() / 2, hello.len()] {
        let mut slow = TcpStream::connect(server.address).unwrap();
        slow.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        slow.write_all(&hello[..sent]).unwrap();
        // All that comes is our half of the handshake, then the end.
        let ended = slow.read_to_end(&mut Vec::new());
        assert!(ended.is_ok() || ended.unwrap_err().kind() == io::ErrorKind::ConnectionReset, "{sent} bytes");
    }
}

/// The first bytes of a handshake.
fn client_hello(pki: &Pki) -> Vec<u8> {
    let mut session =
        ClientConnection::new(Arc::new(pki.client()), ServerName::try_from("localhost").unwrap()).unwrap();
    let mut hello = Vec::new();
    session.write_tls(&mut hello).unwrap();
    hello
}

/// Handshakes take turns, and a client that is waited for has none: 2,000 slow ones hold nobody up, nor do those that come beside them.
#[test]
fn s1_thousands_of_slow_handshakes_hold_up_no_decision() {
    const SLOW: usize = 2_000;
    let pki = pki();
    let server = pki.door();
    let hello = client_hello(&pki);
    let mut stream = connect(server.address, &pki.client(), "localhost").unwrap();
    let mut decisions = |time: Duration| {
        let (start, mut count) = (Instant::now(), 0_u32);
        while start.elapsed() < time {
            assert!(ask(&mut stream, "POST /v1/hit {\"limiter\":\"ten\",\"key\":\"u1\"}").is_ok());
            count += 1;
        }
        f64::from(count) / start.elapsed().as_secs_f64()
    };
    decisions(Duration::from_millis(200));
    let alone = decisions(Duration::from_secs(1));
    let mut slow: Vec<TcpStream> = (0..SLOW)
        .map(|at| {
            let mut tcp = TcpStream::connect(server.address).unwrap();
            // Some are silent, some stop in the middle, some leave the second half to us.
            tcp.write_all(&hello[..[0, 100, hello.len()][at % 3]]).unwrap();
            tcp
        })
        .collect();
    let beside = decisions(Duration::from_secs(1));
    println!("decisions a second: {alone:.0} alone, {beside:.0} beside {SLOW} slow handshakes: {:.2}", beside / alone);
    assert!(beside > alone / 3.0, "{alone:.0} alone, {beside:.0} beside {SLOW} slow handshakes");
    let another = Instant::now();
    assert_eq!(ask(&mut connect(server.address, &pki.client(), "localhost").unwrap(), HIT).unwrap().status, 429);
    assert!(another.elapsed() < Duration::from_secs(5), "another handshake took {:?}", another.elapsed());
    slow.iter_mut().for_each(|tcp| drop(tcp.write_all(b"\0")));
}

#[test]
fn certificates_are_replaced_without_dropping_a_connection_and_a_bad_pair_changes_nothing() {
    let pki = pki();
    let tls = pki.tls();
    let server = Server::with(HttpSettings { tls: Some(Arc::clone(&tls)), ..HttpSettings::default() });
    let shown = |stream: &Stream| stream.conn.peer_certificates().unwrap()[0].to_vec();
    let mut first = connect(server.address, &pki.client(), "localhost").unwrap();
    let (cert, key) = certify(&pki.folder.path(""), "second", &pki.authority, "localhost", 2090);
    let bad = TlsFiles { cert: cert.clone(), ..pki.files.clone() };
    assert_eq!(tls.reload(bad, NOW).unwrap_err().setting, "key");
    assert_eq!(
        shown(&connect(server.address, &pki.client(), "localhost").unwrap()),
        shown(&first),
        "the old one stays"
    );
    tls.reload(TlsFiles { cert, key, client_ca: None }, NOW).unwrap();
    let mut second = connect(server.address, &pki.client(), "localhost").unwrap();
    assert_ne!(shown(&second), shown(&first), "the next handshake has the new one");
    assert_eq!(tls.expires(), Micros::from_secs(3_786_912_000));
    for stream in [&mut first, &mut second] {
        assert_eq!(ask(stream, HIT).unwrap().status, 200, "both connections go on");
    }
}

/// Each error names the setting, the file, what is wrong and what to do.
#[track_caller]
fn check_load(files: &TlsFiles, now: Micros, setting: &str, parts: &[&str]) {
    let error = Tls::load(files.clone(), Speaks::Http1And2, now).expect_err("it must be refused");
    assert_eq!(error.setting, setting, "{error}");
    for part in parts {
        assert!(error.message.contains(part), "{part:?} is not in {error}");
    }
}

#[test]
fn files_that_cannot_be_used_are_refused_with_the_remedy() {
    let pki = pki();
    let folder = pki.folder.path("");
    let write = |name: &str, bytes: &[u8]| {
        std::fs::write(folder.join(name), bytes).unwrap();
        folder.join(name)
    };
    let good = &pki.files;
    let with_cert = |cert: &Path| TlsFiles { cert: cert.to_owned(), ..good.clone() };
    let with_key = |key: &Path| TlsFiles { key: key.to_owned(), ..good.clone() };
    let with_ca = |ca: &Path| TlsFiles { client_ca: Some(ca.to_owned()), ..good.clone() };
    let der = CertificateDer::from_pem_file(&good.cert).unwrap().to_vec();
    let key_der = PrivateKeyDer::from_pem_file(&good.key).unwrap().secret_der().to_vec();
    let missing = folder.join("missing.pem");
    check_load(&with_cert(&missing), NOW, "cert", &["missing.pem cannot be read", "check the path"]);
    check_load(&with_key(&missing), NOW, "key", &["missing.pem cannot be read"]);
    check_load(&with_ca(&missing), NOW, "client_ca", &["missing.pem cannot be read"]);
    check_load(&with_cert(&folder), NOW, "cert", &["cannot be read"]);
    check_load(&with_cert(&write("empty", b"")), NOW, "cert", &["is empty", "write the certificate"]);
    check_load(&with_key(&write("empty", b"")), NOW, "key", &["is empty"]);
    check_load(&with_cert(&write("text", b"hello")), NOW, "cert", &["no certificate in PEM", "BEGIN CERTIFICATE"]);
    check_load(
        &with_cert(&write("der", &der)),
        NOW,
        "cert",
        &["in DER", "openssl x509 -inform der -in", "der -out cert.pem"],
    );
    check_load(&with_key(&write("der", &key_der)), NOW, "key", &["in DER", "openssl pkey"]);
    check_load(&with_cert(&good.key), NOW, "cert", &["has a key and no certificate", "swapped"]);
    check_load(&with_key(&good.cert), NOW, "key", &["has a certificate and no key", "swapped"]);
    let encrypted = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
    check_load(&with_key(&write("locked", encrypted.as_bytes())), NOW, "key", &["is encrypted", "openssl pkey"]);
    let broken = "-----BEGIN CERTIFICATE-----\n!!!!\n-----END CERTIFICATE-----\n";
    check_load(&with_cert(&write("broken", broken.as_bytes())), NOW, "cert", &["broken PEM"]);
    let nonsense = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    check_load(&with_cert(&write("nonsense", nonsense.as_bytes())), NOW, "cert", &["no X.509 certificate"]);
    check_load(&with_ca(&write("nonsense", nonsense.as_bytes())), NOW, "client_ca", &["authority"]);
    check_load(&with_cert(&write("large", &vec![b' '; 2 << 20])), NOW, "cert", &["1 MiB"]);
    let other = certify(&folder, "other", &pki.authority, "localhost", 2099);
    check_load(&with_key(&other.1), NOW, "key", &["does not belong to the first certificate in", "door.pem"]);
    check_load(good, Micros::from_secs(1_500_000_000), "cert", &["is not valid before 2020-01-01 00:00:00 UTC"]);
    check_load(good, Micros::from_secs(4_100_000_000), "cert", &["expired on 2099-01-01 00:00:00 UTC", "renew it"]);
}

/// A client that does not read what TLS keeps for it is one that does not read.
#[test]
fn m6_a_client_that_does_not_read_its_answer_over_tls_is_cut() {
    let pki = pki();
    let settings = HttpSettings { write_timeout: Duration::from_millis(60), ..HttpSettings::default() };
    let server = Server::with(HttpSettings { tls: Some(pki.tls()), ..settings });
    let mut stream = connect(server.address, &pki.client(), "localhost").unwrap();
    let request = "GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(200);
    // The door stops to read when its answers do not go out.
    let _ = stream.sock.set_write_timeout(Some(Duration::from_secs(5)));
    let _ = stream.write_all(request.as_bytes());
    let metrics =
        || ask(&mut connect(server.address, &pki.client(), "localhost").unwrap(), "GET /metrics").unwrap().body;
    eventually("it is cut", || metrics().contains("tidegate_http_connections_cut_total 1"));
}

#[test]
fn past_the_cap_a_connection_with_tls_is_closed_without_a_handshake() {
    let pki = pki();
    let settings = limited(Limits { connections: 1, connections_per_address: Some(1), ..Limits::default() });
    let server = Server::with(HttpSettings { tls: Some(pki.tls()), ..settings });
    let mut first = connect(server.address, &pki.client(), "localhost").unwrap();
    assert!(connect(server.address, &pki.client(), "localhost").is_err());
    assert_eq!(ask(&mut first, HIT).unwrap().status, 200);
    drop(first);
    eventually("a place", || connect(server.address, &pki.client(), "localhost").is_ok());
}

#[test]
fn a_door_in_clear_text_tells_nothing_of_certificates() {
    check(&Server::start(), "GET /metrics -> 200 !tidegate_tls");
}
