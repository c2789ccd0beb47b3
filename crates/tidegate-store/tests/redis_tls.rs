//! TLS to a real Redis: a private CA, a client's certificate, and certificates that must be refused.
#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, missing_docs, reason = "a failing unwrap is a failing test")]

use std::path::{Path, PathBuf};
use tidegate_core::all_or_nothing::Intent;
use tidegate_core::{Algorithm, Rules};
use tidegate_store::redis::{Redis, Url};
use tidegate_store::{Asked, Layout, Question, StoreError, Tls, TlsFiles};
use tidegate_testkit::certificates::{authority, certify, write_ca};
use tidegate_testkit::servers::{Server, free_port};

/// A Redis whose TLS port has this certificate; it asks clients for theirs, or does not.
fn server(port: u16, (cert, key): &(PathBuf, PathBuf), ca: &Path, clients: &str) -> Server {
    let [cert, key, ca] = [cert, key, ca].map(|path| path.display().to_string());
    let port = port.to_string();
    let files = ["--tls-cert-file", &cert, "--tls-key-file", &key, "--tls-ca-cert-file", &ca];
    let rest = ["--tls-port", &port, "--tls-auth-clients", clients, "--requirepass", "hush"];
    Server::redis(&[files, rest].concat())
}

/// One hit over TLS.
async fn ask(host: &str, port: u16, files: TlsFiles) -> Result<bool, StoreError> {
    let mut url: Url = format!("rediss://:hush@{host}:{port}").parse().unwrap();
    url.tls = Some(Tls::load(files).unwrap());
    let redis = Redis::open(url).await;
    if let Some(error) = redis.down() {
        return Err(error);
    }
    let rules = Rules::new(Algorithm::TokenBucket, &["5 per minute".parse().unwrap()]).unwrap();
    let question = Question {
        limiter: "a",
        rules: &rules,
        names: true,
        key: b"u",
        layout: Layout::Native,
        role: Default::default(),
        own: None,
    };
    let by = tokio::time::Instant::now() + std::time::Duration::from_secs(5);
    let asked = Asked { now: None, cost: 1, intent: Intent::Hit, explain: false, by };
    Ok(redis.decide(&[question], &asked).await?.1[0].ruling.is_allowed())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_private_ca_and_a_clients_certificate_work_and_others_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (ours, foreign) = (authority(), authority());
    let ca = write_ca(folder, "ca.pem", &ours);
    let other_ca = write_ca(folder, "other.pem", &foreign);
    let good = certify(folder, "good", &ours, "localhost", 2100);
    let expired = certify(folder, "expired", &ours, "localhost", 2021);
    let client = certify(folder, "client", &ours, "tidegate", 2100);
    let trusting = |ca: &PathBuf| TlsFiles { ca: Some(ca.clone()), client: None };

    let port = free_port();
    let _redis = server(port, &good, &ca, "no");
    assert_eq!(ask("localhost", port, trusting(&ca)).await, Ok(true));
    for (host, files, fault) in [
        ("localhost", trusting(&other_ca), "nobody we trust has signed it; name its CA in ca_file"),
        ("localhost", TlsFiles::default(), "nobody we trust has signed it"),
        ("127.0.0.1", trusting(&ca), "it is made out to another name"),
    ] {
        let error = ask(host, port, files).await.unwrap_err().to_string();
        let whole = format!("the certificate of {host} is refused: {fault}");
        assert!(error.contains(&whole) && !error.contains("hush"), "{error}");
        assert!(!error.contains("start it, or correct its address"), "it runs, and there: {error}");
    }

    let port = free_port();
    let _redis = server(port, &expired, &ca, "no");
    let error = ask("localhost", port, trusting(&ca)).await.unwrap_err().to_string();
    assert!(error.contains("the certificate of localhost is refused: it has expired; renew it"), "{error}");

    let port = free_port();
    let _redis = server(port, &good, &ca, "yes");
    assert!(ask("localhost", port, trusting(&ca)).await.is_err(), "it wants to know who we are");
    let files = TlsFiles { ca: Some(ca.clone()), client: Some(client) };
    assert_eq!(ask("localhost", port, files).await, Ok(true));
}

/// A server in clear text says nothing to the first words of TLS. It runs, and there.
#[tokio::test]
async fn a_server_that_says_nothing_to_tls_may_have_none() {
    let redis = Server::redis(&[]);
    let error = ask("127.0.0.1", redis.port, TlsFiles::default()).await.unwrap_err().to_string();
    assert!(
        error.contains("no connection with TLS within 500ms") && error.contains("write redis:// if it has no TLS"),
        "{error}"
    );
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let empty = folder.path().join("empty.pem");
    std::fs::write(&empty, "").unwrap();
    for ca in [empty, folder.path().join("nowhere.pem")] {
        let error = Tls::load(TlsFiles { ca: Some(ca.clone()), client: None }).unwrap_err();
        assert!(error.starts_with(&ca.display().to_string()) && error.ends_with("name a PEM file"), "{error}");
    }
}
