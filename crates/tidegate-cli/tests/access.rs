//! Tokens from the command line: made, listed, revoked, shown to a server, and a start that is refused without them.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

mod server;

use server::{Folder, Server, TIDEGATE, eventually, stderr, stdout, tidegate};
use std::fs;
use std::net::UdpSocket;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

const POLICY: &str = "[[limiter]]\nname = \"api\"\nlimits = [\"5 per hour\"]\n[[limiter]]\nname = \"mail\"\nlimits = [\"5 per hour\"]\n\
                      [[stream]]\nname = \"orders\"\nmode = \"only-once\"\nduration = \"1h\"\n";

/// `tidegate token …`, with the file.
fn token(file: &Path, args: &[&str]) -> Output {
    Command::new(TIDEGATE).arg("token").args(args).arg("--file").arg(file).output().unwrap()
}

/// Makes a token, and keeps it in a file of its own.
#[track_caller]
fn new(folder: &Folder, name: &str, args: &[&str]) -> String {
    let made = token(&folder.path("tokens.toml"), &[&["new", "--name", name], args].concat());
    assert!(made.status.success(), "{}", stderr(&made));
    folder.write(&format!("{name}.token"), &stdout(&made));
    stdout(&made).trim_end().to_owned()
}

fn mode(file: &Path) -> u32 {
    fs::metadata(file).unwrap().permissions().mode() & 0o777
}

#[test]
fn a_token_is_shown_once_and_only_its_hash_is_kept() {
    let folder = Folder::new();
    let file = folder.path("tokens.toml");
    let made =
        token(&file, &["new", "--name", "nginx", "--scope", "check,read", "--limiter", "login-*", "--expires", "90d"]);
    assert!(made.status.success());
    let text = stdout(&made);
    assert!(text.starts_with("tg_") && text.len() == 47 && text.lines().count() == 1, "the token alone");
    let kept = fs::read_to_string(&file).unwrap();
    assert!(
        !kept.contains(text.trim()) && kept.contains("sha256 = \"") && kept.contains("limiters = [\"login-*\"]"),
        "{kept}"
    );
    assert_eq!(mode(&file), 0o600);
    // By hand: what stands there stays.
    fs::write(
        &file,
        format!("{kept}\n# mesh\n[[certificate]]\nname = \"orders\"\nsan = \"x\"\nscopes = [\"publish\"]\n"),
    )
    .unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    let other = token(&file, &["new", "--name", "ops", "--scope", "operate", "--scope", "read", "--stream", "a\"b\\"]);
    assert!(other.status.success(), "{}", stderr(&other));
    assert_ne!(stdout(&other), text);
    assert_eq!(mode(&file), 0o600, "narrowed again");
    let listed = stdout(&token(&file, &["list"]));
    for part in ["nginx", "check, read for limiters login-*", "ops", "read, operate for streams a\"b\\", "orders", "Z"]
    {
        assert!(listed.contains(part), "{part} in {listed}");
    }
    assert!(!listed.contains("tg_"));
    let revoked = token(&file, &["revoke", "nginx"]);
    assert!(revoked.status.success(), "{}", stderr(&revoked));
    let kept = fs::read_to_string(&file).unwrap();
    assert!(!kept.contains("nginx") && kept.contains("# mesh") && kept.contains("ops"), "{kept}");
    for (args, part) in [
        (&["revoke", "nginx"][..], "has no token \"nginx\"; there are: ops"),
        (&["new", "--name", "ops", "--scope", "read"], "has \"ops\" already"),
        (&["new", "--name", "a b", "--scope", "read"], "is no name"),
        (&["new", "--name", "x", "--scope", "admin"], "is no scope; use some of check, read"),
        (&["new", "--name", "x", "--scope", "read", "--expires", "0s"], "expired already"),
        (&["new", "--name", "x"], "--scope"),
    ] {
        let refused = token(&file, args);
        assert_eq!(refused.status.code(), Some(2), "{args:?}");
        assert!(stderr(&refused).contains(part), "{args:?}: {}", stderr(&refused));
        assert!(stdout(&refused).is_empty(), "{args:?}");
        assert_eq!(fs::read_to_string(&file).unwrap(), kept, "{args:?}");
    }
}

