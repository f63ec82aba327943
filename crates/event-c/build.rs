//! Gives the shared library its name for the loader: programs linked with one 0.x go on with it.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libpollux.so.0");
}
