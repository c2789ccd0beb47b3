//! Files that only this user may read: key names, the hash's seeds, events, the audit.
//!
//! Folders that are made here are 0700 and files 0600. A name that is opened for writing is never followed: whoever may write to the
//! folder could plant a symbolic link there, and have this process truncate or overwrite a file of its choice. What replaces
//! a file is made anew beside it (`O_EXCL`) and renamed over it, which replaces a link and not what it points to.
//! Invariant: nothing that this process writes is opened but through here.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::Path;

/// Makes a folder, with those above it, for this user alone; one that is there stays as it is.
///
/// # Errors
/// When it cannot be made.
pub fn make_folder(path: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    modes::of_folder(&mut builder);
    builder.recursive(true).create(path)
}

/// The same for a folder inside one of ours, which nobody else has made: it is tightened.
///
/// # Errors
/// When it cannot be made or tightened.
pub fn make_own_folder(path: &Path) -> io::Result<()> {
    make_folder(path)?;
    modes::tighten_folder(path)
}

/// Makes a file that was not there, for writing; what had the name is removed, and if it is a link, not what it points to.
///
/// # Errors
/// When it cannot be made.
pub fn make_anew(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    modes::of_file(options.write(true).create_new(true));
    match options.open(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            fs::remove_file(path)?;
            options.open(path)
        }
        made => made,
    }
}

/// Opens a file for writing at its start, as it stands, or makes it. It is tightened to 0600.
///
/// # Errors
/// When it cannot be opened, or is a link or no regular file.
pub fn open_or_make(path: &Path) -> io::Result<File> {
    open(path, OpenOptions::new().create(true))
}

/// The same for a file that must be there.
///
/// # Errors
/// When it is not there, cannot be opened, or is a link or no regular file.
pub fn open_existing(path: &Path) -> io::Result<File> {
    open(path, &mut OpenOptions::new())
}

fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    modes::of_file(options.write(true));
    let file = options.open(path).map_err(|error| match fs::symlink_metadata(path) {
        Ok(about) if about.is_symlink() => {
            io::Error::other("it is a symbolic link, which is not followed: remove it, and look who made it")
        }
        _ => error,
    })?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no regular file: remove it, and look who made it"));
    }
    modes::tighten_file(&file)?;
    Ok(file)
}

/// A sentence about a folder that others can look into or write to, if they can.
#[must_use]
pub fn exposure(folder: &Path) -> Option<String> {
    let (mode, others) = modes::open_to_others(folder)?;
    Some(format!("{} has mode {mode:04o}: {others}; chmod 700 {}", folder.display(), folder.display()))
}

#[cfg(unix)]
mod modes {
    use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
    use std::io;
    use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
    use std::path::Path;

    const FILE: u32 = 0o600;
    const FOLDER: u32 = 0o700;
    /// What a group and others may do.
    const OTHERS: u32 = 0o077;

    pub(super) fn of_folder(builder: &mut DirBuilder) {
        builder.mode(FOLDER);
    }

    pub(super) fn of_file(options: &mut OpenOptions) {
        // Without O_NONBLOCK a pipe of this name would be waited for.
        options.mode(FILE).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    }

    pub(super) fn tighten_folder(path: &Path) -> io::Result<()> {
        if fs::metadata(path)?.mode() & OTHERS != 0 {
            fs::set_permissions(path, Permissions::from_mode(FOLDER))?;
        }
        Ok(())
    }

    /// A file of a version before may have what the umask gave it. One with a second name is left alone: it may be another's.
    pub(super) fn tighten_file(file: &File) -> io::Result<()> {
        let about = file.metadata()?;
        if about.mode() & OTHERS != 0 && about.nlink() == 1 {
            file.set_permissions(Permissions::from_mode(FILE))?;
        }
        Ok(())
    }

    pub(super) fn open_to_others(folder: &Path) -> Option<(u32, &'static str)> {
        let mode = fs::metadata(folder).ok()?.mode() & 0o777;
        match mode & OTHERS {
            0 => None,
            others if others & 0o022 != 0 => Some((mode, "other users may write to it, and replace what is saved")),
            _ => Some((mode, "other users may look into it")),
        }
    }
}

/// Systems without modes have other ways to keep users apart, which are set for the folder.
#[cfg(not(unix))]
mod modes {
    use std::fs::{DirBuilder, File, OpenOptions};
    use std::io;
    use std::path::Path;

    pub(super) fn of_folder(_: &mut DirBuilder) {}
    pub(super) fn of_file(_: &mut OpenOptions) {}
    pub(super) fn tighten_folder(_: &Path) -> io::Result<()> {
        Ok(())
    }
    pub(super) fn tighten_file(_: &File) -> io::Result<()> {
        Ok(())
    }
    pub(super) fn open_to_others(_: &Path) -> Option<(u32, &'static str)> {
        None
    }
}

#[cfg(unix)]
#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, symlink};

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().mode() & 0o777
    }

    /// A link that was planted at a name that we write once had its target truncated.
    #[test]
    fn f4_a_planted_link_costs_its_target_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let (victim, name) = (folder.path().join("victim"), folder.path().join("lock"));
        for existing in [true, false] {
            if existing {
                fs::write(&victim, "precious").unwrap();
            } else {
                fs::remove_file(&victim).unwrap();
            }
            for open in [open_or_make, open_existing] {
                symlink(&victim, &name).unwrap();
                let refused = open(&name).unwrap_err().to_string();
                assert!(refused.contains("symbolic link"), "{refused}");
                fs::remove_file(&name).unwrap();
            }
            symlink(&victim, &name).unwrap();
            make_anew(&name).unwrap();
            assert!(fs::symlink_metadata(&name).unwrap().is_file(), "the link is replaced");
            fs::remove_file(&name).unwrap();
            assert_eq!(fs::read_to_string(&victim).ok().as_deref(), existing.then_some("precious"));
        }
    }

    #[test]
    fn what_is_no_file_is_refused_without_waiting() {
        let folder = tempfile::tempdir().unwrap();
        let name = folder.path().join("lock");
        assert!(std::process::Command::new("mkfifo").arg(&name).status().unwrap().success());
        let _reader = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&name).unwrap();
        let refused = open_or_make(&name).unwrap_err().to_string();
        assert!(refused.contains("no regular file"), "{refused}");
    }

    #[test]
    fn files_are_0600_in_0700_and_looser_ones_are_tightened_or_told() {
        let folder = tempfile::tempdir().unwrap();
        let (made, own) = (folder.path().join("a/b"), folder.path().join("own"));
        make_folder(&made).unwrap();
        assert_eq!((mode(&made), mode(&folder.path().join("a"))), (0o700, 0o700));
        fs::create_dir(&own).unwrap();
        fs::set_permissions(&own, Permissions::from_mode(0o755)).unwrap();
        assert!(exposure(&own).is_some_and(|told| told.contains("0755") && told.contains("look into")));
        make_own_folder(&own).unwrap();
        assert_eq!((mode(&own), exposure(&own)), (0o700, None));
        fs::set_permissions(&own, Permissions::from_mode(0o730)).unwrap();
        assert!(exposure(&own).is_some_and(|told| told.contains("write to it")));
        let file = folder.path().join("file");
        fs::write(&file, "as it was").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
        drop(open_or_make(&file).unwrap());
        assert_eq!((mode(&file), fs::read_to_string(&file).unwrap().as_str()), (0o600, "as it was"));
        fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
        drop(make_anew(&file).unwrap());
        assert_eq!((mode(&file), fs::read_to_string(&file).unwrap().as_str()), (0o600, ""));
    }
}
