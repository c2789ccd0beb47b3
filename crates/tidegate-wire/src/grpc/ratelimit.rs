//! The messages of Envoy's rate limit service, `envoy.service.ratelimit.v3`, which Kuadrant's service has as well.
//!
//! The value of an entry is a text by its definition, and bytes here: Envoy puts the value of a header into it as it came, and a client that
//! sends other bytes than UTF-8 must be counted, not make the call fail. On the wire both are the same.

use prost::bytes::Bytes;
use prost::{Enumeration, Message, Oneof};
use std::collections::BTreeMap;

/// May these happen now?
pub const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
/// Kuadrant's: the same, and nothing is charged.
pub const CHECK_RATE_LIMIT: &str = "/kuadrant.service.ratelimit.v1.RateLimitService/CheckRateLimit";
/// Kuadrant's: they have happened.
pub const REPORT: &str = "/kuadrant.service.ratelimit.v1.RateLimitService/Report";

/// A question about several descriptors.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct RateLimitRequest {
    /// Which limiters.
    #[prost(string, tag = "1")]
    pub domain: String,
    /// What they count.
    #[prost(message, repeated, tag = "2")]
    pub descriptors: Vec<RateLimitDescriptor>,
    /// What each costs, unless it says so itself; 0: 1.
    #[prost(uint32, tag = "3")]
    pub hits_addend: u32,
}

/// Attributes that are counted together.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct RateLimitDescriptor {
    /// The attributes, in order.
    #[prost(message, repeated, tag = "1")]
    pub entries: Vec<Entry>,
    /// A limit that the request brings.
    #[prost(message, optional, tag = "2")]
    pub limit: Option<RateLimitOverride>,
    /// What it costs; 0 looks only.
    #[prost(message, optional, tag = "3")]
    pub hits_addend: Option<u64>,
    /// The cost is given back.
    #[prost(bool, tag = "4")]
    pub is_negative_hits: bool,
}

/// One attribute.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Entry {
    /// Its name.
    #[prost(string, tag = "1")]
    pub key: String,
    /// Its value.
    #[prost(bytes = "bytes", tag = "2")]
    pub value: Bytes,
}

/// A limit that a request brings.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct RateLimitOverride {
    /// How many.
    #[prost(uint32, tag = "1")]
    pub requests_per_unit: u32,
    /// In which time: a [`Unit`], of which this field has no week.
    #[prost(enumeration = "Unit", tag = "2")]
    pub unit: i32,
    /// So many of them; absent: 1.
    #[prost(message, optional, tag = "3")]
    pub unit_multiplier: Option<u32>,
}

/// The answer.
#[derive(Clone, PartialEq, Message)]
pub struct RateLimitResponse {
    /// A [`ResponseCode`] for all of them.
    #[prost(enumeration = "ResponseCode", tag = "1")]
    pub overall_code: i32,
    /// One for each descriptor, in their order.
    #[prost(message, repeated, tag = "2")]
    pub statuses: Vec<DescriptorStatus>,
    /// What the client's response is to carry.
    #[prost(message, repeated, tag = "3")]
    pub response_headers_to_add: Vec<HeaderValue>,
    /// The body of the response, where the request is denied.
    #[prost(bytes = "vec", tag = "5")]
    pub raw_body: Vec<u8>,
    /// For filters that come after.
    #[prost(message, optional, tag = "6")]
    pub dynamic_metadata: Option<Struct>,
}

/// May it happen?
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Enumeration)]
#[repr(i32)]
pub enum ResponseCode {
    /// Nobody says so.
    Unknown = 0,
    /// Yes.
    Ok = 1,
    /// No.
    OverLimit = 2,
}

/// What became of one descriptor.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct DescriptorStatus {
    /// A [`ResponseCode`].
    #[prost(enumeration = "ResponseCode", tag = "1")]
    pub code: i32,
    /// The limit that decided; none: nothing limits it.
    #[prost(message, optional, tag = "2")]
    pub current_limit: Option<RateLimit>,
    /// What is left of it.
    #[prost(uint32, tag = "3")]
    pub limit_remaining: u32,
    /// When it is worth asking again, or until the limit is as if never used.
    #[prost(message, optional, tag = "4")]
    pub duration_until_reset: Option<Duration>,
}

/// A limit.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct RateLimit {
    /// How many.
    #[prost(uint32, tag = "1")]
    pub requests_per_unit: u32,
    /// In which time.
    #[prost(enumeration = "Unit", tag = "2")]
    pub unit: i32,
    /// Its name.
    #[prost(string, tag = "3")]
    pub name: String,
    /// So many of the units; absent: 1.
    #[prost(message, optional, tag = "4")]
    pub unit_multiplier: Option<u32>,
}

