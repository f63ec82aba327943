//! Sets the name of the shared library for the loader: a program linked with one version 0.x also runs
//! with later ones.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libpollux.so.0");
}
