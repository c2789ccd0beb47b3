//! The messages of `grpc.health.v1`.

use prost::{Enumeration, Message};

/// The methods of the service.
pub const CHECK: &str = "/grpc.health.v1.Health/Check";
/// The same as a stream: the state, and every change of it.
pub const WATCH: &str = "/grpc.health.v1.Health/Watch";

/// How is this service?
#[derive(Clone, PartialEq, Eq, Message)]
pub struct HealthCheckRequest {
    /// Its name; empty: the server.
    #[prost(string, tag = "1")]
    pub service: String,
}

/// How it is.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct HealthCheckResponse {
    /// See [`ServingStatus`].
    #[prost(enumeration = "ServingStatus", tag = "1")]
    pub status: i32,
}

/// What a service can be.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Enumeration)]
#[repr(i32)]
pub enum ServingStatus {
    /// Nobody says so of a service.
    Unknown = 0,
    /// It takes calls.
    Serving = 1,
    /// It takes none.
    NotServing = 2,
    /// There is no such service; [`WATCH`] alone says so.
    ServiceUnknown = 3,
}
