//! Why a store did not answer, and what can be done about it. Which reply means what is in each store's `error.rs`.
//!
//! The variant tells a caller what may have happened to its charge; the texts name the server, the
//! cause and the remedy, and never a password.

use std::fmt;
use tidegate_core::Micros;

/// Why there is no answer.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum StoreError {
    /// The request was not sent: there is no connection. Nothing was charged.
    Unreachable {
        /// The server.
        address: String,
        /// What was tried last, and the remedy.
        why: String,
    },
    /// The request was sent and its reply did not come: it may have been charged or not.
    Ambiguous {
        /// The server.
        address: String,
        /// How the reply was lost.
        why: String,
    },
    /// The server refused. Nothing was charged.
    Refused {
        /// The server.
        address: String,
        /// What its reply means.
        meaning: Meaning,
        /// Its reply.
        text: String,
    },
    /// The store cannot do this, in the way it is set up.
    Unsupported(String),
    /// By the server's clock it is another window than the one that was asked about. Nothing was charged.
    OtherWindow {
        /// The server.
        address: String,
        /// What its clock said.
        now: Micros,
        /// How far it is off, and the remedy.
        why: String,
    },
    /// The reply makes no sense; the request may have been charged.
    Garbled {
        /// The server.
        address: String,
        /// What was wrong with it.
        why: String,
    },
}

impl StoreError {
    /// The store at this address has been silent, and is not asked until it speaks again.
    #[must_use]
    pub fn silent(address: String) -> StoreError {
        StoreError::Unreachable { address, why: "it has been silent, and is probed until it answers".to_owned() }
    }

    /// A word for it, for counters.
    #[must_use]
    pub const fn label(&self) -> &'static str {
        match self {
            StoreError::Unreachable { .. } => "unreachable",
            StoreError::Ambiguous { .. } => "no_reply",
            StoreError::Refused { meaning, .. } => meaning.label(),
            StoreError::Unsupported(_) => "unsupported",
            StoreError::OtherWindow { .. } => "other_window",
            StoreError::Garbled { .. } => "garbled",
        }
    }

    /// True when the request may have been charged all the same.
    #[must_use]
    pub const fn is_ambiguous(&self) -> bool {
        matches!(self, StoreError::Ambiguous { .. } | StoreError::Garbled { .. })
    }
}

impl std::error::Error for StoreError {}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreError::Unreachable { address, why } => {
                write!(f, "the store at {address} cannot be reached: {why}")
            }
            StoreError::Ambiguous { address, why } => {
                write!(f, "the store at {address} did not answer: {why}; the request may have been counted")
            }
            StoreError::Refused { address, meaning, text } => {
                write!(f, "the store at {address} refused: {text}; {}", meaning.remedy())
            }
            StoreError::Unsupported(what) => write!(f, "operation not supported: {what}"),
            StoreError::OtherWindow { why, .. } => f.write_str(why),
            StoreError::Garbled { address, why } => {
                write!(f, "the store at {address} sent what is {why}; is it the server that [store] means?")
            }
        }
    }
}

/// What an error reply means.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Meaning {
    /// It does not know the script: it is sent whole.
    NoScript,
    /// It is a replica, or a master that lost its role.
    ReadOnly,
    /// It is loading its data.
    Loading,
    /// Its memory is used up.
    OutOfMemory,
    /// It wants a password.
    NoAuth,
    /// The user or the password is wrong.
    WrongPassword,
    /// The user may not do this.
    NoPermission,
    /// It cannot save, and therefore takes no writes.
    CannotSave,
    /// Too few replicas are there for it to take writes.
    NoReplicas,
    /// A replica without its master.
    MasterDown,
    /// A script of another client's runs for too long.
    Busy,
    /// The slot lives on another node.
    Moved,
    /// The slot is on its way to another node.
    Ask,
    /// Keys of one command are apart while their slot moves.
    TryAgain,
    /// A part of the cluster has no node.
    ClusterDown,
    /// Keys of one command are in different slots.
    CrossSlot,
    /// The proxy cannot reach the shard of the key.
    ShardDown,
    /// Something else than a state of ours lies at the key.
    WrongType,
    /// The number of clients is at its bound.
    TooManyClients,
    /// The database number does not exist.
    NoDatabase,
    /// A member of a cluster that knows no leader now.
    NoLeader,
    /// A member that only learns, and may not be asked.
    Learner,
    /// It gave up in the midst of it.
    TimedOut,
    /// It is being stopped.
    Stopping,
    /// It has more to do than it can.
    Overloaded,
    /// Its database has reached its quota.
    NoSpace,
    /// The lease has expired or was revoked.
    NoLease,
    /// The request is larger than it takes.
    TooLarge,
    /// Our token has expired.
    BadToken,
    /// It has no users, and we came with one.
    AuthOff,
    /// None of the user's roles allows it.
    NoRole,
    /// Anything else.
    Other,
}

