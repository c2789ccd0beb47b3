//! `[tls]` as a user meets it: the file, the start, the client commands, certificates that are replaced, the proxy.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

mod server;

use server::{Folder, Server, TIDEGATE, eventually, stderr, stdout, tidegate};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tidegate_testkit::certificates::rcgen::KeyPair;
use tidegate_testkit::certificates::{Authority, authority, certify, certify_with, date_time_ymd, write_ca};
use tidegate_testkit::number;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

const DOOR: &str = "[doors]\nhttp = \"127.0.0.1:0\"\n[[limiter]]\nname = \"api\"\nlimits = [\"1000000 per minute\"]\n";

/// A folder with an authority `ca.pem`, and a certificate `door.pem` with its key `door.key` for 127.0.0.1.
struct Site {
    folder: Folder,
    authority: Authority,
    ca: PathBuf,
}

impl Site {
    fn new() -> Site {
        let (folder, authority) = (Folder::new(), authority());
        let ca = write_ca(&folder.path(""), "ca.pem", &authority);
        certify(&folder.path(""), "door", &authority, "127.0.0.1", 2099);
        Site { folder, authority, ca }
    }

    fn config(&self, text: &str) -> PathBuf {
        let file = self.folder.path("tidegate.toml");
        std::fs::write(&file, text).unwrap();
        file
    }

    fn start(&self, tls: &str) -> Server {
        Server::start(&self.folder, Some(&self.config(&format!("{DOOR}{tls}"))))
    }

    fn ask(&self, server: &Server, args: &[&str]) -> Output {
        let mut command = Command::new(TIDEGATE);
        command.args(args).args(["--server", &server.url, "--ca"]).arg(&self.ca).output().unwrap()
    }

    /// An HTTP client that trusts the authority, and keeps so many connections.
    fn agent(&self, idle: usize) -> ureq::Agent {
        let roots = RootCerts::new_with_certs(&[Certificate::from_pem(self.authority.pem().as_bytes()).unwrap()]);
        let config = ureq::Agent::config_builder().tls_config(TlsConfig::builder().root_certs(roots).build());
        let config = config.max_idle_connections(idle).timeout_global(Some(Duration::from_secs(20)));
        config.http_status_as_error(false).build().into()
    }

    /// Puts a new certificate in the place of the old, as tools do: each file in one step.
    fn renew(&self, name: &str) {
        let folder = self.folder.path("");
        let (cert, key) = certify(&folder, name, &self.authority, "127.0.0.1", 2099);
        std::fs::rename(key, folder.join("door.key")).unwrap();
        std::fs::rename(cert, folder.join("door.pem")).unwrap();
    }
}

const TLS: &str = "[tls]\ncert = \"door.pem\"\nkey = \"door.key\"\n";

/// What `validate` and `serve` say of a file.
#[track_caller]
fn check_refused(site: &Site, tls: &str, parts: &[&str]) {
    let file = site.config(&format!("{DOOR}{tls}"));
    let file = file.to_str().unwrap();
    for (args, code) in [(&["validate", file][..], 1), (&["serve", "--config", file], 2)] {
        let output = tidegate(args);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {}", stderr(&output));
        for part in parts {
            assert!(stderr(&output).contains(part), "{part:?} is not in {}", stderr(&output));
        }
    }
}

#[test]
fn certificates_that_cannot_be_used_are_refused_where_they_are_named() {
    let site = Site::new();
    let folder = site.folder.path("");
    certify(&folder, "other", &site.authority, "127.0.0.1", 2099);
    certify(&folder, "old", &site.authority, "127.0.0.1", 2024);
    std::fs::write(folder.join("empty.pem"), "").unwrap();
    let pair = |cert: &str, key: &str| format!("[tls]\ncert = \"{cert}\"\nkey = \"{key}\"\n");
    check_refused(&site, &pair("door.pem", "other.key"), &["[tls] key:", "other.key does not belong to", ":8:7", "^"]);
    check_refused(&site, &pair("old.pem", "old.key"), &["[tls] cert:", "expired on 2024-01-01", "renew it", ":7:8"]);
    check_refused(&site, &pair("empty.pem", "door.key"), &["empty.pem is empty"]);
    check_refused(&site, &pair("none.pem", "door.key"), &["none.pem cannot be read: No such file", "check the path"]);
    check_refused(&site, &pair("door.key", "door.pem"), &["are cert and key swapped?"]);
    check_refused(&site, &pair("", "door.key"), &["\"\" is no path"]);
    check_refused(&site, "[tls]\n", &["[tls]: it names no certificate"]);
    check_refused(
        &site,
        "[tls]\ncert = \"door.pem\"\n",
        &["[tls]: a certificate and its key belong together", "add key"],
    );
    check_refused(
        &site,
        "[tls.http]\nclient_ca = \"ca.pem\"\n",
        &["[tls.http]: a certificate and its key", "add cert"],
    );
    check_refused(&site, "[tls]\nhttp = 1\n", &["[tls.http]: this is a number, not a table"]);
    check_refused(&site, &format!("{TLS}crt = \"a\"\n"), &["unknown setting \"crt\"", "did you mean \"cert\""]);
    check_refused(&site, &format!("{TLS}[tls.admin]\nclient_ca = \"door.key\"\n"), &["[tls.admin] client_ca:"]);
}