#[test]
fn a_tokens_file_is_replaced_whole_and_no_link_is_followed() {
    let folder = Folder::new();
    let (file, link, other) = (folder.path("tokens.toml"), folder.path("link.toml"), folder.write("other", "mine"));
    symlink(&other, &link).unwrap();
    let refused = token(&link, &["new", "--name", "a", "--scope", "read"]);
    assert!(stderr(&refused).contains("is a symbolic link"), "{}", stderr(&refused));
    // What somebody put in the way of the file that is written beside.
    symlink(&other, folder.path(".tokens.toml.new")).unwrap();
    new(&folder, "a", &["--scope", "read"]);
    assert_eq!(fs::read_to_string(&other).unwrap(), "mine");
    assert!(!folder.path(".tokens.toml.new").exists());
    assert!(
        stderr(&token(&folder.path("none/tokens.toml"), &["new", "--name", "a", "--scope", "read"]))
            .contains("cannot be written")
    );
    assert!(
        stderr(&token(&folder.path("none.toml"), &["list"])).contains("is not there; make it with tidegate token new")
    );
    // Many at once: none is lost.
    let makers: Vec<_> = (0..8)
        .map(|n| {
            Command::new(TIDEGATE)
                .args(["token", "new", "--scope", "read", "--name", &format!("n{n}"), "--file"])
                .arg(&file)
                .spawn()
                .unwrap()
        })
        .collect();
    makers.into_iter().for_each(|mut maker| assert!(maker.wait().unwrap().success()));
    assert_eq!(stdout(&token(&file, &["list"])).lines().count(), 10);
}

/// Runs a client command with the token that this file has.
fn ask(server: &Server, folder: &Folder, who: &str, args: &[&str]) -> (i32, String) {
    let file = folder.path(&format!("{who}.token"));
    let output = server.ask(&[args, &["--token-file", file.to_str().unwrap()]].concat());
    (output.status.code().unwrap(), stdout(&output) + &stderr(&output))
}

#[test]
fn s5_a_server_with_tokens_asks_for_one_on_loopback_too_and_notices_changes() {
    let folder = Folder::new();
    let checks = new(&folder, "checks", &["--scope", "check", "--limiter", "api"]);
    new(&folder, "ops", &["--scope", "read,operate,publish,subscribe"]);
    let config = folder
        .write("t.toml", &format!("[doors]\nhttp = \"127.0.0.1:0\"\n[access]\ntokens = \"tokens.toml\"\n{POLICY}"));
    let server = Server::start(&folder, Some(&config));
    let nobody = server.ask(&["hit", "api", "u1"]);
    assert_eq!(nobody.status.code(), Some(2));
    assert!(stderr(&nobody).contains("--token-file FILE or TIDEGATE_TOKEN"), "{}", stderr(&nobody));
    assert_eq!(ask(&server, &folder, "checks", &["hit", "api", "u1"]).0, 0);
    let (code, said) = ask(&server, &folder, "checks", &["hit", "mail", "u1"]);
    assert!(
        code == 2 && said.contains("token \"checks\" may check for limiters api; limiter \"mail\" is none of them"),
        "{said}"
    );
    let (code, said) = ask(&server, &folder, "checks", &["block", "api", "u1", "--for", "1h"]);
    assert!(code == 2 && said.contains("needs the scope operate"), "{said}");
    assert_eq!(ask(&server, &folder, "ops", &["block", "api", "u9", "--for", "1h"]).0, 0);
    assert_eq!(ask(&server, &folder, "ops", &["submit", "orders", "taco"]).0, 0);
    let by_variable = Command::new(TIDEGATE)
        .args(["hit", "api", "u2", "--server", &server.url])
        .env("TIDEGATE_TOKEN", &checks)
        .status();
    assert_eq!(by_variable.unwrap().code(), Some(0));
    // Made while it runs.
    new(&folder, "late", &["--scope", "read"]);
    eventually("the new token is taken", || ask(&server, &folder, "late", &["limiters"]).0 == 0);
    // A file that is wrong changes nothing.
    let good = fs::read_to_string(folder.path("tokens.toml")).unwrap();
    fs::write(folder.path("tokens.toml"), "[[token]]\nname = \"a\"\n").unwrap();
    server.wait_for_log("is refused, and the tokens stay as they were");
    assert_eq!(ask(&server, &folder, "checks", &["hit", "api", "u1", "--cost", "0"]).0, 0);
    fs::write(folder.path("tokens.toml"), good).unwrap();
    assert!(token(&folder.path("tokens.toml"), &["revoke", "checks"]).status.success());
    eventually("the revoked token is refused", || {
        ask(&server, &folder, "checks", &["hit", "api", "u1", "--cost", "0"]).0 == 2
    });
    assert!(!server.log().contains("tg_"), "no token in the log");
    // The configuration without tokens: loopback is open again.
    fs::write(&config, format!("[doors]\nhttp = \"127.0.0.1:0\"\n{POLICY}")).unwrap();
    eventually("no tokens are asked for", || server.ask(&["peek", "api", "u1"]).status.code() == Some(0));
}

