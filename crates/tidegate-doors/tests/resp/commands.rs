//! Our own commands, and what clients say on connecting.

use crate::server::{Server, check, check_on, policy};
use std::sync::Arc;
use tidegate::{Clock, Gate, OnFailure, StoreSettings};
use tidegate_doors::audit::Audit;
use tidegate_doors::resp::RespSettings;
use tidegate_testkit::{eventually, servers};
use tokio::runtime::Runtime;

#[test]
fn hits_and_peeks_tell_five_numbers() {
    check(
        "TG.HIT api k      -> *5 :1 :3 :2 :-1 :60000
         tg.peek api k     -> *5 :1 :3 :2 :-1 :60000
         TG.PEEK api k 3   -> *5 :0 :3 :2 :60000 :60000
         TG.HIT api k 2    -> *5 :1 :3 :0 :-1 :60000
         TG.HIT api k      -> *5 :0 :3 :0 :60000 :60000
         TG.HIT api k 0    -> *5 :1 :3 :0 :-1 :60000
         TG.HIT api k 4    -> *5 :0 :3 :0 :-1 :60000
         TG.HIT burst k 40 -> *5 :1 :40 :0 :-1 :120000
         TG.HIT burst k    -> *5 :0 :40 :0 :3000 :120000
         TG.PEEK burst j   -> *5 :1 :40 :40 :-1 :0",
    );
}

#[test]
fn a5_attributes_are_checked_by_every_limiter_that_matches_all_or_nothing() {
    check(
        "TG.ATTR login 1 user u ip 192.0.2.1 -> *6 :1 :2 :1 :-1 :60000 $10 login-user
         TG.ATTR login 1 user u              -> *6 :1 :2 :0 :-1 :60000 $10 login-user
         TG.ATTR login 1 user u ip 192.0.2.1 -> *6 :0 :2 :0 :60000 :60000 $10 login-user
         TG.ATTR login 1 user v ip 192.0.2.1 -> *6 :1 :2 :1 :-1 :60000 $10 login-user
         TG.ATTR login 2 ip 192.0.2.1        -> *6 :0 :3 :1 :60000 :60000 $8 login-ip
         TG.ATTR '' 1 ip 192.0.2.9           -> *6 :1 :4 :3 :-1 :60000 $8 anywhere
         TG.ATTR other 1 user u              -> *6 :1 :-1 :-1 :-1 :0 $-1
         TG.ATTR login 1 user                -> -ERR wrong number of arguments for 'tg.attr' command
         TG.ATTR login 1 user u ip           -> -ERR attributes are names with their values; the last name has none
         TG.ATTR login 1 user u user v       -> -ERR the attribute 'user' is there twice; send it once
         TG.ATTR login x user u              -> -ERR the cost 'x' is no whole number from 0 to 4294967295",
    );
}

/// An address counts as its network, however it is asked for.
#[test]
fn an_address_is_its_network() {
    check(
        "TG.ATTR '' 1 ip 2001:db8::1    -> *6 :1 :4 :3 :-1 :60000 $8 anywhere
         TG.HIT anywhere 2001:db8::2    -> *5 :1 :4 :2 :-1 :60000
         TG.PEEK anywhere 2001:db8:0::3 -> *5 :1 :4 :2 :-1 :60000
         TG.HIT api 2001:db8::2         -> *5 :1 :3 :2 :-1 :60000",
    );
}

#[test]
fn blocks_counts_and_figures() {
    let server = Server::start();
    check_on(
        &server,
        "TG.BLOCK api k 5000     -> +OK
         TG.HIT api k            -> *5 :0 :3 :0 :5000 :5000
         TG.UNBLOCK api k        -> :1
         TG.UNBLOCK api k        -> :0
         TG.HIT api k            -> *5 :1 :3 :2 :-1 :60000
         TG.BLOCK api k 0        -> -ERR '0' is no time in whole milliseconds from 1 to 31622400000
         TG.INCREMENT notify n   -> +OK
         TG.ANALYZE notify n     -> +ok
         TG.INCREMENT notify n 1 -> +OK
         TG.ANALYZE notify n     -> +limited
         TG.ANALYZE notify n     -> +blocked
         TG.INCREMENT api n      -> -ERR increment needs algorithm = \"buckets\"…
         TG.HIT nobody k         -> -ERR no limiter is named \"nobody\"; there are: api, burst, notify…
         TG.STATS nobody         -> -ERR no limiter is named \"nobody\"…
         TG.STATS api            -> *18 $8 limiters :1 $7 enabled :1 $7 allowed :1 $6 denied :1 $6 peeked :0…",
    );
    let mut client = server.connect();
    client.ask("HELLO 3");
    assert!(client.ask("TG.STATS").starts_with("%9 $8 limiters :7 $7 enabled :7 $7 allowed :1"));
    server.gate.at_once(server.gate.set_enabled("api", false)).unwrap();
    server.gate.at_once(server.gate.set_enabled("cl.throttle", false)).unwrap();
    check_on(
        &server,
        "TG.HIT api k 9        -> *5 :1 :-1 :-1 :-1 :0
         CL.THROTTLE k 3 1 1 9 -> *5 :0 :4 :4 :-1 :0",
    );
}

