//! Tells the program which commit it was built from, for `pollux --version`.

#[path = "build/commit.rs"]
mod commit;

use std::{env, path::Path};

fn main() {
    let package = env::var_os("CARGO_MANIFEST_DIR").expect("cargo says where the package is");
    let package = Path::new(&package);
    let built = commit::find(package, env::var("POLLUX_COMMIT").ok());
    for path in &built.changes_with {
        println!("cargo::rerun-if-changed={}", path.display());
    }
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=build");
    println!("cargo::rerun-if-env-changed=POLLUX_COMMIT");
    let [profile, target] = ["PROFILE", "TARGET"].map(|name| env::var(name).unwrap_or_default());
    println!("cargo::rustc-env=POLLUX_BUILD={}, {profile} build, {target}", built.commit);
}
