//! The applications of `examples/` run, each as its first lines say, with ports of their own.

use crate::server::{Folder, Server, eventually};
use crate::{Tools, repository, run};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use tidegate_testkit::servers::free_port;

/// An application, ended with the test.
struct App {
    child: Child,
    url: String,
}

impl App {
    /// Starts it and waits for its port.
    #[track_caller]
    fn start(command: &mut Command, port: u16) -> App {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        eventually(&format!("{command:?} listens"), || {
            assert_eq!(child.try_wait().unwrap(), None, "{command:?} ended");
            TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
        App { child, url: format!("http://127.0.0.1:{port}") }
    }

    /// What curl gets: the status, and the head and the body in lower case.
    fn get(&self, path: &str, arguments: &[&str]) -> (u16, String) {
        let mut curl = Command::new("curl");
        curl.args(["-is", "--max-time", "20"]).args(arguments).arg(format!("{}{path}", self.url));
        let answer = run(&mut curl).to_lowercase();
        (answer.split(' ').nth(1).unwrap().parse().unwrap(), answer)
    }
}

impl Drop for App {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The server that every example asks: one without a file, whose limiter `api` lets five a minute pass.
fn server(folder: &Folder) -> Server {
    Server::start_with(folder, None, &[("TIDEGATE_DOORS__RESP", "127.0.0.1:0")])
}

/// A web application behind its middleware, which also asks by itself at the log-in.
#[track_caller]
fn check(program: &mut Command, port: u16) {
    let folder = Folder::new();
    let server = server(&folder);
    let app = App::start(program.env("TIDEGATE_SERVER", &server.url), port);
    let (status, answer) = app.get("/login", &["-d", "user=ann"]);
    assert!(status == 200 && answer.contains("welcome, ann") && answer.contains("\"login-user\";r=4"), "{answer}");
    for left in (0..4).rev() {
        let (status, answer) = app.get("/", &[]);
        assert!(status == 200 && answer.contains("welcome"), "{answer}");
        assert!(answer.contains("ratelimit-policy: \"api\";q=5;w=60"), "{answer}");
        assert!(answer.contains(&format!("\nx-ratelimit-remaining: {left}")), "{answer}");
    }
    let (status, answer) = app.get("/", &[]);
    assert_eq!(status, 429, "{answer}");
    for part in ["\nretry-after: ", "\nratelimit: \"api\";r=0;t=", "application/problem+json", "#quota-exceeded"] {
        assert!(answer.contains(part), "{part}: {answer}");
    }
    let (status, answer) = app.get("/health", &[]);
    assert!(status == 200 && !answer.contains("ratelimit"), "{answer}");
    server.kill();
    assert_eq!(app.get("/", &[]).0, 200, "without a server it fails open");
}

#[test]
fn example_fastapi() {
    let port = free_port();
    let mut uvicorn = Tools::installed().python("uvicorn");
    uvicorn.args(["app:app", "--host", "127.0.0.1", "--port", &port.to_string()]);
    uvicorn.current_dir(repository("examples/fastapi")).env("PYTHONDONTWRITEBYTECODE", "1");
    uvicorn.env("PYTHONPATH", repository("clients/python/src"));
    check(&mut uvicorn, port);
}

/// Visitors have no address there, and the example failed on it.
#[test]
fn example_fastapi_over_a_unix_socket() {
    let folder = Folder::new();
    let server = server(&folder);
    let socket = folder.path("app.sock");
    let mut uvicorn = Tools::installed().python("uvicorn");
    uvicorn.args(["app:app", "--uds"]).arg(&socket).env("TIDEGATE_SERVER", &server.url);
    uvicorn.current_dir(repository("examples/fastapi")).env("PYTHONDONTWRITEBYTECODE", "1");
    uvicorn.env("PYTHONPATH", repository("clients/python/src")).stdout(Stdio::null()).stderr(Stdio::null());
    let app = App { child: uvicorn.spawn().unwrap(), url: "http://localhost".to_owned() };
    eventually("uvicorn listens", || UnixStream::connect(&socket).is_ok());
    let over = ["--unix-socket", socket.to_str().unwrap()];
    assert_eq!(app.get("/", &over).0, 200);
    assert_eq!(app.get("/login", &[over[0], over[1], "-d", "user=ann"]).0, 200);
}

/// In a copy beside a copy of the client: `npm install` writes into its folder.
#[test]
fn example_express() {
    let (port, folder) = (free_port(), Folder::new());
    let copy = |what: &str, to: &str| {
        std::fs::create_dir_all(folder.path(to).parent().unwrap()).unwrap();
        run(Command::new("cp").arg("-r").arg(repository(what)).arg(folder.path(to)));
    };
    copy("examples/express", "examples/express");
    copy("clients/js", "clients/js");
    let install = ["install", "--silent", "--no-audit", "--no-fund"];
    run(Command::new("npm").args(install).current_dir(folder.path("examples/express")));
    let mut node = Command::new("node");
    node.arg("app.js").current_dir(folder.path("examples/express")).env("PORT", port.to_string());
    check(&mut node, port);
}

#[test]
fn example_rack() {
    let port = free_port();
    let mut rackup = Command::new("rackup");
    rackup.args(["-I", "../../clients/ruby/lib", "--host", "127.0.0.1", "--port", &port.to_string()]);
    check(rackup.current_dir(repository("examples/rack")), port);
}

#[test]
fn example_redis_py() {
    let folder = Folder::new();
    let server = server(&folder);
    let mut python = Tools::installed().python("python");
    python.arg(repository("examples/redis-py/app.py")).env("TIDEGATE_REDIS", format!("redis://{}", server.resp()));
    let told = "a limiter of the policy: [True, True, True, True, True, False]\n\
                a limit of the call: 15 of 16 left, full again in 2 s\n\
                many at once: [4, 4, 3]\n";
    assert_eq!(run(&mut python), told);
}

/// The configuration as it is, with a free port for each that it names.
#[test]
fn example_nginx() {
    let (port, folder) = (free_port(), Folder::new());
    let server = server(&folder);
    let text = std::fs::read_to_string(repository("examples/nginx/nginx.conf")).unwrap();
    let tidegate = server.url.strip_prefix("http://").unwrap();
    let text = text.replace("127.0.0.1:7400", tidegate).replace("127.0.0.1:8000", &format!("127.0.0.1:{port}"));
    folder.write("nginx.conf", &format!("master_process off;\n{text}"));
    let mut nginx = Command::new("nginx");
    nginx.args(["-e", "stderr", "-p"]).arg(folder.path("")).args(["-c", "nginx.conf"]);
    let app = App::start(&mut nginx, port);
    let log_in = || app.get("/login", &["-u", "ann:secret"]);
    for left in (0..5).rev() {
        let (status, answer) = log_in();
        assert!(status == 200 && answer.contains("welcome"), "{answer}");
        assert!(answer.contains(&format!("\nratelimit: \"login-user\";r={left};t=")), "{answer}");
    }
    let (status, answer) = log_in();
    assert!(status == 429 && answer.contains("\nretry-after: ") && answer.contains(";r=0;"), "{answer}");
    assert_eq!(app.get("/login", &["-u", "bob:secret"]).0, 200);
    server.kill();
    assert_eq!(log_in().0, 200, "without a server it fails open");
}
