//! How much a client may ask for. Each bound is stated in the OpenAPI text too, and a test holds
//! the two together.

/// Largest request body. The longest sensible one, sixteen attributes of the longest values, is
/// about 9 KB.
pub const BODY_BYTES_MAX: usize = 64 * 1024;

/// Largest body of a batch: a thousand requests of ordinary size.
pub const BATCH_BODY_BYTES_MAX: usize = 256 * 1024;

/// Most requests of a batch.
pub const BATCH_REQUESTS_MAX: usize = 1_000;

/// Most requests that are decided together: their shards are locked at once.
pub const TOGETHER_MAX: usize = 32;

/// How much of a body that is too large is read and thrown away before the answer, so that a
/// client which writes all before it reads gets to see the answer.
pub const BODY_DISCARD_MAX: usize = 1024 * 1024;

/// Deepest JSON that is looked into: the object and its `attributes`; of a batch, its list and the requests around them. Anything deeper is refused
/// for its type and skipped without recursion.
pub const JSON_DEPTH_MAX: usize = 2;

/// Most attributes of one request.
pub const ATTRIBUTES_MAX: usize = 16;

/// Largest request line and header fields together.
pub const HEADER_BYTES_MAX: usize = 16 * 1024;

/// Most header fields.
pub const HEADER_FIELDS_MAX: usize = 64;

/// Past this many bytes (or 100 fields) without the end of the head the connection gets a bare 431
/// and is closed: the head is not kept any longer, so there is nothing to answer in detail.
pub const HEADER_BUFFER_MAX: u32 = 64 * 1024;

/// Most keys of one page of a listing.
pub const PAGE_KEYS_MAX: usize = 1_000;

/// Keys of a page when the request does not say how many.
pub const PAGE_KEYS_DEFAULT: usize = 100;

/// Longest part of a refused value that is shown in its answer.
pub const SHOWN_VALUE_MAX: usize = 64;

/// What the kernel is asked to keep of bytes that a client has not acknowledged; it takes twice as much memory.
/// A tenth of a second of 2 MB/s, to a client that far away.
pub const SEND_BUFFER_BYTES: usize = 192 * 1024;

/// Most keys of a ranking.
pub const TOP_KEYS_MAX: usize = 100;

/// Keys of a ranking when the request does not say how many.
pub const TOP_KEYS_DEFAULT: usize = 20;