/// Units of time. The numbers are Envoy's: the week came last.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Enumeration)]
#[repr(i32)]
pub enum Unit {
    /// None that has a name.
    Unknown = 0,
    /// 1 s.
    Second = 1,
    /// 60 s.
    Minute = 2,
    /// 3,600 s.
    Hour = 3,
    /// 86,400 s.
    Day = 4,
    /// 30 days, of no calendar.
    Month = 5,
    /// 365 days, of no calendar.
    Year = 6,
    /// 7 days.
    Week = 7,
}

impl Unit {
    /// Those with a length, from the longest on.
    const BY_LENGTH: [Unit; 7] =
        [Unit::Year, Unit::Month, Unit::Week, Unit::Day, Unit::Hour, Unit::Minute, Unit::Second];

    /// How long it is.
    #[must_use]
    pub const fn seconds(self) -> Option<u64> {
        Some(match self {
            Unit::Unknown => return None,
            Unit::Second => 1,
            Unit::Minute => 60,
            Unit::Hour => 3_600,
            Unit::Day => 86_400,
            Unit::Week => 7 * 86_400,
            Unit::Month => 30 * 86_400,
            Unit::Year => 365 * 86_400,
        })
    }

    /// The longest unit of which so many seconds are a multiple, and how many they are. Nothing is less than a second.
    #[must_use]
    pub fn of_seconds(seconds: u64) -> (Unit, u32) {
        let seconds = seconds.max(1);
        let fits = |unit: &&Unit| unit.seconds().is_some_and(|length| seconds.is_multiple_of(length));
        let unit = *Unit::BY_LENGTH.iter().find(fits).unwrap_or(&Unit::Second);
        (unit, u32::try_from(seconds / unit.seconds().unwrap_or(1)).unwrap_or(u32::MAX))
    }
}

/// A header field.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct HeaderValue {
    /// Its name.
    #[prost(string, tag = "1")]
    pub key: String,
    /// Its value.
    #[prost(string, tag = "2")]
    pub value: String,
}

/// `google.protobuf.Duration`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Duration {
    /// Whole seconds.
    #[prost(int64, tag = "1")]
    pub seconds: i64,
}

/// `google.protobuf.Struct`: a JSON object.
#[derive(Clone, PartialEq, Message)]
pub struct Struct {
    /// Its members.
    #[prost(btree_map = "string, message", tag = "1")]
    pub fields: BTreeMap<String, Value>,
}

/// `google.protobuf.Value`: a value of JSON.
#[derive(Clone, PartialEq, Message)]
pub struct Value {
    /// What it is.
    #[prost(oneof = "Kind", tags = "1, 2, 3, 4, 5, 6")]
    pub kind: Option<Kind>,
}

/// What a [`Value`] is.
#[derive(Clone, PartialEq, Oneof)]
pub enum Kind {
    /// Nothing; the number is 0.
    #[prost(int32, tag = "1")]
    Null(i32),
    /// A number.
    #[prost(double, tag = "2")]
    Number(f64),
    /// A text.
    #[prost(string, tag = "3")]
    Text(String),
    /// True or false.
    #[prost(bool, tag = "4")]
    Bool(bool),
    /// An object.
    #[prost(message, tag = "5")]
    Object(Struct),
    /// A list.
    #[prost(message, tag = "6")]
    List(ListValue),
}

/// `google.protobuf.ListValue`.
#[derive(Clone, PartialEq, Message)]
pub struct ListValue {
    /// Its items.
    #[prost(message, repeated, tag = "1")]
    pub values: Vec<Value>,
}

impl From<Kind> for Value {
    fn from(kind: Kind) -> Value {
        Value { kind: Some(kind) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_the_longest_that_fit() {
        for (seconds, expected) in [
            (0, (Unit::Second, 1)),
            (1, (Unit::Second, 1)),
            (30, (Unit::Second, 30)),
            (60, (Unit::Minute, 1)),
            (300, (Unit::Minute, 5)),
            (90, (Unit::Second, 90)),
            (86_400, (Unit::Day, 1)),
            (604_800, (Unit::Week, 1)),
            (30 * 86_400, (Unit::Month, 1)),
            (365 * 86_400, (Unit::Year, 1)),
            (14 * 86_400, (Unit::Week, 2)),
        ] {
            assert_eq!(Unit::of_seconds(seconds), expected, "{seconds} s");
        }
    }
}