#[test]
fn s5_a_token_expires_while_the_server_runs() {
    let folder = Folder::new();
    new(&folder, "short", &["--scope", "read", "--expires", "3s"]);
    let config = folder
        .write("t.toml", &format!("[doors]\nhttp = \"127.0.0.1:0\"\n[access]\ntokens = \"tokens.toml\"\n{POLICY}"));
    let server = Server::start(&folder, Some(&config));
    eventually("it has expired", || ask(&server, &folder, "short", &["limiters"]).0 == 2);
    assert!(stdout(&token(&folder.path("tokens.toml"), &["list"])).contains("expired"));
}

/// Everything was open to whoever reached `0.0.0.0`, without a word at the start.
#[test]
fn s4_a_start_that_would_expose_a_door_is_refused() {
    let folder = Folder::new();
    for (door, address) in [
        ("http", "0.0.0.0"),
        ("udp", "0.0.0.0"),
        ("grpc", "0.0.0.0"),
        ("resp", "0.0.0.0"),
        ("http", "[::]"),
        ("resp", "[::]"),
    ] {
        let doors = format!("{door} = \"{address}:0\"");
        let config = folder.write("t.toml", &format!("[doors]\n{doors}\n{POLICY}"));
        let config = config.to_str().unwrap();
        let (serve, validate) = (tidegate(&["serve", "--config", config]), tidegate(&["validate", config]));
        assert_eq!((serve.status.code(), validate.status.code()), (Some(2), Some(1)), "{doors}");
        for output in [serve, validate] {
            let said = stderr(&output);
            for part in [
                &format!("[doors] {door}"),
                ":0 can be reached from other machines",
                &format!("TIDEGATE_ACCESS__OPEN='[\"{door}\"]'"),
            ] {
                assert!(said.contains(part), "{said}");
            }
            assert!(!stdout(&output).contains("listening"));
        }
    }
    let bare = Command::new(TIDEGATE).arg("serve").env("TIDEGATE_DOORS__HTTP", "0.0.0.0:0").output().unwrap();
    assert_eq!(bare.status.code(), Some(2));
    // On purpose, it starts, and the log says what is open.
    let variables = [
        ("TIDEGATE_DOORS__HTTP", "0.0.0.0:0"),
        ("TIDEGATE_ACCESS__OPEN", "[\"http\"]"),
        ("TIDEGATE_DOORS__UDP", "127.0.0.1:0"),
    ];
    let server = Server::start_with(&folder, Some(&folder.write("t.toml", POLICY)), &variables);
    server.wait_for_log(
        "is open to whoever reaches it, as [access] open says: check, read, count, publish and subscribe",
    );
}

