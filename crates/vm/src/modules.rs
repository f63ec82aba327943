//! Selects the modules of the guest's kernel that go into its initramfs, and their order.

use anyhow::{Context, bail};
use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
};

/// The modules that the guest's init needs: the PCI transport, the port for frames, the host's file
/// tree.
pub(crate) const NEEDED: &[&str] = &["virtio_pci", "virtio_console", "9pnet_virtio", "9p"];
/// The additional modules for port forwarding.
pub(crate) const NEEDED_FOR_NETWORK: &[&str] = &["virtio_net"];

/// The named modules and all their dependencies, dependencies first; no entry for a built-in module.
/// `directory` is `lib/modules/RELEASE`, after depmod.
pub(crate) fn in_load_order(directory: &Path, names: &[&str]) -> anyhow::Result<Vec<PathBuf>> {
    let read = |name: &str| {
        let path = directory.join(name);
        fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
    };
    let order = resolve(&read("modules.dep")?, &read("modules.builtin")?, names)?;
    Ok(order.into_iter().map(|path| directory.join(path)).collect())
}

/// The module's name: `virtio_pci` for `kernel/drivers/virtio/virtio-pci.ko.xz`. A hyphen and an
/// underscore are equivalent in it.
fn module_name(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or(path);
    file.split(".ko").next().unwrap_or(file).replace('-', "_")
}

fn resolve(dep: &str, builtin: &str, names: &[&str]) -> anyhow::Result<Vec<String>> {
    let modules: HashMap<String, (&str, &str)> = dep
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(path, needs)| (module_name(path), (path, needs)))
        .collect();
    let mut order: Vec<String> = Vec::new();
    for name in names {
        let usual = name.replace('-', "_");
        let Some((path, needs)) = modules.get(&usual) else {
            if builtin.lines().any(|path| module_name(path) == usual) {
                continue;
            }
            bail!("the guest kernel has no module {name}, neither loadable nor built in");
        };
        // depmod lists a module's dependencies so that the last one must be loaded first.
        for path in needs.split_whitespace().rev().chain([*path]) {
            if !order.iter().any(|have| have == path) {
                order.push(path.to_owned());
            }
        }
    }
    Ok(order)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEP: &str = "\
kernel/drivers/virtio/virtio.ko:
kernel/drivers/virtio/virtio_ring.ko:
kernel/drivers/char/virtio_console.ko: kernel/drivers/virtio/virtio.ko kernel/drivers/virtio/virtio_ring.ko
kernel/net/9p/9pnet.ko.xz:
kernel/fs/9p/9p.ko.xz: kernel/net/9p/9pnet.ko.xz kernel/fs/netfs/netfs.ko.xz
";

    #[test]
    fn needs_come_first_and_once() {
        let order = resolve(DEP, "", &["virtio_console", "9p", "9pnet"]).unwrap();
        assert_eq!(
            order,
            [
                "kernel/drivers/virtio/virtio_ring.ko",
                "kernel/drivers/virtio/virtio.ko",
                "kernel/drivers/char/virtio_console.ko",
                "kernel/fs/netfs/netfs.ko.xz",
                "kernel/net/9p/9pnet.ko.xz",
                "kernel/fs/9p/9p.ko.xz",
            ]
        );
    }

    #[test]
    fn what_is_built_in_is_not_loaded_and_what_is_missing_is_named() {
        let builtin = "kernel/drivers/virtio/virtio-pci.ko\n";
        assert_eq!(resolve(DEP, builtin, &["virtio_pci"]).unwrap(), Vec::<String>::new());
        assert_eq!(resolve(DEP, builtin, &["virtio-pci"]).unwrap(), Vec::<String>::new());
        let error = resolve(DEP, builtin, &["virtio_net"]).unwrap_err();
        assert!(error.to_string().contains("virtio_net"), "{error}");
    }
}
