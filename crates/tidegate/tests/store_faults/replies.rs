//! Replies that are errors: what each means (F3).

use crate::world::{Case, Counts, MS, World, check, deadline, open};
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;
use tidegate::OnFailure;
use tidegate_testkit::servers;
use tokio::runtime::Builder;

fn config(world: &World, setting: &str, value: &str) {
    let reply = world.server.command(&["CONFIG", "SET", setting, value]);
    assert!(reply.starts_with("+OK"), "{reply}");
}

#[test]
fn f3_memory_is_full() {
    check(Case {
        begin: |world| config(world, "maxmemory", "1"),
        kind: "oom",
        says: "its maxmemory is reached; raise it",
        end: |world| config(world, "maxmemory", "0"),
        ..Case::default()
    });
}

#[test]
fn f3_the_password_is_wrong() {
    check(Case {
        arguments: &["--requirepass", "secret"],
        login: (":wrong@", ""),
        works_first: false,
        kind: "wrongpass",
        says: "user or password is wrong; correct it in [store]",
        end: |world| {
            let reply = world.server.command(&["AUTH", "secret"]);
            assert!(reply.starts_with("+OK"), "{reply}");
            set_password(world, "wrong");
        },
        ..Case::default()
    });
}

#[test]
fn f3_a_password_is_wanted() {
    check(Case {
        arguments: &["--requirepass", "secret"],
        works_first: false,
        kind: "noauth",
        says: "it wants a password; give it in [store]",
        end: |world| set_password(world, ""),
        ..Case::default()
    });
}

/// Over one connection, as the server wants a password of each.
fn set_password(world: &World, password: &str) {
    let mut wire = TcpStream::connect(("127.0.0.1", world.server.port)).unwrap();
    let words = format!("AUTH secret\r\nCONFIG SET requirepass \"{password}\"\r\n");
    wire.write_all(words.as_bytes()).unwrap();
    expect(&mut wire, "+OK\r\n+OK\r\n");
}

fn expect(wire: &mut TcpStream, reply: &str) {
    wire.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let mut bytes = vec![0; reply.len()];
    wire.read_exact(&mut bytes).unwrap();
    assert_eq!(String::from_utf8_lossy(&bytes), reply);
}

/// The user may look at keys, and not run scripts.
#[test]
fn f3_the_user_may_not_run_scripts() {
    check(Case {
        arguments: &["--user", "app", "on", ">pw", "~tg:*", "+get"],
        login: ("app:pw@", ""),
        works_first: false,
        kind: "noperm",
        says: "the user lacks a permission; allow it",
        end: |world| allow_app(world, &["+@all"]),
        ..Case::default()
    });
}

/// The user may run scripts, and nothing in them.
#[test]
fn f3_the_user_may_not_write_in_scripts() {
    check(Case {
        arguments: &["--user", "app", "on", ">pw", "~tg:*", "+get", "+eval", "+evalsha", "+time"],
        login: ("app:pw@", ""),
        works_first: false,
        kind: "noperm",
        says: "the user lacks a permission; allow it",
        end: |world| allow_app(world, &["+@all"]),
        ..Case::default()
    });
}

/// The user's keys are others than ours.
#[test]
fn f3_the_user_has_other_keys() {
    check(Case {
        arguments: &["--user", "app", "on", ">pw", "~other:*", "+@all"],
        login: ("app:pw@", ""),
        works_first: false,
        kind: "noperm",
        says: "the user lacks a permission; allow it",
        end: |world| allow_app(world, &["~tg:*"]),
        ..Case::default()
    });
}

/// What the message tells people to allow is enough.
#[test]
fn f3_the_permissions_that_are_told_of_are_enough() {
    check(Case {
        arguments: &["--user", "app", "on", ">pw", "+get"],
        login: ("app:pw@", ""),
        works_first: false,
        kind: "noperm",
        says: "+select +eval +evalsha +time +@read +@write on the keys tg:*",
        end: |world| allow_app(world, &["+select", "+eval", "+evalsha", "+time", "+@read", "+@write", "~tg:*"]),
        ..Case::default()
    });
}

fn allow_app(world: &World, rules: &[&str]) {
    let reply = world.server.command(&[&["ACL", "SETUSER", "app"], rules].concat());
    assert!(reply.starts_with("+OK"), "{reply}");
}

/// On another database than 0 the recipe lacked `+select`.
#[test]
fn f3_the_permissions_that_are_told_of_are_enough_on_database_1() {
    check(Case {
        arguments: &["--user", "app", "on", ">pw", "+get"],
        login: ("app:pw@", "/1"),
        works_first: false,
        kind: "noperm",
        says: "+select +eval +evalsha +time +@read +@write on the keys tg:*",
        end: |world| allow_app(world, &["+select", "+eval", "+evalsha", "+time", "+@read", "+@write", "~tg:*"]),
        ..Case::default()
    });
}

/// Another program's data at a key of ours: people are told which key it is.
#[test]
fn f3_a_key_of_another_type_is_named() {
    check(Case {
        begin: |world| {
            let script = "local key = redis.call('KEYS', 'tg:*:s:k')[1] redis.call('DEL', key) \
                          return redis.call('RPUSH', key, 'a list')";
            assert!(world.server.command(&["EVAL", script, "0"]).starts_with(":1"));
        },
        kind: "wrongtype",
        says: ", at the key \"tg:{api/",
        end: |world| drop(world.server.command(&["FLUSHALL"])),
        counts: Counts::AreLost,
        ..Case::default()
    });
}