/// A new file that names another address and no tokens would have opened the door that still listens.
#[test]
fn s4_a_reload_does_not_open_a_door_that_listens_beyond_loopback() {
    let folder = Folder::new();
    new(&folder, "ops", &["--scope", "read"]);
    let config =
        folder.write("t.toml", &format!("[doors]\nhttp = \"0.0.0.0:0\"\n[access]\ntokens = \"tokens.toml\"\n{POLICY}"));
    let server = Server::start(&folder, Some(&config));
    let url = server.url.replace("0.0.0.0", "127.0.0.1");
    let limiters = |args: &[&str]| tidegate(&[&["limiters", "--server", &url], args].concat()).status.code();
    assert_eq!(limiters(&[]), Some(2));
    fs::write(&config, format!("[doors]\nhttp = \"127.0.0.1:0\"\n{POLICY}")).unwrap();
    server.wait_for_log("[access] and [udp] allow stay as they were until the next start");
    assert_eq!(limiters(&[]), Some(2));
    assert_eq!(limiters(&["--token-file", folder.path("ops.token").to_str().unwrap()]), Some(0));
}

/// The log said what is open at the start only: a reload that dropped the tokens and opened the door said "no tokens".
#[test]
fn s4_a_reload_that_opens_a_door_says_what_is_open() {
    let folder = Folder::new();
    new(&folder, "ops", &["--scope", "read"]);
    let text = |access: &str| format!("[doors]\nhttp = \"0.0.0.0:0\"\n[access]\n{access}\n{POLICY}");
    let config = folder.write("t.toml", &text("tokens = \"tokens.toml\""));
    let server = Server::start(&folder, Some(&config));
    assert!(!server.log().contains("is open to whoever reaches it"), "{}", server.log());
    fs::write(&config, text("open = [\"http\"]")).unwrap();
    server.wait_for_log("is open to whoever reaches it, as [access] open says: check, read, count");
    // Once, not with every reload.
    fs::write(&config, text("open = [\"http\"]\nhosts = [\"gate.example\"]")).unwrap();
    eventually("it is reloaded again", || server.log().matches("reloaded ").count() >= 2);
    assert_eq!(server.log().matches("is open to whoever reaches it").count(), 1, "{}", server.log());
}

#[test]
fn s4_udp_answers_the_networks_that_it_allows_and_counts_the_others() {
    let folder = Folder::new();
    let text = |allow: &str| {
        format!(
            "[doors]\nhttp = \"127.0.0.1:0\"\nudp = \"127.0.0.1:0\"\n[udp]\nallow = [{allow}]\n[[udp.route]]\nmatch = 'api'\nlimiter = \"api\"\n{POLICY}"
        )
    };
    let config = folder.write("t.toml", &text("\"127.0.0.2\", \"10.0.0.0/8\""));
    let server = Server::start(&folder, Some(&config));
    let asks = |from: &str| {
        let socket = UdpSocket::bind(format!("{from}:0")).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        socket.send_to(b"7 over_limit api u1", server.udp()).unwrap();
        socket.recv(&mut [0; 100]).is_ok()
    };
    eventually("an allowed address is answered", || asks("127.0.0.2"));
    let used = |server: &Server| server.json(&["peek", "api", "api u1"]).1["remaining"].clone();
    let before = used(&server);
    assert!(!asks("127.0.0.1") && !asks("127.0.0.3"));
    assert_eq!(used(&server), before, "nothing was charged");
    let metrics = Command::new("curl").args(["-s", &format!("{}/metrics", server.url)]).output().unwrap();
    assert!(stdout(&metrics).contains("\ntidegate_udp_refused_total 2\n"), "{}", stdout(&metrics));
    fs::write(&config, text("\"127.0.0.3\"")).unwrap();
    eventually("the networks are reloaded", || asks("127.0.0.3"));
    assert!(!asks("127.0.0.2"));
}

