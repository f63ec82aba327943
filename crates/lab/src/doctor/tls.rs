//! The resources for TLS: the library, this kernel and this CPU.

use super::Check;
use pollux_sys as sys;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    io,
    net::{Ipv4Addr, TcpListener, TcpStream},
    os::fd::AsFd as _,
};

/// The resources for TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TlsFact {
    /// The library that performs handshakes.
    pub library: String,
    /// The source of the library's cryptography.
    pub provider: String,
    /// The versions that servers and clients of this program support.
    pub versions: Vec<String>,
    /// The cipher suites in the order in which a server prefers them, by their names in IANA's registry.
    pub suites: Vec<String>,
    /// The groups of the key exchange in the order of preference.
    pub groups: Vec<String>,
    /// Whether the kernel can encrypt on a socket: the ULP `tls` was attached to one.
    pub kernel: bool,
    /// Why the kernel cannot encrypt.
    pub kernel_refused: Option<String>,
    /// The CPU's instructions for AES-GCM; empty on architectures whose instructions are not examined.
    pub cpu: BTreeMap<String, bool>,
}

impl TlsFact {
    /// Examines the library, the kernel and the CPU.
    pub fn look() -> Self {
        let provider = pollux_tls::provider();
        let suites = &provider.cipher_suites;
        let mut versions: Vec<_> = suites
            .iter()
            .map(|suite| format!("{:?}", suite.version().version))
            .map(|name| name.replace("TLSv", "").replace('_', "."))
            .collect();
        versions.dedup();
        let refused = kernel_tls_refused();
        Self {
            library: "rustls".into(),
            provider: "ring".into(),
            versions,
            // rustls marks the suites of TLS 1.3 in their names; the registry does not.
            suites: suites
                .iter()
                .map(|suite| format!("{:?}", suite.suite()).replace("TLS13_", "TLS_"))
                .collect(),
            groups: provider.kx_groups.iter().map(|group| format!("{:?}", group.name())).collect(),
            kernel: refused.is_none(),
            kernel_refused: refused,
            cpu: cpu(),
        }
    }
}

/// Returns why the kernel cannot encrypt on a socket; `None` if it can.
pub(crate) fn kernel_tls_refused() -> Option<String> {
    try_kernel().err().map(|error| sys::kernel_tls_refusal(&error))
}

/// Attaches the ULP to one end of a connection, which is then closed. On an unconnected socket every kernel
/// refuses it, even one that has the ULP.
fn try_kernel() -> io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let client = TcpStream::connect(listener.local_addr()?)?;
    sys::attach_kernel_tls(client.as_fd())
}

fn cpu() -> BTreeMap<String, bool> {
    #[cfg(target_arch = "aarch64")]
    use std::arch::is_aarch64_feature_detected as has;
    #[cfg(target_arch = "x86_64")]
    use std::arch::is_x86_feature_detected as has;
    #[cfg(target_arch = "x86_64")]
    let found = [("aes", has!("aes")), ("pclmulqdq", has!("pclmulqdq")), ("vaes", has!("vaes"))];
    #[cfg(target_arch = "aarch64")]
    let found = [("aes", has!("aes")), ("pmull", has!("pmull"))];
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let found: [(&str, bool); 0] = [];
    found.map(|(name, has)| (name.to_owned(), has)).into()
}

/// Checks the facts for the report.
pub(super) fn checks(fact: &TlsFact) -> Vec<Check> {
    let meaning = format!(
        "handshakes by {} with the cryptography of {}; key exchange with {}",
        fact.library,
        fact.provider,
        fact.groups.join(", ")
    );
    let versions = Check::new("versions", fact.versions.join(", "), meaning, None);
    let count = fact.suites.len().to_string();
    let suites = Check::new("cipher suites", count, fact.suites.join(", "), None);
    let (value, meaning) = match &fact.kernel_refused {
        None => (
            "yes",
            "the kernel can encrypt on a socket: `pollux serve --kernel-tls send` lets it".into(),
        ),
        Some(reason) => ("no", format!("{reason}; only `pollux serve --kernel-tls send` needs it")),
    };
    vec![versions, suites, aes(fact), Check::new("kernel TLS", value, meaning, None)]
}

fn aes(fact: &TlsFact) -> Check {
    let names = |wanted| -> Vec<_> {
        fact.cpu.iter().filter(|(_, has)| **has == wanted).map(|(name, _)| name.as_str()).collect()
    };
    let (has, lacks) = (names(true), names(false));
    let check = |value: &str, meaning: &str, advice| {
        Check::new("AES instructions of the CPU", value, meaning, advice)
    };
    if fact.cpu.is_empty() {
        return check("unknown", "they are looked for on x86_64 and aarch64", None);
    }
    let value = if has.is_empty() { "none".into() } else { has.join(", ") };
    match lacks.as_slice() {
        [] => check(&value, "AES-GCM runs on them", None),
        // Vector instructions (vaes) only make AES-GCM still faster.
        ["vaes"] => {
            let meaning = "AES-GCM runs on them, without those for several blocks at a time (vaes)";
            check(&value, meaning, None)
        }
        lacks => {
            let meaning = format!(
                "without {} AES-GCM is computed by ordinary instructions, several times as slow",
                lacks.join(", ")
            );
            let advice =
                "if this is a virtual machine, give it the CPU of its host (QEMU: -cpu host)";
            check(&value, &meaning, Some(advice))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_is_described_by_the_names_of_the_registry() {
        let fact = TlsFact::look();
        assert_eq!(fact.versions, ["1.3", "1.2"]);
        assert_eq!(fact.suites[0], "TLS_AES_128_GCM_SHA256");
        assert!(fact.suites.iter().all(|name| name.starts_with("TLS_")), "{:?}", fact.suites);
        assert!(fact.groups.iter().any(|name| name == "X25519"), "{:?}", fact.groups);
        assert_eq!(fact.kernel, fact.kernel_refused.is_none());
    }

    #[test]
    fn the_kernel_has_tls_if_it_lists_it_now() {
        // The attempt itself may have loaded the module.
        let refused = try_kernel().err();
        let path = "/proc/sys/net/ipv4/tcp_available_ulp";
        let listed = std::fs::read_to_string(path).unwrap_or_default();
        let is_listed = listed.split_whitespace().any(|name| name == "tls");
        assert_eq!(refused.is_none(), is_listed, "{refused:?} {listed}");
    }

    #[test]
    fn advice_is_given_only_for_a_cpu_without_aes() {
        let with = |features: &[(&str, bool)]| {
            let cpu = features.iter().map(|(name, has)| ((*name).to_owned(), *has)).collect();
            aes(&TlsFact { cpu, ..TlsFact::default() })
        };
        let full = with(&[("aes", true), ("pclmulqdq", true), ("vaes", true)]);
        assert_eq!((full.value.as_str(), &full.advice), ("aes, pclmulqdq, vaes", &None));
        let older = with(&[("aes", true), ("pclmulqdq", true), ("vaes", false)]);
        assert!(older.advice.is_none() && older.meaning.contains("vaes"), "{older:?}");
        let arm = with(&[("aes", true), ("pmull", false)]);
        assert!(arm.advice.is_some() && arm.meaning.contains("pmull"), "{arm:?}");
        assert_eq!(with(&[("aes", false), ("pmull", false)]).value, "none");
        assert_eq!(with(&[]).value, "unknown");
    }
}