#[test]
fn f3_it_is_a_replica() {
    check(Case {
        begin: |world| replicate(world),
        kind: "readonly",
        says: "it is a replica; point [store] url to the master",
        end: |world| drop(world.server.command(&["REPLICAOF", "NO", "ONE"])),
        ..Case::default()
    });
}

#[test]
fn f3_a_replica_lost_its_master() {
    check(Case {
        begin: |world| {
            config(world, "replica-serve-stale-data", "no");
            replicate(world);
        },
        kind: "masterdown",
        says: "it is a replica that lost its master",
        end: |world| drop(world.server.command(&["REPLICAOF", "NO", "ONE"])),
        ..Case::default()
    });
}

/// Of a server that is not there.
fn replicate(world: &World) {
    world.server.command(&["REPLICAOF", "127.0.0.1", &servers::free_port().to_string()]);
}

#[test]
fn f3_too_few_replicas() {
    check(Case {
        begin: |world| config(world, "min-replicas-to-write", "1"),
        kind: "noreplicas",
        says: "too few of its replicas are connected",
        end: |world| config(world, "min-replicas-to-write", "0"),
        ..Case::default()
    });
}

#[test]
fn f3_it_cannot_save() {
    check(Case {
        begin: |world| {
            std::fs::create_dir(world.server.directory().join("dump.rdb")).unwrap();
            config(world, "save", "3600 1000000");
            world.server.command(&["BGSAVE"]);
        },
        kind: "misconf",
        says: "it cannot save to its disk",
        end: |world| config(world, "save", ""),
        ..Case::default()
    });
}

#[test]
fn f3_a_script_of_another_runs_for_too_long() {
    check(Case {
        arguments: &["--busy-reply-threshold", "5"],
        begin: |world| {
            let mut wire = TcpStream::connect(("127.0.0.1", world.server.port)).unwrap();
            wire.write_all(b"EVAL \"while true do end\" 0\r\n").unwrap();
            world.held = Some(wire);
        },
        kind: "busy",
        says: "a script of another client runs for too long; end it with SCRIPT KILL",
        end: |world| drop(world.server.command(&["SCRIPT", "KILL"])),
        ..Case::default()
    });
}

#[test]
fn f3_it_takes_no_more_clients() {
    check(Case {
        begin: |world| {
            let mut wire = TcpStream::connect(("127.0.0.1", world.server.port)).unwrap();
            wire.write_all(b"CONFIG SET maxclients 1\r\nCLIENT KILL TYPE normal SKIPME yes\r\n").unwrap();
            expect(&mut wire, "+OK\r\n:");
            world.held = Some(wire);
        },
        kind: "maxclients",
        says: "its maxclients is reached; raise it",
        end: |world| drop(world.held.take()),
        ..Case::default()
    });
}

#[test]
fn f3_it_has_no_such_database() {
    check(Case {
        login: ("", "/99"),
        works_first: false,
        kind: "nodatabase",
        says: "it does not have this database; choose a lower number",
        end: |world| {
            world.server.kill();
            world.server.start_again(&["--databases", "100"]);
        },
        ..Case::default()
    });
}

#[test]
fn f3_it_is_a_node_of_a_cluster_that_is_down() {
    check(Case {
        arguments: &["--cluster-enabled", "yes"],
        works_first: false,
        kind: "clusterdown",
        says: "a part of the cluster has no node",
        end: |world| {
            world.server.command(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
            // It takes its time to see that all slots are there.
            let up = || world.server.command(&["CLUSTER", "INFO"]).contains("cluster_state:ok");
            while !up() {
                std::thread::sleep(5 * MS);
            }
        },
        ..Case::default()
    });
}

#[test]
fn f3_it_is_loading_after_a_restart() {
    check(Case {
        arguments: &["--enable-debug-command", "yes"],
        begin: |world| {
            world.server.command(&["DEBUG", "POPULATE", "20000"]);
            assert!(world.server.command(&["SAVE"]).starts_with("+OK"));
            world.server.kill();
            let slowly = ["--key-load-delay", "100", "--loading-process-events-interval-bytes", "1024"];
            world.server.start_again(&slowly);
        },
        kind: "loading",
        says: "it is loading its data; wait until it has",
        end: |world| {
            while world.server.command(&["PING"]).starts_with("-LOADING") {
                std::thread::sleep(5 * MS);
            }
        },
        ..Case::default()
    });
}

#[test]
fn it_is_no_redis() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let gate = runtime.block_on(open("", port, "", OnFailure::Deny, deadline()));
    let health = gate.store_health().unwrap();
    let error = health.error.unwrap();
    assert_eq!(error.label(), "garbled");
    assert!(error.to_string().contains("is it the server that [store] means?"), "{error}");
    assert_eq!(health.errors, [("garbled", 1)]);
}

/// Scripts that are gone are sent whole, at once and without a trace.
#[test]
fn f3_scripts_are_flushed_all_the_time() {
    let mut world = World::new(&Case::default(), 5_000 * MS);
    for _ in 0..50 {
        world.server.command(&["SCRIPT", "FLUSH"]);
        assert!(world.hit());
    }
    assert_eq!((world.admitted, world.used()), (50, 50));
    assert_eq!((world.health().errors, world.health().degraded), (Vec::new(), 0));
}