#[test]
fn commands_ask_over_https_and_say_why_they_cannot() {
    let site = Site::new();
    let server = site.start(TLS);
    assert!(server.url.starts_with("https://"), "{}", server.banner);
    let hit = site.ask(&server, &["hit", "api", "u1"]);
    assert_eq!(hit.status.code(), Some(0), "{}", stderr(&hit));
    assert!(stdout(&site.ask(&server, &["limiters"])).contains("api"));
    let plain = server.url.replace("https://", "http://");
    let local = server.url.replace("127.0.0.1", "localhost");
    let ca = site.ca.to_str().unwrap();
    let cases: [(&[&str], &str); 5] = [
        (&["--server", &server.url], "nobody we trust has signed its certificate; name its authority with --ca FILE"),
        (&["--server", &local, "--ca", ca], "its certificate is made out to another name"),
        (&["--server", &plain, "--ca", ca], "--ca and --cert are for https://"),
        (&["--server", &plain], "this address speaks TLS; ask for https://"),
        (&["--server", &server.url, "--ca", "none.pem"], "--ca none.pem cannot be used"),
    ];
    for (args, expected) in cases {
        let output = tidegate(&[&["hit", "api", "u1"][..], args].concat());
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(stderr(&output).contains(expected), "{args:?}: {}", stderr(&output));
    }
    let cleartext = Server::start(&site.folder, Some(&site.config(DOOR)));
    let url = cleartext.url.replace("http://", "https://");
    let output = tidegate(&["hit", "api", "u1", "--server", &url, "--ca", ca]);
    assert!(stderr(&output).contains("it speaks no TLS; write http://"), "{}", stderr(&output));
}

#[test]
fn commands_show_a_certificate_to_a_server_that_asks_for_one() {
    let site = Site::new();
    let server = site.start(&format!("{TLS}client_ca = \"ca.pem\"\n"));
    let folder = site.folder.path("");
    let (cert, key) = certify(&folder, "ops", &site.authority, "ops", 2099);
    let (strange_cert, strange_key) = certify(&folder, "strange", &authority(), "ops", 2099);
    let ask = |cert: &Path, key: &Path| {
        site.ask(&server, &["hit", "api", "u1", "--cert", cert.to_str().unwrap(), "--key", key.to_str().unwrap()])
    };
    let shown = ask(&cert, &key);
    assert_eq!(shown.status.code(), Some(0), "{}", stderr(&shown));
    let none = site.ask(&server, &["hit", "api", "u1"]);
    assert!(stderr(&none).contains("name one with --cert FILE --key FILE"), "{}", stderr(&none));
    // Pairs that no client can use: the command says so.
    let old = "openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=old -keyout old.key -out old.csr && \
               openssl x509 -req -in old.csr -signkey old.key -out old.pem";
    assert!(Command::new("sh").args(["-c", old]).current_dir(&folder).output().unwrap().status.success());
    let refused = ask(&folder.join("old.pem"), &folder.join("old.key"));
    assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
    assert!(stderr(&refused).contains("it is no certificate of version 3"), "{}", stderr(&refused));
    let refused = ask(&cert, &strange_key);
    assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
    assert!(stderr(&refused).contains("--key is not its key"), "{}", stderr(&refused));
    let strange = ask(&strange_cert, &strange_key);
    assert_eq!(strange.status.code(), Some(2));
    assert!(stderr(&strange).contains("does not trust our certificate"), "{}", stderr(&strange));
}

