//! A real nginx asks `/v1/allowed` through `auth_request`, with the lines that docs/guide/nginx.md prints.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

mod server;

use server::{Folder, Server, WAIT_TIME_MAX};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

const GUIDE: &str = include_str!("../../../docs/guide/nginx.md");

const POLICY: &str = r#"
[doors]
http = "127.0.0.1:0"

[[limiter]]
name = "login-user"
domain = "login"
by = ["user"]
limits = ["2 per day"]

[[limiter]]
name = "login-ip"
domain = "login"
by = ["ip"]
limits = ["3 per day"]
"#;

/// Names that a query would be ended or added to by.
const NAMES: [&str; 8] = ["r1#", "r1&ip=9.9.9.9", "r1 x", "r1\"", "r1'", "r1%23", "r1+?/", "r1\u{e9}"];
/// Names that would end a line.
const BROKEN_NAMES: [&str; 4] =
    ["r1\r\n\r\n", "r1 HTTP/1.0\r\n\r\n", "r1&ip=9.9.9.9 HTTP/1.0\r\n\r\n", "r1\nX-Limit-User"];

#[test]
fn auth_request_lets_through_what_is_allowed_and_turns_away_the_rest() {
    let world = World::start(&recipe());
    assert_eq!(world.statuses("ann", "192.0.2.1", 3), [200, 200, 429]);
    assert_eq!(world.statuses("bob", "192.0.2.1", 2), [200, 429], "the address has one left");
    assert_eq!(world.statuses("", "192.0.2.2", 4), [200, 200, 200, 429], "not logged in: by address only");
}

/// `curl -u 'r1#:x'` was never limited by address: the name cut the address out of the request.
#[test]
fn s2_names_with_any_characters_count_by_user_and_by_address() {
    let world = World::start(&recipe());
    for (number, name) in NAMES.into_iter().enumerate() {
        let addresses = (0..3).map(|host| format!("198.51.{number}.{host}"));
        let statuses: Vec<u16> = addresses.map(|address| world.get(name, &address)).collect();
        assert_eq!(statuses, [200, 200, 429], "{name:?} is a user of its own: twice from anywhere");
    }
    for (number, names) in NAMES.chunks(4).enumerate() {
        let statuses: Vec<u16> =
            names.iter().map(|name| world.get(&format!("new {name}"), &format!("203.0.113.{number}"))).collect();
        assert_eq!(statuses, [200, 200, 200, 429], "{names:?} at one address");
    }
    for name in BROKEN_NAMES {
        let address = "203.0.113.9";
        let allowed = world.statuses(name, address, 6).into_iter().filter(|status| *status == 200).count();
        assert!(allowed <= 3, "{name:?} got in {allowed} times from one address");
    }
}

/// The recipe that the guide had before: whoever still has it answers such a name with 500, and lets nobody in.
#[test]
fn s2_a_name_in_the_query_lets_nobody_past_the_address() {
    let world = World::start(
        "location /login { auth_request /limit; root ROOT; }
         location = /limit {
             internal;
             proxy_pass http://127.0.0.1:7400/v1/allowed?domain=login&user=$remote_user&ip=$remote_addr&deny_status=403;
             proxy_pass_request_body off;
             proxy_set_header Content-Length \"\";
         }",
    );
    for name in ["r1#", "r1 x", "r1&ip=9.9.9.9", "r1&ip=9.9.9.9 HTTP/1.0\r\n\r\n", "r1 HTTP/1.0\r\n\r\n"] {
        assert_eq!(world.statuses(name, "192.0.2.1", 2), [500, 500], "{name:?}");
    }
    assert_eq!(world.statuses("r1", "192.0.2.1", 3), [200, 200, 403], "nothing was charged");
}

/// The guide's lines, with a file in the place of the application.
fn recipe() -> String {
    let lines = GUIDE.split("```nginx\n").nth(1).unwrap().split("```").next().unwrap();
    assert!(lines.contains("proxy_pass http://app;"));
    lines.replace("proxy_pass http://app;", "root ROOT;")
}

/// A Tidegate and an nginx that asks it.
struct World {
    _folder: Folder,
    _server: Server,
    nginx: Nginx,
}

impl World {
    fn start(locations: &str) -> World {
        let folder = Folder::new();
        let server = Server::start(&folder, Some(&folder.write("policy.toml", POLICY)));
        let nginx = Nginx::start(&folder, &locations.replace("http://127.0.0.1:7400", &server.url));
        World { _folder: folder, _server: server, nginx }
    }

    fn get(&self, user: &str, address: &str) -> u16 {
        self.nginx.get(user, address)
    }

    fn statuses(&self, user: &str, address: &str, times: usize) -> Vec<u16> {
        (0..times).map(|_| self.get(user, address)).collect()
    }
}

/// One process, a socket file for a port, ended with the test.
struct Nginx {
    child: Child,
    socket: std::path::PathBuf,
}

impl Nginx {
    fn start(folder: &Folder, locations: &str) -> Nginx {
        let socket = folder.path("nginx.sock");
        folder.write("login", "welcome\n");
        let root = folder.path("").display().to_string();
        let locations = locations.replace("ROOT", &root);
        let config = folder.write("nginx.conf", &config(&root, &socket.display().to_string(), &locations));
        let child = Command::new("nginx")
            .args(["-e", "stderr", "-c"])
            .arg(config)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("nginx is installed by scripts/test");
        let started = Instant::now();
        while UnixStream::connect(&socket).is_err() {
            assert!(started.elapsed() < WAIT_TIME_MAX, "nginx did not start");
            std::thread::yield_now();
        }
        Nginx { child, socket }
    }

    /// Logs in with `curl -u USER:x`, from an address that nginx believes.
    fn get(&self, user: &str, address: &str) -> u16 {
        let mut curl = Command::new("curl");
        curl.args(["-s", "-o", "/dev/null", "-w", "%{http_code}", "http://app/login", "--unix-socket"])
            .arg(&self.socket);
        curl.args(["-H", &format!("X-Address: {address}")]);
        if !user.is_empty() {
            curl.args(["-u", &format!("{user}:x")]);
        }
        let told = curl.output().expect("curl is installed by scripts/test");
        String::from_utf8_lossy(&told.stdout).parse().unwrap()
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn config(root: &str, socket: &str, locations: &str) -> String {
    format!(
        "daemon off; master_process off; pid {root}/nginx.pid;
events {{}}
http {{
    access_log off;
    client_body_temp_path {root}/a; proxy_temp_path {root}/b; fastcgi_temp_path {root}/c;
    uwsgi_temp_path {root}/d; scgi_temp_path {root}/e;
    set_real_ip_from unix:; real_ip_header X-Address;
    server {{
        listen unix:{socket};
        {locations}
    }}
}}
"
    )
}
