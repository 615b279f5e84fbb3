//! The origin of a measurement: GPU, driver, commit and date.
use std::path::Path;
use std::process::Command;
use std::time::SystemTime;

use oxiwarp::Device;
use serde::{Deserialize, Serialize};

/// Stands for a value that could not be determined.
const UNKNOWN: &str = "unknown";
/// The file in which Linux names the loaded NVIDIA driver.
const DRIVER: &str = "/proc/driver/nvidia/version";

/// Where and when a measurement was made.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Environment {
    /// The GPU's name.
    pub gpu: String,
    /// The version of its driver.
    pub driver: String,
    /// The git commit of the working directory, with the suffix `-dirty` if tracked files are modified.
    pub commit: String,
    /// Date and time, UTC.
    pub date: String,
}

impl Environment {
    /// Describes a measurement on `device` that starts now. The commit comes from the environment variable
    /// `OXIWARP_COMMIT`, or else from the git repository of the working directory.
    pub fn of(device: &Device) -> Self {
        let commit = std::env::var("OXIWARP_COMMIT").ok().filter(|commit| !commit.is_empty());
        Self {
            gpu: device.name().into(),
            driver: driver_version(Path::new(DRIVER)).unwrap_or_else(|| UNKNOWN.into()),
            commit: commit.or_else(commit_of_checkout).unwrap_or_else(|| UNKNOWN.into()),
            date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        }
    }
}

/// Returns the driver version in the first line of `file`: the first word that has only digits and dots, e.g.
/// `580.159.04`.
fn driver_version(file: &Path) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?;
    version_in(text.lines().next()?).map(Into::into)
}

fn version_in(line: &str) -> Option<&str> {
    let is_version = |word: &&str| word.contains('.') && word.chars().all(|c| c.is_ascii_digit() || c == '.');
    line.split_whitespace().find(is_version)
}

fn commit_of_checkout() -> Option<String> {
    let describe = ["describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"];
    let output = Command::new("git").args(describe).output().ok()?;
    let commit = String::from_utf8(output.stdout).ok()?;
    Some(commit.trim().to_string()).filter(|commit| output.status.success() && !commit.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_driver_s_version_is_found() {
        let open =
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (buildd@x)";
        let closed =
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024";
        assert_eq!([version_in(open), version_in(closed)], [Some("580.159.04"), Some("550.54.15")]);
        assert_eq!(version_in("NVRM version: none"), None);
        assert_eq!(driver_version(Path::new("/no/such/file")), None);
    }

    #[test]
    fn the_date_has_a_day_and_seconds() {
        let date = Environment::of(&Device::cpu()).date;
        assert_eq!((date.len(), date.as_bytes()[10], &date[19..]), (20, b'T', "Z"), "{date}");
    }
}