impl Meaning {
    /// A word for it, for counters.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Meaning::NoScript => "noscript",
            Meaning::ReadOnly => "readonly",
            Meaning::Loading => "loading",
            Meaning::OutOfMemory => "oom",
            Meaning::NoAuth => "noauth",
            Meaning::WrongPassword => "wrongpass",
            Meaning::NoPermission => "noperm",
            Meaning::CannotSave => "misconf",
            Meaning::NoReplicas => "noreplicas",
            Meaning::MasterDown => "masterdown",
            Meaning::Busy => "busy",
            Meaning::Moved => "moved",
            Meaning::Ask => "ask",
            Meaning::TryAgain => "tryagain",
            Meaning::ClusterDown => "clusterdown",
            Meaning::CrossSlot => "crossslot",
            Meaning::ShardDown => "sharddown",
            Meaning::WrongType => "wrongtype",
            Meaning::TooManyClients => "maxclients",
            Meaning::NoDatabase => "nodatabase",
            Meaning::NoLeader => "noleader",
            Meaning::Learner => "learner",
            Meaning::TimedOut => "timedout",
            Meaning::Stopping => "stopping",
            Meaning::Overloaded => "overloaded",
            Meaning::NoSpace => "nospace",
            Meaning::NoLease => "nolease",
            Meaning::TooLarge => "toolarge",
            Meaning::BadToken => "badtoken",
            Meaning::AuthOff => "authoff",
            Meaning::NoRole => "norole",
            Meaning::Other => "other",
        }
    }

    /// What people can do about it.
    #[must_use]
    pub const fn remedy(self) -> &'static str {
        match self {
            Meaning::NoScript => "it lost the script twice in a row; does something run SCRIPT FLUSH all the time?",
            Meaning::ReadOnly => "it is a replica; point [store] url to the master",
            Meaning::Loading => "it is loading its data; wait until it has",
            Meaning::OutOfMemory => "its maxmemory is reached; raise it",
            Meaning::NoAuth => "it wants a password; give it in [store]",
            Meaning::WrongPassword => "user or password is wrong; correct it in [store]",
            Meaning::NoPermission => {
                "the user lacks a permission; allow it +select +eval +evalsha +time +@read +@write on the keys tg:*, \
                 in Pause's layout i:* b:* internal:* too, for a proxy's replicas tidegate:*"
            }
            Meaning::CannotSave => "it cannot save to its disk; free space there, or look at its log",
            Meaning::NoReplicas => "too few of its replicas are connected; look at min-replicas-to-write",
            Meaning::MasterDown => "it is a replica that lost its master; wait for the failover",
            Meaning::Busy => "a script of another client runs for too long; end it with SCRIPT KILL",
            Meaning::Moved | Meaning::Ask | Meaning::TryAgain | Meaning::CrossSlot => {
                "it is a node of a cluster; use redis-cluster:// in [store] url"
            }
            Meaning::ShardDown => "the proxy does not reach the shard of this key; start the shard again",
            Meaning::WrongType => {
                "another program's data lies there; rename or delete that key, or choose another scope"
            }
            Meaning::ClusterDown => "a part of the cluster has no node; look at CLUSTER INFO",
            Meaning::TooManyClients => "its maxclients is reached; raise it",
            Meaning::NoDatabase => "it does not have this database; choose a lower number in [store] url",
            Meaning::NoLeader => "more than half of its members must be there; look at etcdctl endpoint status",
            Meaning::Learner => "it is a learner; promote it, or take it out of [store] endpoints",
            Meaning::TimedOut => "its members do not reach each other in time; look at their disks and network",
            Meaning::Stopping => "it is being stopped; another member is asked next",
            Meaning::Overloaded => "it has more to do than it can; give it faster disks, or ask less",
            Meaning::NoSpace => "its quota is reached; compact and defragment it, then etcdctl alarm disarm",
            Meaning::NoLease => "a lease has run out; it is granted anew with the next request",
            Meaning::TooLarge => "it takes no more at once; raise its --max-request-bytes or --max-txn-ops",
            Meaning::BadToken => "it forgets our token at once; is its clock or its --auth-token set up well?",
            Meaning::AuthOff => "it has no users now; run etcdctl auth enable, or leave out user",
            Meaning::NoRole => "none of the user's roles allows it; grant one readwrite on the prefix tidegate/",
            Meaning::Other => "look at the server's log",
        }
    }
}

/// Why an address was refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UrlError(String);

impl UrlError {
    /// Refused for this reason, which names the remedy.
    pub(crate) const fn new(why: String) -> UrlError {
        UrlError(why)
    }
}

impl std::error::Error for UrlError {}

impl fmt::Display for UrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