#[test]
fn what_clients_say_on_connecting() {
    check(
        "PING              -> +PONG
         ping hello        -> $5 hello
         ECHO hello        -> $5 hello
         SELECT 0          -> +OK
         SELECT 1          -> -ERR DB index is out of range; there is one, 0
         CLIENT SETINFO LIB-NAME x -> +OK
         CLIENT SETNAME me -> +OK
         CLIENT GETNAME    -> $2 me
         CLIENT TRACKING on -> -ERR unknown subcommand 'TRACKING' for CLIENT…
         COMMAND COUNT     -> :19
         COMMAND DOCS      -> *0
         COMMAND INFO cl.throttle get -> *2 *6 $11 cl.throttle :-5 *2 +write +fast :1 :1 :1 $-1
         AUTH secret       -> -ERR AUTH <password> called without any password configured…
         HELLO             -> *14 $6 server $8 tidegate $7 version $5 7.0.0 $4 mode $10 standalone $4 role $6 master $5 proto :2 $2 id…
         HELLO 4           -> -NOPROTO unsupported protocol version; use 2 or 3
         HELLO 3 SETNAME you -> %7 $6 server $8 tidegate…
         CLIENT GETNAME    -> $3 you
         TG.ATTR other 1 user u -> *6 :1 :-1 :-1 :-1 :0 _
         COMMAND DOCS      -> %0
         RESET             -> +RESET
         CLIENT GETNAME    -> $-1
         GET k             -> -ERR unknown command 'GET'; there are: cl.throttle, tg.hit…
         PING              -> +PONG
         QUIT              -> +OK",
    );
    let server = Server::start();
    let mut client = server.connect();
    assert!(client.ask("INFO server").contains("redis_version:7.0.0") || client.receive().contains("tidegate"));
    let mut client = server.connect();
    client.send(b"ping\r\nQUIT\r\nping\r\n");
    assert_eq!([client.receive(), client.receive(), client.receive()], ["+PONG", "+OK", "closed"]);
}

/// A pipeline of every kind of command is answered in order, and hits of a limiter in their order.
#[test]
fn a_pipeline_is_answered_in_order() {
    let kinds = [
        ("TG.HIT api k", "*5"),
        ("PING", "+PONG"),
        ("CL.THROTTLE k 1 1 1", "*5"),
        ("TG.ATTR login 1 user u", "*6"),
        ("TG.HIT anywhere 192.0.2.1", "*5"),
        ("NONSENSE", "-ERR unknown"),
        ("TG.HIT burst k", "*5"),
        ("ECHO x", "$1 x"),
    ];
    let (server, mut all) = (Server::start(), Vec::new());
    let mut client = server.connect();
    for turn in 0..5_000 {
        all.extend(crate::server::encode(kinds[turn % kinds.len()].0));
    }
    let reader = client.stream.try_clone().unwrap();
    let writer = std::thread::spawn(move || {
        use std::io::Write as _;
        (&reader).write_all(&all).unwrap();
    });
    for turn in 0..5_000 {
        let (command, reply) = (kinds[turn % kinds.len()], client.receive());
        assert!(reply.starts_with(command.1), "{turn}: {command:?} {reply}");
        if command.0 == "TG.HIT burst k" {
            let left = 39_usize.saturating_sub(turn / kinds.len());
            assert!(reply.contains(&format!(":40 :{left} ")), "{turn}: {reply}");
        }
    }
    writer.join().unwrap();
}

#[test]
fn a_new_policy_is_asked_by_open_connections() {
    let server = Server::start();
    let mut client = server.connect();
    assert_eq!(client.ask("TG.HIT api k"), "*5 :1 :3 :2 :-1 :60000");
    server.gate.reload(&policy("9 per minute")).unwrap();
    server.door.reload();
    assert_eq!(client.ask("TG.HIT api k"), "*5 :1 :9 :7 :-1 :60000");
}

#[test]
fn s7_blocks_by_a_redis_client_are_noted_once_and_refusals_are_not() {
    let audit = Arc::<Audit>::default();
    let server = Server::with(RespSettings { audit: Arc::clone(&audit), ..RespSettings::default() });
    check_on(
        &server,
        "TG.BLOCK api k 5000    -> +OK
         TG.BLOCK api k soon    -> -ERR 'soon' is no time…
         TG.BLOCK nobody k 5000 -> -ERR no limiter is named…
         TG.UNBLOCK api k       -> :1
         TG.UNBLOCK api k       -> :0",
    );
    let entries = audit.page(None, 10).entries;
    let told: Vec<&str> = entries.iter().map(|entry| &**entry).collect();
    assert_eq!(told.len(), 3, "{told:?}");
    assert!(told[2].contains("\"what\":\"block\"") && told[2].contains("for 5s"), "{told:?}");
    assert!(told[1].contains("unblocked: true") && told[0].contains("unblocked: false"), "{told:?}");
}

/// A hit without the store looks like any other, and nothing at this door said that it was none.
#[test]
fn f6_info_tells_that_hits_are_decided_without_the_store() {
    let mut redis = servers::Server::redis(&[]);
    let url = format!("redis://127.0.0.1:{}", redis.port).parse().unwrap();
    let settings = StoreSettings { on_failure: OnFailure::Allow, ..StoreSettings::default() };
    let runtime = Runtime::new().unwrap();
    let gate = runtime.block_on(Gate::connect(&policy("3 per minute"), url, settings, Clock::process()));
    let server = Server::on(gate, RespSettings::default());
    let info = || {
        let mut client = server.connect();
        client.send(b"INFO\r\nPING\r\n");
        let lines = std::iter::from_fn(|| Some(client.receive()).filter(|line| line != "+PONG"));
        lines.collect::<Vec<_>>().join("\n")
    };
    let said = info();
    assert!(said.contains("store_up:1\nstore_error:none\ndegraded_decisions:0"), "{said}");
    redis.kill();
    let mut client = server.connect();
    eventually("INFO tells", || {
        let (hit, said) = (client.ask("TG.HIT api u"), info());
        assert!(hit.starts_with("*5 :1 "), "{hit}");
        said.contains("store_up:0\nstore_error:") && !said.contains("degraded_decisions:0")
    });
}