/// curl, and its status.
fn status(url: &str, args: &[&str]) -> String {
    let output =
        Command::new("curl").args(["-s", "-o", "/dev/null", "-w", "%{http_code}", url]).args(args).output().unwrap();
    stdout(&output)
}

#[test]
fn s4_s5_the_proxys_admin_address_asks_for_tokens_too() {
    let folder = Folder::new();
    let read = format!("authorization: Bearer {}", new(&folder, "prometheus", &["--scope", "read"]));
    let narrowed =
        format!("authorization: Bearer {}", new(&folder, "narrowed", &["--scope", "read", "--limiter", "proxy"]));
    let port = tidegate_testkit::servers::free_port();
    let proxy = format!(
        "[doors]\nhttp = \"127.0.0.1:0\"\n[proxy]\nlisten = \"127.0.0.1:0\"\nupstream = \"http://127.0.0.1:9\"\nadmin = \"0.0.0.0:{port}\"\n"
    );
    let refused = folder.write("refused.toml", &proxy);
    assert_eq!(tidegate(&["validate", refused.to_str().unwrap()]).status.code(), Some(1));
    assert_eq!(tidegate(&["proxy", "--config", refused.to_str().unwrap()]).status.code(), Some(2));
    let config = folder.write("t.toml", &format!("[access]\ntokens = \"tokens.toml\"\n{proxy}"));
    let _server = Server::start(&folder, Some(&config));
    let at = |path: &str, args: &[&str]| status(&format!("http://127.0.0.1:{port}{path}"), args);
    eventually("it answers", || at("/livez", &[]) == "200");
    for path in ["/metrics", "/debug/vars"] {
        assert_eq!(
            (at(path, &[]), at(path, &["-H", &read]), at(path, &["-H", &narrowed])),
            ("401".into(), "200".into(), "403".into()),
            "{path}"
        );
    }
    assert_eq!(at("/readyz", &[]), "200");
}

/// A token that only follows one stream, in the JavaScript client.
#[test]
fn s5_the_javascript_client_shows_a_token() {
    let folder = Folder::new();
    let token = new(&folder, "page", &["--scope", "subscribe", "--stream", "orders"]);
    new(&folder, "ops", &["--scope", "publish"]);
    let config = folder
        .write("t.toml", &format!("[doors]\nhttp = \"127.0.0.1:0\"\n[access]\ntokens = \"tokens.toml\"\n{POLICY}"));
    let server = Server::start(&folder, Some(&config));
    let script = folder.write(
        "follow.mjs",
        &format!(
            "import {{ followFeed }} from '{}/../../clients/js/tidegate-events.js';\n\
             const {{ close }} = followFeed(process.argv[2], 'orders', {{ durationMs: 3600000, token: process.argv[3],\n\
             onMessage: ({{ messageType, eventTime }}) => {{ console.log(messageType, eventTime?.event ?? '');\n\
             if (eventTime) {{ close(); process.exit(0); }} }} }});\nsetInterval(() => {{}}, 1000);\n",
            env!("CARGO_MANIFEST_DIR")
        ),
    );
    let log = folder.path("node");
    let mut node = Command::new("node")
        .arg(script)
        .args([&server.url, &token])
        .stdout(fs::File::create(&log).unwrap())
        .spawn()
        .unwrap();
    eventually("the snapshot", || fs::read_to_string(&log).unwrap().contains("KEY_FRAME"));
    assert_eq!(ask(&server, &folder, "ops", &["submit", "orders", "taco"]).0, 0);
    eventually("the event", || fs::read_to_string(&log).unwrap().contains("SUBMITTED_EVENT taco"));
    let mut status = None;
    eventually("node ends", || {
        status = node.try_wait().unwrap();
        status.is_some()
    });
}
