//! Panics on demand, in debug builds only: a test of the real binary shows what a panic in each task and thread leads to.
//!
//! Why not a feature: `--all-features` would put it into a build that is shipped. A release build has no trace of it, and its tests
//! that need it are built with it or not at all.

/// Panics once, if `TIDEGATE_PANIC_AT` is `NAME=FILE` with this name and the file is there; it is removed. So a test says when.
#[cfg(debug_assertions)]
#[doc(hidden)]
pub fn panic_point(name: &str) {
    static AT: std::sync::LazyLock<Option<(String, std::path::PathBuf)>> = std::sync::LazyLock::new(|| {
        let value = std::env::var_os("TIDEGATE_PANIC_AT")?.into_string().ok()?;
        value.split_once('=').map(|(name, file)| (name.to_owned(), file.into()))
    });
    if let Some((at, file)) = &*AT
        && at == name
        && std::fs::remove_file(file).is_ok()
    {
        panic!("a test asked for a panic at {name}");
    }
}

/// Nothing: this is a release build.
#[cfg(not(debug_assertions))]
#[doc(hidden)]
#[inline(always)]
pub fn panic_point(_: &str) {}
