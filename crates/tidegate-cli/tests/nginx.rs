//! A real nginx asks `/v1/allowed` through `auth_request`, as docs/guide/nginx.md says.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

mod server;

use server::{Folder, Server, WAIT_TIME_MAX};
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

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

#[test]
fn auth_request_lets_through_what_is_allowed_and_turns_away_the_rest() {
    let folder = Folder::new();
    let server = Server::start(&folder, Some(&folder.write("policy.toml", POLICY)));
    let nginx = Nginx::start(&folder, &server.url);
    let statuses = |user, address, times| (0..times).map(|_| nginx.get(user, address)).collect::<Vec<u16>>();
    assert_eq!(statuses("ann", "192.0.2.1", 3), [200, 200, 403]);
    assert_eq!(statuses("bob", "192.0.2.1", 2), [200, 403], "the address has one left");
    assert_eq!(statuses("", "192.0.2.2", 4), [200, 200, 200, 403], "not logged in: by address only");
    assert_eq!(statuses("", "", 1), [500], "nothing to go by is a mistake, and nobody gets in by it");
}

/// One process, a socket file for a port, ended with the test.
struct Nginx {
    child: Child,
    socket: std::path::PathBuf,
}

impl Nginx {
    fn start(folder: &Folder, tidegate: &str) -> Nginx {
        let socket = folder.path("nginx.sock");
        folder.write("page", "welcome\n");
        let config = folder.write("nginx.conf", &config(&folder.path(""), &socket, tidegate));
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

    /// Stands in for a client whose name and address nginx knows.
    fn get(&self, user: &str, address: &str) -> u16 {
        let mut wire = UnixStream::connect(&self.socket).unwrap();
        write!(wire, "GET /page HTTP/1.0\r\nX-User: {user}\r\nX-Address: {address}\r\n\r\n").unwrap();
        let mut answer = String::new();
        wire.read_to_string(&mut answer).unwrap();
        answer[9..12].parse().unwrap()
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn config(root: &Path, socket: &Path, tidegate: &str) -> String {
    let (root, socket) = (root.display(), socket.display());
    format!(
        "daemon off; master_process off; pid {root}/nginx.pid;
events {{}}
http {{
    access_log off;
    client_body_temp_path {root}/a; proxy_temp_path {root}/b; fastcgi_temp_path {root}/c;
    uwsgi_temp_path {root}/d; scgi_temp_path {root}/e;
    server {{
        listen unix:{socket};
        root {root};
        location / {{ auth_request /limit; }}
        location = /limit {{
            internal;
            proxy_pass {tidegate}/v1/allowed?domain=login&user=$http_x_user&ip=$http_x_address&deny_status=403;
            proxy_pass_request_body off;
            proxy_set_header Content-Length \"\";
        }}
    }}
}}
"
    )
}