/// Certificates are swapped while requests come, on connections that stay and on new ones: none fails. The long mode:
/// `TIDEGATE_SWAPS=100 cargo nextest run -p tidegate-cli --test tls swapped`.
#[test]
fn certificates_are_swapped_under_load_and_no_request_fails() {
    let site = Site::new();
    let server = site.start(TLS);
    let (stop, answered) = (AtomicBool::new(false), [AtomicU64::new(0), AtomicU64::new(0)]);
    let url = format!("{}/v1/hit", server.url);
    let load = |kept: usize, agent: ureq::Agent| {
        while !stop.load(Relaxed) {
            let answer = agent.post(&url).send(r#"{"limiter":"api","key":"u1"}"#);
            assert_eq!(answer.unwrap().status(), 200);
            answered[kept].fetch_add(1, Relaxed);
        }
    };
    let swaps = number("TIDEGATE_SWAPS", 8_usize);
    std::thread::scope(|scope| {
        let load = &load;
        let loads = [0, 1, 0, 1].map(|kept| {
            let agent = site.agent(kept);
            scope.spawn(move || load(kept, agent))
        });
        for swap in 1..=swaps {
            let before: Vec<u64> = answered.iter().map(|count| count.load(Relaxed)).collect();
            site.renew(&format!("renewed-{swap}"));
            server.signal("HUP");
            // What is logged after the last reload: until then the next pair must not come.
            eventually("it is in use", || {
                let log = server.log();
                log.matches("reloaded ").count() >= swap
                    && log.rsplit("reloaded ").next().unwrap().contains("is in use")
            });
            eventually("requests are answered on", || {
                loads.iter().any(|load| load.is_finished())
                    || answered.iter().zip(&before).all(|(now, before)| now.load(Relaxed) > before + 2)
            });
        }
        stop.store(true, Relaxed);
        loads.into_iter().for_each(|load| load.join().unwrap());
    });
    println!("{swaps} swaps, answered on new and on kept connections: {answered:?}");
    assert!(!server.log().contains("ERROR"), "{}", server.log());
}

#[test]
fn a_changed_file_is_enough_and_a_pair_that_does_not_fit_is_told_and_not_used() {
    let site = Site::new();
    let server = site.start(TLS);
    site.renew("second");
    server.wait_for_log("certificate of http:");
    // Half a pair, as a tool that died in the middle leaves it.
    let folder = site.folder.path("");
    std::fs::write(folder.join("door.key"), KeyPair::generate().unwrap().serialize_pem()).unwrap();
    server.wait_for_log("does not belong to the first certificate");
    server.wait_for_log("the certificate that was in use stays, until 2099-01-01");
    assert_eq!(site.ask(&server, &["hit", "api", "u1"]).status.code(), Some(0));
    assert_eq!(server.log().matches("does not belong").count(), 1, "it is told once: {}", server.log());
    // It holds up no other change of the file.
    site.config(&format!("{DOOR}{TLS}# another\n"));
    server.wait_for_log("reloaded ");
    let known = server.log().matches("is in use").count();
    site.renew("third");
    eventually("the whole pair is in use", || server.log().matches("is in use").count() > known);
    assert_eq!(site.ask(&server, &["hit", "api", "u1"]).status.code(), Some(0));
}

#[test]
fn the_end_of_a_certificate_is_told_before_it_comes() {
    let site = Site::new();
    let in_a_week = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() + 7 * 86_400;
    let (date, _) = tidegate_wire::calendar::date_and_time(in_a_week);
    let parts: Vec<u16> = date.split('-').map(|part| part.parse().unwrap()).collect();
    certify_with(&site.folder.path(""), "door", &site.authority, "127.0.0.1", |params| {
        let [year, month, day] = parts[..] else { panic!("{date}") };
        params.not_after = date_time_ymd(year.into(), month.try_into().unwrap(), day.try_into().unwrap());
    });
    let server = site.start(TLS);
    server.wait_for_log(&format!("door.pem expires on {date} 00:00:00 UTC, in 6 days; renew it"));
    site.renew("renewed");
    server.wait_for_log("is in use, until 2099-01-01");
    assert_eq!(server.log().matches("expires on").count(), 1, "it is told once: {}", server.log());
}

/// The proxy alone.
struct Proxy {
    child: Child,
    url: String,
    admin: String,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn proxy(config: &Path) -> Proxy {
    let mut command = Command::new(TIDEGATE);
    command.args(["proxy", "--config"]).arg(config).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut line = |start: &str| lines.find_map(|line| line.strip_prefix(start).map(str::to_owned)).unwrap();
    let (url, admin) = (line("listening on "), line("admin on "));
    Proxy { child, url, admin }
}

#[test]
fn the_proxy_and_its_admin_address_have_tls_and_the_upstream_is_told() {
    let site = Site::new();
    // The upstream: answers with what it was told of the client.
    let upstream = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = upstream.local_addr().unwrap();
    std::thread::spawn(move || {
        for tcp in upstream.incoming() {
            let mut tcp = tcp.unwrap();
            let lines = BufReader::new(tcp.try_clone().unwrap()).lines().map(Result::unwrap);
            let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
            let body = head.join("\n");
            let text = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len());
            let _ = std::io::Write::write_all(&mut tcp, text.as_bytes());
        }
    });
    let text =
        format!("[proxy]\nlisten = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\nupstream = \"http://{address}\"\n{TLS}");
    let proxy = proxy(&site.config(&text));
    assert!(proxy.url.starts_with("https://") && proxy.admin.starts_with("https://"));
    let agent = site.agent(1);
    let told = agent.get(format!("{}/a", proxy.url)).call().unwrap().body_mut().read_to_string().unwrap();
    assert!(
        told.contains("forwarded: for=127.0.0.1;proto=https") && told.contains("x-forwarded-proto: https"),
        "{told}"
    );
    let page = agent.get(format!("{}/metrics", proxy.admin)).call().unwrap().body_mut().read_to_string().unwrap();
    for door in ["proxy", "admin"] {
        assert!(
            page.contains(&format!("tidegate_tls_certificate_expiry_seconds{{door=\"{door}\"}} 4070908800")),
            "{page}"
        );
    }
}
