//! Kernel releases as Debian names them: `6.1.0-56-amd64`, `6.12.117+deb12-amd64`.

use std::{fmt, str::FromStr};

/// One release, ordered by age.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Release {
    /// The version: 6, 1, 0 or 6, 12, 117.
    version: Vec<u32>,
    /// Debian's own number: the ABI (56), or the distribution (`+deb12`: 12).
    revision: u32,
    name: String,
}

impl Release {
    /// The release of an image package of the plain amd64 flavour, such as
    /// `linux-image-6.1.0-56-amd64`; `None` for the cloud, rt, dbg and unsigned packages, and for
    /// meta-packages.
    pub fn of_image_package(package: &str) -> Option<Release> {
        package.strip_prefix("linux-image-")?.parse().ok()
    }

    /// Whether this release belongs to a series such as `6.1`.
    pub fn is_in(&self, series: &str) -> bool {
        let mut parts = series.split('.').map(str::parse::<u32>);
        self.version.len() >= 2
            && self.version[..2].iter().all(|number| parts.next() == Some(Ok(*number)))
            && parts.next().is_none()
    }
}

/// The text is not a release of the plain amd64 flavour.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a release of Debian's plain amd64 kernels")]
pub struct InvalidRelease;

impl FromStr for Release {
    type Err = InvalidRelease;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let number = |text: &str| text.parse::<u32>().map_err(|_| InvalidRelease);
        let stem = name.strip_suffix("-amd64").ok_or(InvalidRelease)?;
        let (version, revision) = if let Some((version, distribution)) = stem.split_once("+deb") {
            // A later rebuild carries a suffix: 6.12.9+deb12u2. (12-rt and 12-cloud are flavours.)
            let (distribution, rebuild) =
                distribution.split_once('u').unwrap_or((distribution, "0"));
            number(rebuild)?;
            (version, number(distribution)?)
        } else if let Some((version, abi)) = stem.split_once('-') {
            (version, number(abi)?)
        } else {
            (stem, 0)
        };
        let version = version.split('.').map(number).collect::<Result<Vec<_>, _>>()?;
        // A meta-package (linux-image-6.12-amd64) has two numbers, a release three.
        if version.len() < 3 {
            return Err(InvalidRelease);
        }
        Ok(Release { version, revision, name: name.to_owned() })
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn newest(series: &str, packages: &[&str]) -> Option<String> {
        packages
            .iter()
            .filter_map(|package| Release::of_image_package(package))
            .filter(|release| release.is_in(series))
            .max()
            .map(|release| release.to_string())
    }

    /// As `apt-cache pkgnames linux-image-` prints them on Debian 12.
    const PACKAGES: &[&str] = &[
        "linux-image-6.1.0-9-amd64",
        "linux-image-6.1.0-56-amd64",
        "linux-image-6.1.0-56-amd64-unsigned",
        "linux-image-6.1.0-57-cloud-amd64",
        "linux-image-6.1.0-57-rt-amd64",
        "linux-image-6.1.0-57-amd64-dbg",
        "linux-image-6.10.11+bpo-amd64",
        "linux-image-6.12-amd64",
        "linux-image-6.12.118+deb12-rt-amd64",
        "linux-image-6.12.118+deb12-cloud-amd64",
        "linux-image-6.12.118+deb12-rt-amd64",
        "linux-image-6.12.118+deb12-cloud-amd64",
        "linux-image-6.12-amd64-signed-template",
        "linux-image-6.12.99+deb12-amd64",
        "linux-image-6.12.117+deb12-amd64",
        "linux-image-6.12.115+deb12-amd64",
        "linux-image-amd64",
    ];

    #[test]
    fn the_newest_is_by_number_and_of_the_plain_flavour() {
        assert_eq!(newest("6.1", PACKAGES).as_deref(), Some("6.1.0-56-amd64"));
        assert_eq!(newest("6.12", PACKAGES).as_deref(), Some("6.12.117+deb12-amd64"));
        assert_eq!(newest("6", PACKAGES), None);
        assert_eq!(newest("5.10", PACKAGES), None);
    }

    #[test]
    fn a_series_is_not_a_prefix() {
        let release: Release = "6.12.117+deb12-amd64".parse().unwrap();
        assert!(release.is_in("6.12") && !release.is_in("6.1"));
    }

    #[test]
    fn other_distributions_and_rebuilds_parse() {
        assert!("6.12.38+deb13-amd64".parse::<Release>().is_ok());
        assert!("6.12.9+deb12u2-amd64".parse::<Release>().is_ok());
        let of = |name: &str| name.parse::<Release>().unwrap();
        assert!(of("6.12.9+deb13-amd64") > of("6.12.9+deb12-amd64"));
        assert_eq!("6.8.0-45-generic".parse::<Release>(), Err(InvalidRelease));
        assert_eq!("".parse::<Release>(), Err(InvalidRelease));
    }
}
