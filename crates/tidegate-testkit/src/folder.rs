//! A folder for the files of a test.

use std::path::PathBuf;

/// A folder of its own, removed when it is dropped.
pub struct Folder(tempfile::TempDir);

impl Folder {
    /// An empty folder.
    #[expect(clippy::new_without_default, reason = "it makes a folder on disk, which a default should not")]
    pub fn new() -> Folder {
        Folder(tempfile::Builder::new().prefix("tidegate-test-").tempdir().unwrap())
    }

    /// The path of a file in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes a file and returns its path.
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        path
    }
}
