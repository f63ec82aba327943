//! The configuration that results from the flags and a file.

use super::Args;
use crate::usage::UsageError;
use pollux_server::config::{Config, Fault, Key, SiteSection, Sources};

/// The configuration, and the locations of its values.
pub(crate) struct Configuration {
    /// The values of the file and the flags.
    pub(crate) file: Config,
    /// The values of the file, without the flags.
    pub(crate) without_flags: Config,
    /// The locations of the file's values.
    pub(crate) sources: Sources,
}

impl Configuration {
    /// Reads the file that `args` name, if they name one, and applies the flags to it.
    ///
    /// # Errors
    /// The file has a fault, or the flags do not fit the file.
    pub(crate) fn of(args: Args) -> anyhow::Result<Self> {
        let (mut file, sources) = match &args.source.config {
            Some(path) => Config::load(path)?,
            None => Default::default(),
        };
        let without_flags = file.clone();
        let names_content = args.files.directory.is_some()
            || !args.origins.origin.is_empty()
            || !args.origins.handover.is_empty()
            || args.guestbook.guestbook.is_some();
        if names_content && file.site.len() > 1 {
            return Err(UsageError::new(format!(
                "DIR, --origin, --handover and --guestbook say what one site serves, and the file \
                 has {} sites: write them into its [[site]]",
                file.site.len()
            ))
            .into());
        }
        let has_site = !file.site.is_empty();
        if !has_site {
            file.site.push(SiteSection::default());
        }
        args.hub.apply(&mut file)?;
        args.files.apply(&mut file);
        args.rules.apply(&mut file);
        args.source.apply(&mut file);
        args.listen.apply(&mut file);
        args.workers.apply(&mut file);
        args.limits.apply(&mut file);
        args.clients.apply(&mut file);
        args.origins.apply(&mut file);
        args.cache.apply(&mut file);
        args.guestbook.apply(&mut file);
        args.output.apply(&mut file);
        args.security.apply(&mut file);
        args.tls.apply(&mut file);
        args.acme.apply(&mut file);
        if !has_site && file.hub.is_none() && file.site[0].is_empty() {
            file.site.clear();
        }
        Ok(Self { file, without_flags, sources })
    }

    /// Checks the values.
    ///
    /// # Errors
    /// All faults. If a faulty value is not in a file, this is a usage error.
    pub(crate) fn validate(&self) -> anyhow::Result<()> {
        let Err(mut faults) = self.file.validate() else { return Ok(()) };
        // A fault that the file alone does not have is a fault of the flags.
        let of_file = self.without_flags.validate().err().unwrap_or_default();
        for fault in &mut faults {
            let is_of_file =
                of_file.iter().any(|it| (&it.key, &it.message) == (&fault.key, &fault.message));
            if is_of_file {
                self.sources.point(fault);
            }
        }
        let text = faults.iter().map(describe).collect::<Vec<_>>().join("\n");
        if faults.iter().any(|fault| fault.file.is_none()) {
            return Err(UsageError::new(text).into());
        }
        anyhow::bail!("{text}")
    }
}

/// Returns the text of a fault. A value that is not in a file was given by the flag of the same
/// name; the flags of `[hub]` have a prefix.
pub(crate) fn describe(fault: &Fault) -> String {
    if fault.file.is_some() {
        return fault.to_string();
    }
    let key = fault.key.iter().rev().find_map(|key| match key {
        Key::Name("root") => Some("DIR: ".to_owned()),
        // Only a file has several sites.
        Key::Name("site") => Some("[[site]]: ".to_owned()),
        Key::Name(name) => {
            let is_of_hub = fault.key.first() == Some(&Key::Name("hub")) && *name != "hub";
            Some(format!("--{}{name}: ", if is_of_hub { "hub-" } else { "" }))
        }
        Key::Index(_) => None,
    });
    let help = fault.help.as_ref().map(|help| format!(": {help}")).unwrap_or_default();
    format!("{}{}{help}", key.unwrap_or_default(), fault.message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;
    use serde_json::Value;
    use std::collections::BTreeSet;

    /// Flags that are not keys: the file itself, and flags about output.
    const NOT_KEYS: [&str; 4] = ["config", "json", "help", "version"];

    /// Returns the keys of all tables of the schema; those of `[hub]` get the prefix of the flags.
    fn keys() -> BTreeSet<String> {
        let schema = Config::schema();
        let keys = |schema: &Value| -> Vec<String> {
            let properties = schema["properties"].as_object().expect("a table");
            properties.keys().cloned().collect()
        };
        let mut all: BTreeSet<String> = keys(&schema).into_iter().collect();
        all.extend(keys(&schema["$defs"]["SiteSection"]));
        all.extend(keys(&schema["$defs"]["HubSection"]).iter().map(|key| format!("hub-{key}")));
        all
    }

    /// Regression: the text named a flag `--max-update`, which there is not.
    #[test]
    fn a_fault_of_the_hub_names_its_flag() {
        for (key, expected) in [
            (&[Key::Name("hub"), Key::Name("max-update")][..], "--hub-max-update: x"),
            (&[Key::Name("hub"), Key::Name("cors"), Key::Index(0)], "--hub-cors: x"),
            (&[Key::Name("hub")], "--hub: x"),
            (&[Key::Name("site"), Key::Index(0), Key::Name("hub")], "--hub: x"),
            (&[Key::Name("site"), Key::Index(0), Key::Name("max-body")], "--max-body: x"),
        ] {
            let fault = Fault { key: key.to_vec(), message: "x".into(), ..Fault::default() };
            assert_eq!(describe(&fault), expected);
        }
    }

    /// Regression: the message named a flag `--site`, which does not exist.
    #[test]
    fn too_many_sites_are_a_fault_of_the_tables() {
        let text = "[[site]]\nroot = \"a\"\n".repeat(1025);
        let faults = Config::parse("a", &text).unwrap().validate().unwrap_err();
        let texts: Vec<_> = faults.iter().map(describe).collect();
        let is_named = |text: &String| text.starts_with("[[site]]: 1025 sites are more than 1024");
        assert!(texts.iter().any(is_named), "{texts:?}");
        assert!(!texts.iter().any(|text| text.contains("--site:")), "{texts:?}");
    }

    #[test]
    fn every_flag_of_serve_is_a_key_of_the_file() {
        let keys = keys();
        let mut command = crate::Cli::command();
        let serve = command.find_subcommand_mut("serve").expect("serve");
        let missing: Vec<_> = serve
            .get_arguments()
            .filter_map(|argument| argument.get_long())
            .filter(|flag| !NOT_KEYS.contains(flag) && !keys.contains(*flag))
            .collect();
        assert_eq!(missing, [""; 0]);
    }
}
